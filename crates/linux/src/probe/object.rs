//! Loads BPF objects, finds their programs and maps, and runs programs of type `syscall`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use libbpf_rs::libbpf_sys;
use libbpf_rs::{Map, MapCore, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};

use crate::mapped::MappedArray;

/// Opens and loads an object. On failure returns the message of libbpf or the verifier.
pub(crate) fn load(bytes: &[u8]) -> Result<Object, String> {
    load_without(bytes, "")
}

/// Opens and loads an object without one of its programs.
pub(crate) fn load_without(bytes: &[u8], program: &str) -> Result<Object, String> {
    static SAID: Mutex<String> = Mutex::new(String::new());
    #[expect(clippy::needless_pass_by_value, reason = "libbpf-rs's signature")]
    fn keep(_: libbpf_rs::PrintLevel, text: String) {
        if let Ok(mut said) = SAID.lock()
            && said.len() < 1 << 20
        {
            said.push_str(&text);
        }
    }
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, keep)));
    let result = ObjectBuilder::default()
        .open_memory(bytes)
        .and_then(|mut object| {
            for mut left_out in object.progs_mut().filter(|found| found.name() == program) {
                left_out.set_autoload(false);
            }
            object.load()
        });
    result.map_err(|error| {
        let said = SAID
            .lock()
            .map(|mut said| std::mem::take(&mut *said))
            .unwrap_or_default();
        essence(&said).unwrap_or_else(|| error.to_string())
    })
}

/// Returns the first line of libbpf's message and, for a verifier log, also the line with the error.
fn essence(said: &str) -> Option<String> {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next()?.to_owned();
    let last =
        lines.rfind(|line| !line.starts_with("processed") && !line.contains("PROG LOAD LOG"));
    Some(last.map_or_else(|| first.clone(), |last| format!("{first} ({last})")))
}

/// Returns a program of our own object; it stays loaded when the object is dropped.
pub(crate) fn program(object: &Object, name: &str) -> io::Result<OwnedFd> {
    let program = object.progs().find(|program| program.name() == name);
    let program = program.expect("a program of our object");
    program.as_fd().try_clone_to_owned()
}

/// Maps the memory of a map of our own object.
pub(crate) fn map_array<T: Copy>(
    object: &Object,
    name: &str,
    len: usize,
) -> io::Result<MappedArray<T>> {
    MappedArray::new(map(object, name).as_fd(), len)
}

/// Returns a map of our own object.
pub(crate) fn map<'a>(object: &'a Object, name: &str) -> Map<'a> {
    let map = object.maps().find(|map| map.name() == name);
    map.expect("a map of our object")
}

/// Returns the ring buffer `events` of our own object. Consuming it passes each event to `sink`.
pub(crate) fn ring_buffer(
    object: &Object,
    mut sink: impl FnMut(&[u8]) + 'static,
) -> libbpf_rs::Result<RingBuffer<'static>> {
    let events = map(object, "events");
    let mut builder = RingBufferBuilder::new();
    builder.add(&events, move |bytes: &[u8]| {
        sink(bytes);
        0
    })?;
    builder.build()
}

/// Runs a program of type `syscall` on this thread, to its end.
pub(crate) fn run(program: BorrowedFd<'_>) -> io::Result<()> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ..Default::default()
    };
    loop {
        // SAFETY: a valid program descriptor and an options struct of the size it says.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::from_raw_os_error(-result);
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
            return Err(error);
        }
    }
}
