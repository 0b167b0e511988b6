//! The mappings of a process, as in `/proc/PID/maps`.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use isotherm_engine::AddressRange;
use isotherm_engine::address::is_name_of_file;
use isotherm_policy::Unreclaimable;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedArea {
    pub range: AddressRange,
    pub permissions: Permissions,
    /// File path, `[heap]`, ...; empty for anonymous memory.
    pub name: Arc<str>,
    /// The mapped file and offset; `None` for anonymous memory.
    pub file: Option<FilePart>,
    /// Reason why the kernel reclaims no page of it; `None` if it does, or if that is unknown.
    pub unreclaimable: Option<Unreclaimable>,
}

/// A file and an offset. Shared memory also has files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Major and minor number of the file system's device.
    pub device: u64,
    pub inode: u64,
    /// Bytes from the beginning of the file.
    pub offset: u64,
}

/// `rwxp` flags as the kernel prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions([u8; 4]);

impl Permissions {
    /// Parses the flags; returns `None` unless these are four characters of ASCII.
    pub fn new(text: &str) -> Option<Self> {
        let flags = text.as_bytes().try_into().ok()?;
        text.is_ascii().then_some(Self(flags))
    }

    /// Whether the process may write there.
    pub fn is_writable(self) -> bool {
        self.0[1] == b'w'
    }

    /// Whether the process may run code there.
    pub fn is_executable(self) -> bool {
        self.0[2] == b'x'
    }

    /// Whether writes stay private to the process.
    pub fn is_private(self) -> bool {
        self.0[3] == b'p'
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.0).unwrap_or_default())
    }
}

impl MappedArea {
    /// Whether a file backs it. Shared memory also has a name, but is paged out to swap.
    pub fn is_file(&self) -> bool {
        is_name_of_file(&self.name)
    }

    /// Whether it is private memory that no file backs.
    pub fn is_private_anonymous(&self) -> bool {
        self.permissions.is_private() && !self.is_file()
    }

    /// Parses a line of `/proc/PID/maps`; returns `None` if it is not the process's own memory.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = Permissions::new(words.next()?)?;
        let mut number = |radix| u64::from_str_radix(words.next()?, radix).ok();
        let offset = number(16);
        let (major, minor) = words
            .next()
            .and_then(|device| device.split_once(':'))
            .unzip();
        let device = |part: Option<&str>| u64::from_str_radix(part?, 16).ok();
        let device = device(major).zip(device(minor));
        let inode = words.next().and_then(|inode| inode.parse().ok());
        let file = offset.zip(device).zip(inode);
        let file = file.filter(|(_, inode)| *inode != 0);
        let file = file.map(|((offset, (major, minor)), inode)| FilePart {
            device: major << 32 | minor,
            inode,
            offset,
        });
        let name = words.next().unwrap_or("").trim_start().into();
        let range = AddressRange::checked(
            u64::from_str_radix(start, 16).ok()?,
            u64::from_str_radix(end, 16).ok()?,
        )?;
        // The vsyscall page lies in the kernel's half.
        (range.end <= 1 << 56).then_some(Self {
            range,
            permissions,
            name,
            file,
            unreclaimable: None,
        })
    }
}

/// Iterates over those of `areas`, which are in address order, that overlap `range`.
pub(crate) fn overlapping(
    areas: &[MappedArea],
    range: AddressRange,
) -> impl Iterator<Item = &MappedArea> {
    let first = areas.partition_point(|area| area.range.end <= range.start);
    let from_first = areas[first..].iter();
    from_first.take_while(move |area| area.range.start < range.end)
}

/// Names of mappings, each stored once: a thousand processes map the same libraries.
#[derive(Debug, Default)]
pub struct Names(HashSet<Arc<str>>);

impl Names {
    /// Lets `areas` share their names with all areas of earlier calls.
    pub fn share(&mut self, areas: &mut [MappedArea]) {
        for area in areas {
            if let Some(known) = self.0.get(&area.name) {
                area.name = Arc::clone(known);
            } else {
                self.0.insert(Arc::clone(&area.name));
            }
        }
    }

    /// Drops names that are no longer in use.
    pub fn tidy(&mut self) {
        self.0.retain(|name| Arc::strong_count(name) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_parsed_with_names_that_hold_spaces() {
        let line = "7f00a000-7f00b000 r-xp 00001000 08:01 1234      /tmp/a b (deleted)";
        let area = MappedArea::parse(line).expect("a mapping");
        assert_eq!(area.range, AddressRange::new(0x7f00_a000, 0x7f00_b000));
        assert_eq!(area.permissions.to_string(), "r-xp");
        assert!(area.permissions.is_executable());
        assert_eq!(&*area.name, "/tmp/a b (deleted)");
        let part = FilePart {
            device: 8 << 32 | 1,
            inode: 1234,
            offset: 0x1000,
        };
        assert_eq!(area.file, Some(part));
        let anonymous = MappedArea::parse("1000-2000 rw-p 00000000 00:00 0 ").expect("a mapping");
        assert_eq!(&*anonymous.name, "");
        assert!(!anonymous.permissions.is_executable());
        let vsyscall = "ffffffffff600000-ffffffffff601000 --xp 0 00:00 0 [vsyscall]";
        for bad in [
            vsyscall,
            "nonsense",
            "1000-2000 rw 0 00:00 0 ",
            "1000-2000 r\u{e9}p 0",
        ] {
            assert_eq!(MappedArea::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_are_kept_once_and_no_longer_than_needed() {
        let area = || MappedArea::parse("1000-2000 rw-p 0 00:00 0 /lib/a.so").expect("a mapping");
        let (mut one, mut other) = ([area()], [area()]);
        let mut names = Names::default();
        names.share(&mut one);
        names.share(&mut other);
        assert!(Arc::ptr_eq(&one[0].name, &other[0].name));
        names.tidy();
        assert_eq!(names.0.len(), 1);
        drop((one, other));
        names.tidy();
        assert_eq!(names.0.len(), 0);
    }
}
