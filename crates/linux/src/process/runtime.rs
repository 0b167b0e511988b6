//! The run time of a program that manages its memory itself.

use std::fs::{self, File};
use std::io::Read;

/// Beginning of the build information in every executable of Go's (`debug/buildinfo` in its library), after a byte 0xff.
/// Without that byte, this program's own text is not mistaken for it.
const GO_BUILD_INFO: &[u8] = b" Go buildinf:";
const LENGTH: usize = GO_BUILD_INFO.len() + 1;
/// Bytes of an executable that are searched for it.
const SEARCHED: u64 = 512 << 20;
const CHUNK: usize = 1 << 20;

/// A run time with a heap of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// A Java virtual machine.
    Jvm,
    Go,
    Node,
}

impl Runtime {
    /// Returns the run time of a process; `None` if it has none of these, or if nothing can be read. Reads an executable
    /// that is neither a JVM's nor Node's.
    pub fn of_process(pid: u32) -> Option<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let is_go = || File::open(format!("/proc/{pid}/exe")).is_ok_and(|file| is_of_go(&file));
        Self::of_maps(&maps).or_else(|| is_go().then_some(Self::Go))
    }

    fn of_maps(maps: &str) -> Option<Self> {
        let is_node = |line: &str| line.ends_with("/node") || line.contains("/libnode.so");
        if maps.contains("/libjvm.so") {
            Some(Self::Jvm)
        } else {
            maps.lines().any(is_node).then_some(Self::Node)
        }
    }
}

fn is_of_go(executable: impl Read) -> bool {
    let mut rest = executable.take(SEARCHED);
    let mut chunk = Vec::with_capacity(CHUNK + LENGTH);
    loop {
        // What is looked for may begin in one chunk and end in the next.
        let overlap = chunk.len().min(LENGTH - 1);
        chunk.drain(..chunk.len() - overlap);
        let read = (&mut rest).take(CHUNK as u64).read_to_end(&mut chunk);
        if !read.is_ok_and(|bytes| bytes > 0) {
            return false;
        }
        let is_it = |window: &[u8]| window[0] == 0xff && &window[1..] == GO_BUILD_INFO;
        if chunk.windows(LENGTH).any(is_it) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_are_told_by_their_mappings() {
        for (maps, wanted) in [
            ("7f0-7f1 r-xp 0 08:01 1 /x/libjvm.so", Some(Runtime::Jvm)),
            ("400-500 r-xp 0 08:01 1 /usr/bin/node", Some(Runtime::Node)),
            ("400-500 r-xp 0 08:01 1 /usr/bin/nodejs-not", None),
        ] {
            assert_eq!(Runtime::of_maps(maps), wanted, "{maps}");
        }
        assert_eq!(Runtime::of_process(std::process::id()), None);
    }

    #[test]
    fn go_is_told_by_its_build_information_wherever_it_lies() {
        for before in [0, 5, CHUNK - 7, 3 * CHUNK] {
            let file = [&vec![0; before][..], &[0xff], GO_BUILD_INFO, b"\x08\x02"].concat();
            assert!(is_of_go(&file[..]), "{before}");
        }
        assert!(!is_of_go(GO_BUILD_INFO) && !is_of_go(&vec![0xff; 2 * CHUNK][..]));
    }
}
