//! Names of JIT-compiled code from `/tmp/perf-PID.map`: lines of `start size name` in hexadecimal.
//!
//! The file mostly grows while the program runs, and then only the new part is read. `jcmd PID Compiler.perfmap`
//! rewrites the whole file. Any user may create a file in `/tmp`: a file that does not belong to the process's user (or
//! root) is ignored, as perf does.
//!
//! Source: `tools/perf/Documentation/jit-interface.txt`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::text::value;

/// Maximum bytes of a map that are read, and the bytes of one read.
const BYTES_MAX: u64 = 128 << 20;
const PART: u64 = 1 << 20;
/// Maximum bytes of names over all processes: a user can run many processes, each with a map.
const KEPT_MAX: u64 = 128 << 20;
/// Bytes of an entry besides its name.
const ENTRY: u64 = 64;
/// Bytes at the end of the part read so far that are compared with the file.
const TAIL: usize = 128;
/// Maximum bytes of a name; longer names are cut.
const NAME_MAX: usize = 512;

/// Names of one process's code.
#[derive(Debug, Default)]
pub struct PerfMap {
    /// End and name of each piece of code, by its first address.
    names: BTreeMap<u64, (u64, Arc<str>)>,
    place: Option<Place>,
    read: u64,
    /// Size and modification time of the file when it was read.
    seen: (u64, i64, i64),
    /// The last bytes that were read. If the file has others there, it was rewritten.
    tail: Vec<u8>,
    /// The end of the part read so far, if it is an incomplete line.
    rest: Vec<u8>,
    kept: Kept,
}

/// Bytes kept for one process, and for all processes that share the count.
#[derive(Debug, Default)]
pub(super) struct Kept {
    own: u64,
    all: Arc<AtomicU64>,
}

/// Path of a process's map, and its required owner.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    /// Path of the map once the process has ended.
    afterwards: Option<PathBuf>,
    user: u32,
}

impl PerfMap {
    /// Reads what was added since the last call. Returns whether anything was new.
    pub fn update(&mut self, pid: u32) -> bool {
        if self.place.is_none() {
            self.place = Place::of(pid);
        }
        let Some(mut file) = self.place.as_ref().and_then(Place::open) else {
            return false;
        };
        let Ok(metadata) = file.metadata() else {
            return false;
        };
        let seen = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        if seen == std::mem::replace(&mut self.seen, seen) {
            return false;
        }
        if metadata.len() < self.read || !self.is_grown(&mut file) {
            self.forget();
        }
        let end = metadata.len().min(BYTES_MAX);
        let before = self.read;
        if file.seek(SeekFrom::Start(self.read)).is_err() {
            return false;
        }
        while self.read < end {
            let mut new = Vec::new();
            let part = (end - self.read).min(PART);
            let read = (&file).take(part).read_to_end(&mut new);
            if read.is_err() || new.is_empty() {
                break;
            }
            self.read += new.len() as u64;
            self.tail.extend_from_slice(&new);
            self.tail.drain(..self.tail.len().saturating_sub(TAIL));
            self.add(&new);
        }
        self.read > before
    }

    /// Returns an empty map whose names count towards a limit shared with other maps.
    pub(super) fn beside(all: &Arc<AtomicU64>) -> Self {
        let all = Arc::clone(all);
        Self {
            kept: Kept { own: 0, all },
            ..Self::default()
        }
    }

    /// Drops the names that were read, but not the file's recorded size and time.
    fn forget(&mut self) {
        self.names.clear();
        self.kept.release(self.kept.own);
        self.read = 0;
        self.tail.clear();
        self.rest.clear();
    }

    /// Whether the part that was read is unchanged in the file.
    fn is_grown(&self, file: &mut File) -> bool {
        let mut tail = vec![0; self.tail.len()];
        let at = self.read - self.tail.len() as u64;
        let read = file.seek(SeekFrom::Start(at));
        read.and_then(|_| file.read_exact(&mut tail)).is_ok() && tail == self.tail
    }

    /// Returns the name of the code at `address`.
    pub fn name(&self, address: u64) -> Option<&Arc<str>> {
        let (_, (end, name)) = self.names.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }

    /// Adds text that was appended to the file.
    pub fn add(&mut self, new: &[u8]) {
        let mut text = std::mem::take(&mut self.rest);
        text.extend_from_slice(new);
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in text[..whole].split(|byte| *byte == b'\n') {
            if let Some((start, end, name)) = parse(line) {
                self.insert(start, end, name);
            }
        }
        let rest = &text[whole..];
        // An overlong line without an end is dropped.
        if rest.len() <= NAME_MAX + 64 {
            self.rest = rest.to_vec();
        }
    }

    /// Inserts a name. Code that replaces other code replaces its name.
    fn insert(&mut self, start: u64, end: u64, name: Arc<str>) {
        let over: Vec<u64> = self.names.range(start..end).map(|(at, _)| *at).collect();
        for at in over {
            if let Some((_, name)) = self.names.remove(&at) {
                self.kept.release(name.len() as u64 + ENTRY);
            }
        }
        if let Some((_, (before, _))) = self.names.range_mut(..start).next_back() {
            *before = start.min(*before);
        }
        if self.kept.take(name.len() as u64 + ENTRY) {
            self.names.insert(start, (end, name));
        }
    }
}

impl Kept {
    /// Adds `bytes` to the count. Returns whether the limit allows them.
    fn take(&mut self, bytes: u64) -> bool {
        let all = self.all.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.own += bytes;
        let has_room = all <= KEPT_MAX;
        if !has_room {
            self.release(bytes);
        }
        has_room
    }

    fn release(&mut self, bytes: u64) {
        self.own -= bytes;
        self.all.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.release(self.own);
    }
}

fn parse(line: &[u8]) -> Option<(u64, u64, Arc<str>)> {
    let line = String::from_utf8_lossy(line);
    let mut words = line.splitn(3, ' ');
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let start = hex(words.next()?)?;
    let size = hex(words.next()?)?;
    let name = words.next()?.trim();
    let end = start.checked_add(size)?;
    if size == 0 || name.is_empty() {
        return None;
    }
    let cut = name.floor_char_boundary(NAME_MAX);
    Some((start, end, name[..cut].into()))
}

impl Place {
    /// Returns the place in the process's own `/tmp`, by the pid in its own namespace.
    fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let inner = value(&status, "NSpid:")?.split_whitespace().last()?;
        let user = value(&status, "Uid:")?.split_whitespace().nth(1)?;
        let user = user.parse().ok()?;
        let name = format!("tmp/perf-{inner}.map");
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let same = |a: &Path, b: &Path| {
            let [a, b] = [a, b].map(|path| fs::metadata(path).map(|m| (m.dev(), m.ino())));
            a.is_ok_and(|a| b.is_ok_and(|b| a == b))
        };
        let is_ours = same(&root.join("tmp"), Path::new("/tmp"));
        Some(Self {
            path: root.join(&name),
            afterwards: is_ours.then(|| Path::new("/").join(&name)),
            user,
        })
    }

    fn open(&self) -> Option<File> {
        let mut options = File::options();
        options
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(&self.path);
        let file = file.or_else(|error| match &self.afterwards {
            Some(path) => options.open(path),
            None => Err(error),
        });
        let file = file.ok()?;
        let metadata = file.metadata().ok()?;
        let is_theirs = [0, self.user].contains(&metadata.uid());
        (metadata.is_file() && is_theirs).then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_all_processes_have_one_bound() {
        let all = Arc::default();
        let [mut first, mut second] = [(); 2].map(|()| PerfMap::beside(&all));
        first.add(b"1000 10 a\n1000 10 b\n");
        assert_eq!(first.kept.own, ENTRY + 1);
        assert!(first.kept.take(KEPT_MAX - 2 * ENTRY));
        second.add(b"1000 10 c\n2000 10 d\n");
        assert!(second.name(0x1000).is_none() || second.name(0x2000).is_none());
        drop(first);
        drop(second);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    fn map(text: &str) -> PerfMap {
        let mut map = PerfMap::default();
        map.add(text.as_bytes());
        map
    }

    #[test]
    fn names_are_found_by_address() {
        let map = map("1000 10 java.lang.String::hash\n0x2000 0x20 py::f:/a b.py\n3000 0 none\n");
        let name = |at| map.name(at).map(|name| &**name);
        assert_eq!(name(0x100f), Some("java.lang.String::hash"));
        assert_eq!(name(0x1010), None);
        assert_eq!(name(0x201f), Some("py::f:/a b.py"));
        assert_eq!((name(0xfff), name(0x3000)), (None, None));
    }

    #[test]
    fn a_line_may_come_in_parts_and_code_be_replaced() {
        let mut map = map("1000 100 old\n10");
        map.add(b"40 10 new\n");
        let name = |at| map.name(at).map(|name| &**name);
        assert_eq!((name(0x1000), name(0x1040)), (Some("old"), Some("new")));
        assert_eq!(name(0x1060), None, "what was behind is no longer known");
    }

    #[test]
    fn a_map_that_grows_is_read_on_and_one_that_was_replaced_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("map");
        let mut map = PerfMap {
            place: Some(Place {
                path: path.clone(),
                afterwards: None,
                user: fs::metadata("/proc/self").expect("ours").uid(),
            }),
            ..PerfMap::default()
        };
        let mut write = |text: &str| {
            fs::write(&path, text).expect("written");
            map.update(0);
            [0x1000, 0x2000, 0x3000].map(|at| map.name(at).map(ToString::to_string))
        };
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(write("1000 10 a\n"), [some("a"), None, None]);
        let both = write("1000 10 a\n2000 10 b\n");
        assert_eq!(both, [some("a"), some("b"), None]);
        let other = "1000 10 c\n3000 10 long enough to be no shorter\n";
        let wanted = [some("c"), None, some("long enough to be no shorter")];
        assert_eq!(write(other), wanted);
    }

    proptest! {
        #[test]
        fn no_map_is_too_strange(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..5)) {
            let mut map = PerfMap::default();
            for part in parts {
                map.add(&part);
            }
            map.name(0x1000);
        }
    }
}
