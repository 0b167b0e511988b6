//! Areas of swap: their headers, and how the kernel takes them into use.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use thiserror::Error;

use crate::arch;
use crate::state::StateError;
use crate::system_call::checked;

/// Highest priority of an area (SWAP_FLAG_PRIO_MASK).
pub(crate) const PRIORITY_MAX: i32 = 0x7fff;
/// Tries to take a device out of use, and the pause between them.
const SWAP_OFF_TRIES: u32 = 5;
const SWAP_OFF_PAUSE: Duration = Duration::from_millis(200);

/// An area of swap in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SwapArea {
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub path: PathBuf,
    /// Areas of a higher priority are used first.
    pub priority: i32,
}

impl SwapArea {
    /// Returns all areas in use, in the order in which the kernel fills them (`/proc/swaps`).
    pub fn all() -> Vec<Self> {
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let area = |line: &str| {
            let mut words = line.split_whitespace();
            let path = words.next()?.into();
            let priority = words.nth(3)?.parse().ok()?;
            Some(Self { path, priority })
        };
        let mut all: Vec<Self> = swaps.lines().skip(1).filter_map(area).collect();
        all.sort_by_key(|area| std::cmp::Reverse(area.priority));
        all
    }

    pub(crate) fn is_zram(&self) -> bool {
        self.path
            .as_os_str()
            .as_encoded_bytes()
            .starts_with(b"/dev/zram")
    }

    /// Whether all swap in use is compressed memory (zram), which is read at once and page by page.
    pub fn are_in_memory() -> bool {
        let areas = Self::all();
        !areas.is_empty() && areas.iter().all(Self::is_zram)
    }

    /// Returns the algorithm by which a zram device compresses.
    pub fn compression_of(device: &Path) -> String {
        let sys = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
        compression(&sys.join("comp_algorithm"))
    }
}

/// Returns the algorithm by which a device compresses, as the kernel marks it: `lzo [lzo-rle] lz4`.
pub(super) fn compression(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let marked = text.split_whitespace().find(|word| word.starts_with('['));
    marked.map_or("unknown".into(), |word| word.replace(['[', ']'], ""))
}

/// Reason why swap could not be set up or removed.
#[derive(Debug, Error)]
pub enum SwapError {
    #[error("cannot {what}: {source}")]
    Step { what: String, source: io::Error },
    #[error(transparent)]
    State(#[from] StateError),
    #[error(
        "this kernel has no zram (/sys/block has no zram device, and `modprobe zram` did not bring one)"
    )]
    NoZram,
    #[error("cannot set up or take away swap without CAP_SYS_ADMIN; run as root")]
    NotPermitted,
    #[error("all zram devices are in use, and another could not be added: {0}")]
    NoFreeDevice(io::Error),
    #[error("no swap was set up by isotherm here (none is noted in /run/isotherm/zram-swap)")]
    NotOurs,
    #[error(
        "{0} was not set up by isotherm, or has been taken away already (it is not noted in /run/isotherm/zram-swap)"
    )]
    NotOurDevice(PathBuf),
    #[error("{0} bytes of swap: at least 1 MiB, at most 16 TiB is possible")]
    Size(u64),
    #[error("cannot {tried}: {why}")]
    Impossible { tried: String, why: String },
}

pub(crate) fn impossible(tried: impl Into<String>, why: impl Into<String>) -> SwapError {
    SwapError::Impossible {
        tried: tried.into(),
        why: why.into(),
    }
}

pub(super) fn step(what: impl Into<String>) -> impl FnOnce(io::Error) -> SwapError {
    let what = what.into();
    |source| SwapError::Step { what, source }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Uuid([u8; 16]);

impl Uuid {
    /// Reads a new UUID: the kernel generates one at each read.
    pub(super) fn new() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        Self::parse(&text).ok_or_else(|| io::Error::other(format!("no UUID: {text:?}")))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let hex: String = text.trim().chars().filter(|c| *c != '-').collect();
        let number = u128::from_str_radix(&hex, 16).ok()?;
        (hex.len() == 32).then_some(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Position of the UUID in a header (include/linux/swap.h, `union swap_header`).
const UUID_AT: std::ops::Range<usize> = 1036..1052;
const MAGIC: &[u8] = b"SWAPSPACE2";

/// Writes the same swap header as mkswap(8).
pub(super) fn write_header(device: &Path, bytes: u64, uuid: Uuid) -> io::Result<()> {
    let mut page = vec![0u8; arch::page_bytes() as usize];
    let last_page = bytes / arch::page_bytes() - 1;
    let last_page = u32::try_from(last_page).map_err(io::Error::other)?;
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    page[UUID_AT].copy_from_slice(&uuid.0);
    let magic_at = page.len() - MAGIC.len();
    page[magic_at..].copy_from_slice(MAGIC);
    let file = OpenOptions::new().write(true).open(device)?;
    file.write_all_at(&page, 0)?;
    file.sync_all()
}

/// Reads the first page of an area.
pub(super) fn first_page(path: &Path) -> io::Result<Vec<u8>> {
    let mut page = vec![0; arch::page_bytes() as usize];
    fs::File::open(path)?.read_exact_at(&mut page, 0)?;
    Ok(page)
}

/// Returns the UUID of a header, which takes a page of the kernel.
pub(super) fn header_uuid(page: &[u8]) -> Option<Uuid> {
    let uuid = page[UUID_AT].try_into().expect("16 bytes");
    page.ends_with(MAGIC).then_some(Uuid(uuid))
}

/// Whether the device or file is in use as swap.
pub(super) fn is_swap(path: &Path) -> bool {
    SwapArea::all().iter().any(|area| area.path == path)
}

/// Takes an area into use. Without a priority the kernel uses it after all others.
pub(crate) fn swap_on(area: &Path, priority: Option<i32>) -> Result<(), SwapError> {
    const PREFER: i32 = 0x8000;
    let flags = priority.map_or(0, |priority| PREFER | priority & PRIORITY_MAX);
    // SAFETY: a valid path.
    let done = c_path(area).and_then(|path| checked(unsafe { libc::swapon(path.as_ptr(), flags) }));
    done.map(drop).map_err(|source| {
        let tried = format!("swap on {}", area.display());
        match source.raw_os_error() {
            // A file system without swap files, copy on write, or holes.
            Some(libc::EINVAL) => impossible(
                tried,
                "its file system holds no swap; name a file on ext4 or XFS by --file, or a partition by --device",
            ),
            _ => step(tried)(source),
        }
    })
}

/// Takes a device out of use. The kernel reads its pages back. That may fail for want of memory while a process whose
/// control group is at its limit ends, so it is tried again.
pub(crate) fn swap_off(device: &Path) -> Result<(), SwapError> {
    try_swap_off(device).map_err(step(format!("swap off {}", device.display())))
}

fn try_swap_off(device: &Path) -> io::Result<()> {
    let path = c_path(device)?;
    let mut nr_tries = 0;
    loop {
        // SAFETY: a valid path.
        let Err(error) = checked(unsafe { libc::swapoff(path.as_ptr()) }) else {
            return Ok(());
        };
        nr_tries += 1;
        if error.raw_os_error() != Some(libc::ENOMEM) || nr_tries == SWAP_OFF_TRIES {
            return Err(error);
        }
        thread::sleep(SWAP_OFF_PAUSE);
    }
}

fn c_path(path: &Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_known_by_its_uuid() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path();
        let uuid = Uuid::new().expect("the kernel makes them");
        assert_ne!(uuid, Uuid::new().expect("another"));
        write_header(path, 8192, uuid).expect("written");
        let page: [u8; 4096] = fs::read(path).expect("ours").try_into().expect("a page");
        assert_eq!(header_uuid(&page), Some(uuid));
        assert_eq!(header_uuid(&[0; 4096]), None);
    }
}
