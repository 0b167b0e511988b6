//! zswap, a compressed cache in memory before swap on a disk, and the file or device behind it.
//!
//! Problem: its settings are the machine's. A file system may not hold swap, and a device may hold another's data.
//!
//! Approach: a setting's old value is noted before it changes. A file is known by the UUID in its swap header, as zram
//! devices are. A device is only used with the header that mkswap(8) gave it, so none is ever overwritten.
//!
//! Limits: after a reboot the note is gone, and the kernel's settings with it. The file stays.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use isotherm_engine::units::format_bytes;
use rustix::fs::{
    FallocateFlags, FsWord, IFlags, fallocate, ioctl_getflags, ioctl_setflags, statfs, statvfs,
};

use super::area::{
    SwapError, Uuid, first_page, header_uuid, impossible, is_swap, step, swap_off, write_header,
};
use crate::arch;

/// zswap's settings (Documentation/admin-guide/mm/zswap.rst).
pub(super) const PARAMETERS: &str = "/sys/module/zswap/parameters";
/// Bytes that a new file leaves free on its disk.
const DISK_RESERVE: u64 = 256 << 20;
/// File systems that hold no swap files, by their magic number.
const NO_SWAP: [(FsWord, &str); 4] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlay"),
    (0x6969, "NFS"),
];

/// zswap to set up.
#[derive(Clone, Debug, Default)]
pub struct ZswapOptions {
    /// Size of the new swap file; 0 for a device with a swap header.
    pub bytes: u64,
    /// Path of the file or device.
    pub path: PathBuf,
    /// Priority of the file or device; after all others if it is not given.
    pub priority: Option<i32>,
    /// Names and values of zswap's settings, besides `enabled`.
    pub settings: Vec<(&'static str, String)>,
}

/// A setting of zswap that is changed, with its value before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(super) name: String,
    pub(super) old: String,
}

impl Setting {
    /// Parses the words of a line of the note.
    pub(super) fn parse(words: &[&str]) -> Option<Self> {
        let [name, old] = words else { return None };
        let is_name = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        is_name.then(|| Self {
            name: (*name).to_owned(),
            old: (*old).to_owned(),
        })
    }

    /// Reads the present value.
    pub(super) fn new(folder: &Path, name: &str) -> Result<Self, SwapError> {
        let old = fs::read_to_string(folder.join(name)).map_err(|_| {
            let why = "this kernel does not have that setting; leave the option out";
            impossible(format!("set zswap's {name}"), why)
        })?;
        Ok(Self {
            name: name.to_owned(),
            old: old.trim().to_owned(),
        })
    }

    /// Writes a value, and verifies that the kernel took it.
    pub(super) fn write(&self, folder: &Path, value: &str) -> Result<(), SwapError> {
        let path = folder.join(&self.name);
        let tried = format!("write {value} to {}", path.display());
        fs::write(&path, value).map_err(step(tried.clone()))?;
        let now = fs::read_to_string(&path).unwrap_or_default();
        let is_set = now.trim() == value;
        is_set
            .then_some(())
            .ok_or_else(|| impossible(tried, format!("it is {}", now.trim())))
    }
}

/// Fails if the kernel lacks a compressor. zswap itself would silently take another one when it is first enabled.
pub(super) fn require_compressor(name: &str) -> Result<(), SwapError> {
    let is_listed = || {
        let crypto = fs::read_to_string("/proc/crypto").unwrap_or_default();
        let fields = crypto.lines().filter_map(|line| line.split_once(':'));
        let mut names = fields.filter(|(key, _)| key.trim() == "name");
        names.any(|(_, known)| known.trim() == name)
    };
    if is_listed() {
        return Ok(());
    }
    // It may be a module.
    let mut modprobe = std::process::Command::new("modprobe");
    modprobe.args(["--quiet", "--", name]).status().ok();
    is_listed().then_some(()).ok_or_else(|| {
        let why = "this kernel lacks it; /proc/crypto lists what it has, such as lzo, lz4, zstd or deflate";
        impossible(format!("compress by {name}"), why)
    })
}

/// The file or device behind zswap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwapFile {
    pub(crate) path: PathBuf,
    uuid: Uuid,
    /// 0 for a device.
    pub(super) bytes: u64,
}

impl SwapFile {
    /// Names a new file of this size, or with a size of 0 a device that has a swap header.
    pub(crate) fn new(path: &Path, bytes: u64) -> Result<Self, SwapError> {
        let tried = format!("use {} as swap", path.display());
        let refuse = |why: &str| Err(impossible(tried.clone(), why));
        let bytes = bytes & !(arch::page_bytes() - 1);
        // The kernel lists it by its canonical path.
        let path = match (path.parent(), path.file_name()) {
            (Some(folder), Some(name)) if bytes > 0 => {
                folder.canonicalize().map(|folder| folder.join(name))
            }
            _ => path.canonicalize(),
        };
        let path = path.map_err(step(tried.clone()))?;
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'\\';
        if !path.as_os_str().as_encoded_bytes().iter().all(is_plain) {
            return refuse("its path must be of ASCII letters, digits and marks, without blanks");
        }
        if bytes > 0 {
            if path.symlink_metadata().is_ok() {
                return refuse(
                    "it exists; name another by --file, or remove it if nothing uses it",
                );
            }
            let uuid = Uuid::new().map_err(step("make a UUID"))?;
            return Ok(Self { path, uuid, bytes });
        }
        match first_page(&path).ok().as_deref().and_then(header_uuid) {
            Some(uuid) => Ok(Self { path, uuid, bytes }),
            None => refuse("it has no swap header; `mkswap` makes one, and erases what is there"),
        }
    }

    /// Parses the words of a line of the note.
    pub(super) fn parse(words: &[&str]) -> Option<Self> {
        let [uuid, bytes, path] = words else {
            return None;
        };
        Some(Self {
            path: Path::new(path).is_absolute().then(|| path.into())?,
            uuid: Uuid::parse(uuid)?,
            bytes: bytes.parse().ok()?,
        })
    }

    pub(super) fn line(&self) -> String {
        format!("file {} {} {}", self.uuid, self.bytes, self.path.display())
    }

    /// Makes the file: its blocks, which must all exist, and its header. A device stays as it is.
    pub(crate) fn make(&self) -> Result<(), SwapError> {
        if self.bytes == 0 {
            return Ok(());
        }
        let size = format_bytes(self.bytes);
        let tried = format!("make a swap file of {size} at {}", self.path.display());
        self.check_place()
            .map_err(|why| impossible(tried.clone(), why))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&self.path).map_err(step(tried.clone()))?;
        // btrfs would copy on write. Other file systems may not know the flag.
        if let Ok(flags) = ioctl_getflags(&file) {
            ioctl_setflags(&file, flags | IFlags::NOCOW).ok();
        }
        fallocate(&file, FallocateFlags::empty(), 0, self.bytes)
            .map_err(|error| step(tried.clone())(error.into()))?;
        write_header(&self.path, self.bytes, self.uuid).map_err(step(tried))
    }

    /// Returns the reason why the file system cannot hold the file.
    fn check_place(&self) -> Result<(), String> {
        let folder = self.path.parent().unwrap_or(&self.path);
        let facts = statfs(folder).and_then(|facts| Ok((facts.f_type, statvfs(folder)?)));
        let (magic, facts) = facts.map_err(|error| error.to_string())?;
        if let Some((_, kind)) = NO_SWAP.iter().find(|(no_swap, _)| *no_swap == magic) {
            let else_where =
                "name a file on ext4, XFS or btrfs by --file, or a partition by --device";
            return Err(format!("{kind} cannot hold swap; {else_where}"));
        }
        let free = facts.f_bavail.saturating_mul(facts.f_frsize);
        let is_enough = free >= self.bytes.saturating_add(DISK_RESERVE);
        let [free, kept] = [free, DISK_RESERVE].map(format_bytes);
        let why =
            format!("{free} are free, and {kept} must stay; name a smaller size or another disk");
        is_enough.then_some(()).ok_or(why)
    }

    /// Takes it out of use and removes the file. Returns whether it was ours.
    pub(super) fn take_down(&self) -> Result<bool, SwapError> {
        let page = first_page(&self.path).unwrap_or_default();
        // A file that is empty, or whose header was not written, was left unfinished.
        let is_blank = self.path.is_file() && page.iter().all(|byte| *byte == 0);
        let is_ours = !page.is_empty() && header_uuid(&page) == Some(self.uuid);
        if !is_ours && (!is_blank || is_swap(&self.path)) {
            return Ok(false);
        }
        if is_swap(&self.path) {
            swap_off(&self.path)?;
        }
        if self.bytes > 0 {
            fs::remove_file(&self.path).map_err(step(format!("remove {}", self.path.display())))?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_is_made_removed_and_known_by_its_header() {
        // Not in /tmp, which may be tmpfs.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
        let path = folder.path().join("swap");
        let file = SwapFile::new(&path, 1 << 20).expect("named");
        let words = file.line();
        let words: Vec<&str> = words.split(' ').skip(1).collect();
        assert_eq!(SwapFile::parse(&words), Some(file.clone()));
        let other = SwapFile::new(&path, 1 << 20).expect("named");
        if let Err(error) = file.make() {
            println!("SKIP a_file_is_made_removed_and_known_by_its_header: {error}");
            return;
        }
        let found = fs::metadata(&path).expect("made");
        assert_eq!((found.len(), found.mode() & 0o777), (1 << 20, 0o600));
        assert!(found.blocks() * 512 >= 1 << 20, "no holes");
        assert!(!other.take_down().expect("not ours") && path.exists());
        assert!(file.take_down().expect("ours") && !path.exists());
        fs::write(&path, vec![b'x'; 5000]).expect("written");
        assert!(!file.take_down().expect("another's") && path.exists());
        for bad in [path, folder.path().join("a b")] {
            let refused = SwapFile::new(&bad, 1 << 20);
            assert!(matches!(refused, Err(SwapError::Impossible { .. })));
        }
    }
}
