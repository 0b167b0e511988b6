//! Opens a file that is found in the page cache.
//!
//! Problem: the kernel caches inodes, and user space opens names. Approach: the names that the kernel has in memory are
//! tried on a visible mount of the file system. Otherwise the inode itself is opened, by a handle of its number and
//! generation (ext4 and XFS). The opened file must be the inode that was found.
//!
//! Limits: files of local file systems; deleted ones cannot be opened by any name. Programs that watch the file with
//! inotify or fanotify see that it is opened.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use isotherm_engine::page_cache::CachedKind;

use super::memmap::FileFacts;
use crate::system_call::owned;
use crate::text;

/// Types of file systems (include/uapi/linux/magic.h).
mod magic {
    pub(super) const EXT4: u64 = 0xef53;
    pub(super) const XFS: u64 = 0x5846_5342;
    pub(super) const BTRFS: u64 = 0x9123_683e;
    pub(super) const FUSE: u64 = 0x6573_5546;
    pub(super) const BLOCK_DEVICES: u64 = 0x6264_6576;
}

/// Forms of handles (include/linux/exportfs.h, fs/xfs/xfs_export.h).
const HANDLE_INODE_GENERATION: i32 = 1;
const HANDLE_XFS_INODE64: i32 = 0x81;

/// Reason why a cached file is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unopenable {
    Deleted,
    /// The file is on a network file system, or on one in user space: opening it might wait for another machine or
    /// program.
    Remote,
    /// A directory, a link or another type that is not read by pages.
    NotAFile,
    /// The name is unknown, leads to another file, or may not be opened.
    NoName,
}

/// Mounts of file systems, as far as this process sees them.
#[derive(Debug, Default)]
pub struct Mounts {
    /// Mounts by device: the directory of the file system that is mounted, and the mount point.
    by_device: BTreeMap<u64, Vec<(PathBuf, PathBuf)>>,
}

impl Mounts {
    /// Reads the mounts.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&fs::read("/proc/self/mountinfo")?))
    }

    fn parse(mountinfo: &[u8]) -> Self {
        let mut mounts = Self::default();
        for line in mountinfo.split(|byte| *byte == b'\n') {
            let mut words = line.split(|byte| *byte == b' ').skip(2);
            let (Some(device), Some(root), Some(point)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let device = str::from_utf8(device).ok().and_then(|d| d.split_once(':'));
            let Some((Ok(major), Ok(minor))) = device.map(|(a, b)| (a.parse(), b.parse())) else {
                continue;
            };
            let of_device = mounts.by_device.entry(libc::makedev(major, minor));
            of_device
                .or_default()
                .push((unescape(root), unescape(point)));
        }
        mounts
    }

    /// Returns the possible names of a path within a file system.
    fn names<'a>(&'a self, device: u64, path: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let of_device = self.by_device.get(&device).into_iter().flatten();
        of_device.filter_map(|(root, point)| Some(point.join(path.strip_prefix(root).ok()?)))
    }

    /// Returns the name of the path on the first mount that shows it.
    pub fn name(&self, facts: &FileFacts) -> Option<PathBuf> {
        let path = Path::new(OsStr::from_bytes(facts.path.as_deref()?));
        self.names(facts.device, path).next()
    }
}

/// Decodes blanks and other characters, which the kernel's tables show as `\040`.
fn unescape(word: &[u8]) -> PathBuf {
    let mut name = Vec::with_capacity(word.len());
    let mut at = 0;
    while at < word.len() {
        let octal = word.get(at + 1..at + 4).and_then(|digits| {
            let digits = str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match octal {
            Some(byte) if word[at] == b'\\' => {
                name.push(byte);
                at += 4;
            }
            _ => {
                name.push(word[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&name).to_owned())
}

impl FileFacts {
    /// Returns the type of the mapping.
    pub fn kind(&self) -> CachedKind {
        if self.magic == magic::BLOCK_DEVICES {
            CachedKind::BlockDevice
        } else if self.mode & libc::S_IFMT != libc::S_IFREG {
            CachedKind::Other
        } else if self.nr_links == 0 {
            CachedKind::Deleted
        } else {
            CachedKind::File
        }
    }

    fn is_remote(&self) -> bool {
        self.magic == magic::FUSE || libc::major(self.device) == 0 && self.magic != magic::BTRFS
    }
}

/// Opens the file for reading.
pub fn open(facts: &FileFacts, mounts: &Mounts) -> Result<File, Unopenable> {
    match facts.kind() {
        CachedKind::BlockDevice => return open_device(facts.own_device),
        CachedKind::Deleted => return Err(Unopenable::Deleted),
        CachedKind::Other => return Err(Unopenable::NotAFile),
        CachedKind::File if facts.is_remote() => return Err(Unopenable::Remote),
        CachedKind::File => {}
    }
    let path = { facts.path.as_deref() }.map(|path| Path::new(OsStr::from_bytes(path)));
    let names = path
        .into_iter()
        .flat_map(|path| mounts.names(facts.device, path));
    for name in names {
        // O_PATH has no effect on the file, whatever it is by now.
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let there = OpenOptions::new().read(true).custom_flags(flags).open(name);
        if let Ok(there) = there
            && is_it(facts, &there)
        {
            return reopen(&there);
        }
    }
    by_handle(facts, mounts).ok_or(Unopenable::NoName)
}

fn is_it(facts: &FileFacts, file: &File) -> bool {
    let Ok(found) = file.metadata() else {
        return false;
    };
    // Files of btrfs show the device of their subvolume.
    let is_same_device = found.dev() == facts.device || facts.magic == magic::BTRFS;
    found.is_file() && found.ino() == facts.inode && is_same_device
}

/// Opens a file for reading that was opened by O_PATH before; its access time stays unchanged.
fn reopen(there: &File) -> Result<File, Unopenable> {
    let path = format!("/proc/self/fd/{}", there.as_raw_fd());
    let flags = libc::O_NOATIME | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.map_err(|_| Unopenable::NoName)
}

#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    words: [u32; 3],
}

fn by_handle(facts: &FileFacts, mounts: &Mounts) -> Option<File> {
    let (_, point) = mounts.by_device.get(&facts.device)?.first()?;
    let (low, high) = (facts.inode as u32, (facts.inode >> 32) as u32);
    let handle = match facts.magic {
        magic::EXT4 => Handle {
            bytes: 8,
            kind: HANDLE_INODE_GENERATION,
            words: [low, facts.generation, 0],
        },
        magic::XFS => Handle {
            bytes: 12,
            kind: HANDLE_XFS_INODE64,
            words: [low, high, facts.generation],
        },
        _ => return None,
    };
    let mount = File::open(point).ok()?;
    // SAFETY: a handle of the size it says; a non-negative result is a descriptor without another owner.
    let file = unsafe {
        owned(libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw const handle,
            libc::O_RDONLY | libc::O_NOATIME | libc::O_NONBLOCK | libc::O_CLOEXEC,
        ))
    };
    let file = File::from(file.ok()?);
    is_it(facts, &file).then_some(file)
}

fn open_device(device: u64) -> Result<File, Unopenable> {
    let name = device_name(device).ok_or(Unopenable::NoName)?;
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(name);
    let file = file.map_err(|_| Unopenable::NoName)?;
    let found = file.metadata().map_err(|_| Unopenable::NoName)?;
    let is_it = found.file_type().is_block_device() && found.rdev() == device;
    is_it.then_some(file).ok_or(Unopenable::NoName)
}

/// Returns a device's number as `MAJOR:MINOR`.
pub fn device_number(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

/// Returns the name of a block device's node, as in udev or devtmpfs.
pub fn device_name(device: u64) -> Option<PathBuf> {
    let number = device_number(device);
    let facts = fs::read_to_string(format!("/sys/dev/block/{number}/uevent")).ok()?;
    Some(Path::new("/dev").join(text::value(&facts, "DEVNAME=")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_on_the_mounts_of_its_file_system() {
        let mounts = Mounts::parse(
            b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
              30 22 254:0 /srv/a\\040b /mnt/x rw shared:1 - ext4 /dev/vda rw\nnonsense\n",
        );
        let device = libc::makedev(254, 0);
        let names = |path: &str| {
            let names = mounts.names(device, Path::new(path));
            names
                .map(|name| name.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names("/srv/a b/c"), ["/srv/a b/c", "/mnt/x/c"]);
        assert_eq!(names("/etc/passwd"), ["/etc/passwd"]);
        assert_eq!(mounts.names(1, Path::new("/x")).count(), 0);
    }
}
