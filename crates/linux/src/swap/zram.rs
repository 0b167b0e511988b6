//! Compressed swap in memory, set up and taken away again.
//!
//! Problem: it is taken away by another command, maybe after a crash, and swap that somebody else made
//! must never be touched, though device numbers are used again.
//!
//! Approach: a device is known by the UUID in its swap header. Name, UUID and size are noted in the
//! state directory before the device is sized, so that whatever a killed command leaves behind is
//! found by the next: a device that is noted and carries the noted UUID is ours; one that is sized as
//! noted, has an empty first page and is nobody's swap was not finished; any other is left alone, and
//! struck from the note. The device is added for the purpose, where the kernel can, and removed with
//! it. A limit keeps its pool from taking more memory than the swap's size, or half the machine.
//!
//! Limits: killed between adding a device and noting it, an empty device is left, which takes no
//! memory.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use isotherm_engine::PAGE_SIZE;
use thiserror::Error;

use crate::meminfo::Meminfo;
use crate::privileges;
use crate::state::{self, StateError};

/// Where it is noted which devices are ours, in the state directory.
const NOTE: &str = "zram-swap";
/// Above the priority that other swap has by default, so that zram is used first.
const PRIORITY: i32 = 100;
const CONTROL: &str = "/sys/class/zram-control";

/// Why swap could not be set up or taken away.
#[derive(Debug, Error)]
pub enum SwapError {
    /// A step failed.
    #[error("cannot {what}: {source}")]
    Step {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Nothing can be noted.
    #[error(transparent)]
    State(#[from] StateError),
    /// There is no zram.
    #[error(
        "this kernel has no zram (/sys/block has no zram device, and `modprobe zram` did not bring one)"
    )]
    NoZram,
    /// Somebody else would have to do it.
    #[error("cannot set up or take away swap without CAP_SYS_ADMIN; run as root")]
    NotPermitted,
    /// All devices are in use, and no more can be added.
    #[error("all zram devices are in use, and another could not be added: {0}")]
    NoFreeDevice(io::Error),
    /// Nothing to take away.
    #[error("no swap was set up by isotherm here (none is noted in /run/isotherm/{NOTE})")]
    NotOurs,
    /// This device is not to be taken away.
    #[error(
        "{0} was not set up by isotherm, or has been taken away already (it is not noted in /run/isotherm/{NOTE})"
    )]
    NotOurDevice(PathBuf),
    /// Too small or too large.
    #[error("{0} bytes of swap: at least 1 MiB, at most 16 TiB is possible")]
    Size(u64),
}

fn step(what: impl Into<String>) -> impl FnOnce(io::Error) -> SwapError {
    let what = what.into();
    |source| SwapError::Step { what, source }
}

/// What became of a device that was noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenDown {
    pub device: PathBuf,
    /// The size that it was made with; 0 where an older version noted none.
    pub bytes: u64,
    /// It is not what was noted: gone, or somebody else's by now. Nothing was done to it.
    pub was_not_ours: bool,
}

/// A device that is noted as ours.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Noted {
    /// `zram1`.
    name: String,
    /// In its swap header.
    uuid: Uuid,
    bytes: u64,
    /// It was added for us.
    added: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uuid([u8; 16]);

impl Uuid {
    /// The kernel makes one at each reading.
    fn new() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        Self::parse(&text).ok_or_else(|| io::Error::other(format!("no UUID: {text:?}")))
    }

    fn parse(text: &str) -> Option<Self> {
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

impl Noted {
    /// A line of the note. Older versions noted the path alone, and wrote no UUID into the header.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let name = name.strip_prefix("/dev/").unwrap_or(name);
        let number = name.strip_prefix("zram")?;
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Some(Self {
            name: name.to_owned(),
            uuid: words.next().map_or(Some(Uuid::default()), Uuid::parse)?,
            bytes: words.next().map_or(Some(0), |word| word.parse().ok())?,
            added: words.next() == Some("added"),
        })
    }

    fn line(&self) -> String {
        let Self {
            name, uuid, bytes, ..
        } = self;
        let added = if self.added { " added" } else { "" };
        format!("{name} {uuid} {bytes}{added}\n")
    }

    fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    fn sys(&self, file: &str) -> PathBuf {
        Path::new("/sys/block").join(&self.name).join(file)
    }

    fn set(&self, file: &str, value: &str) -> Result<(), SwapError> {
        let path = self.sys(file);
        fs::write(&path, value).map_err(step(format!("write {value} to {}", path.display())))
    }

    fn state(&self) -> State {
        let disksize = fs::read_to_string(self.sys("disksize"));
        let Some(bytes) = disksize.ok().and_then(|text| text.trim().parse().ok()) else {
            return State::Gone;
        };
        let first = File::open(self.device()).and_then(|file| {
            let mut page = [0; PAGE_SIZE as usize];
            file.read_exact_at(&mut page, 0).map(|()| page)
        });
        let is_swap = is_swap(&self.device());
        match (bytes, first) {
            (0, _) => State::Unsized,
            (_, Ok(page)) if header_uuid(&page) == Some(self.uuid) => State::Ours { is_swap },
            // Sized, and then we were killed.
            (bytes, Ok(page))
                if bytes == self.bytes && page == [0; PAGE_SIZE as usize] && !is_swap =>
            {
                State::Ours { is_swap }
            }
            _ => State::Anothers,
        }
    }

    /// Undoes what has been done to it, however far that went. Says whether it was ours.
    fn take_down(&self) -> Result<bool, SwapError> {
        let device = self.device();
        let is_ours = match self.state() {
            State::Gone | State::Anothers => return Ok(false),
            State::Unsized => true,
            State::Ours { is_swap } => {
                if is_swap {
                    swap_off(&device).map_err(step(format!("swap off {}", device.display())))?;
                }
                // The kernel refuses while anybody has it open.
                self.set("reset", "1")?;
                true
            }
        };
        if self.added {
            let number = self.name.trim_start_matches("zram");
            fs::write(Path::new(CONTROL).join("hot_remove"), number)
                .map_err(step(format!("remove {}", device.display())))?;
        }
        Ok(is_ours)
    }

    /// Sizes it and puts it to use.
    fn set_up(&self) -> Result<(), SwapError> {
        let device = self.device();
        self.set("mem_limit", &limit(self.bytes).to_string())?;
        prefer_lz4(&self.sys("comp_algorithm"));
        fs::write(self.sys("disksize"), self.bytes.to_string()).map_err(step(format!(
            "size {} (its compression is {}; is the kernel's module for that there?)",
            device.display(),
            compression(&self.sys("comp_algorithm"))
        )))?;
        write_header(&device, self.bytes, self.uuid)
            .map_err(step(format!("write a swap header to {}", device.display())))?;
        swap_on(&device).map_err(step(format!("swap on {}", device.display())))
    }
}

/// How a noted device is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no such device.
    Gone,
    /// It has no size, so nobody uses it.
    Unsized,
    /// Isotherm set it up.
    Ours { is_swap: bool },
    /// Somebody else has it by now.
    Anothers,
}

/// Makes `bytes` of compressed swap in memory. Returns the device. What an earlier call left
/// unfinished is cleaned up first.
pub fn set_up_zram(bytes: u64) -> Result<PathBuf, SwapError> {
    if !(1 << 20..=1 << 44).contains(&bytes) {
        return Err(SwapError::Size(bytes));
    }
    require_permission()?;
    let mut note = Note::open()?;
    for noted in note.read() {
        if !matches!(noted.state(), State::Ours { is_swap: true }) {
            noted.take_down()?;
            note.strike(&noted)?;
        }
    }
    let (name, added) = free_device()?;
    let noted = Noted {
        name,
        uuid: Uuid::new().map_err(step("make a UUID"))?,
        bytes: bytes & !(PAGE_SIZE - 1),
        added,
    };
    note.add(&noted)?;
    if let Err(error) = noted.set_up() {
        // What cannot be undone now stays noted.
        if noted.take_down().is_ok() {
            note.strike(&noted)?;
        }
        return Err(error);
    }
    Ok(noted.device())
}

/// Takes away all that [`set_up_zram`] made, here or in earlier runs.
pub fn take_down_all_zram() -> Result<Vec<TakenDown>, SwapError> {
    require_permission()?;
    let mut note = Note::open()?;
    let all = note.read();
    if all.is_empty() {
        return Err(SwapError::NotOurs);
    }
    all.iter().map(|noted| note.take_down(noted)).collect()
}

/// Takes away the device that a call of [`set_up_zram`] returned, and no other.
pub fn take_down_zram(device: &Path) -> Result<(), SwapError> {
    let mut note = Note::open()?;
    let not_ours = || SwapError::NotOurDevice(device.to_owned());
    let all = note.read();
    let noted = all.iter().find(|noted| noted.device() == device);
    let done = note.take_down(noted.ok_or_else(not_ours)?)?;
    if done.was_not_ours {
        return Err(not_ours());
    }
    Ok(())
}

/// Said first: without it, some step fails for a reason that misleads.
fn require_permission() -> Result<(), SwapError> {
    let may = privileges::may_swap();
    may.then_some(()).ok_or(SwapError::NotPermitted)
}

/// The note, locked for as long as it is open: one command at a time sets up or takes away.
#[derive(Debug)]
struct Note {
    path: PathBuf,
    _lock: File,
}

impl Note {
    fn open() -> Result<Self, SwapError> {
        let path = state::directory()?.join(NOTE);
        let lock = path.with_extension("lock");
        let locked = private(OpenOptions::new().create(true).truncate(false))
            .open(&lock)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(step(format!("lock {}", lock.display())))?;
        Ok(Self {
            path,
            _lock: locked,
        })
    }

    fn read(&self) -> Vec<Noted> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().filter_map(Noted::parse).collect()
    }

    fn add(&mut self, noted: &Noted) -> Result<(), SwapError> {
        let mut all = self.read();
        all.retain(|other| other.name != noted.name);
        all.push(noted.clone());
        self.write(&all)
    }

    fn strike(&mut self, noted: &Noted) -> Result<(), SwapError> {
        let mut all = self.read();
        all.retain(|other| other != noted);
        self.write(&all)
    }

    fn take_down(&mut self, noted: &Noted) -> Result<TakenDown, SwapError> {
        let was_ours = noted.take_down()?;
        self.strike(noted)?;
        Ok(TakenDown {
            device: noted.device(),
            bytes: noted.bytes,
            was_not_ours: !was_ours,
        })
    }

    /// Writes it whole or not at all.
    fn write(&self, all: &[Noted]) -> Result<(), SwapError> {
        let cannot = || step(format!("note it in {}", self.path.display()));
        if all.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot()(error)),
                _ => Ok(()),
            };
        }
        let text: String = all.iter().map(Noted::line).collect();
        let new = self.path.with_extension("new");
        private(OpenOptions::new().create(true).truncate(true))
            .open(&new)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&new, &self.path))
            .map_err(cannot())
    }
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
}

/// The most memory that a device of this size may take.
fn limit(bytes: u64) -> u64 {
    let half = Meminfo::read().get("MemTotal").map_or(bytes, |all| all / 2);
    bytes.min(half)
}

/// The algorithm that a device compresses by, as the kernel marks it: `lzo [lzo-rle] lz4`.
fn compression(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let marked = text.split_whitespace().find(|word| word.starts_with('['));
    marked.map_or("unknown".into(), |word| word.replace(['[', ']'], ""))
}

/// The algorithm that a zram device compresses by.
pub fn compression_of(device: &Path) -> String {
    let sys = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
    compression(&sys.join("comp_algorithm"))
}

/// Chooses LZ4 where the kernel has it: it brings pages back in two thirds of the time that LZO-RLE
/// takes, which is what targets wait for. Only where the kernel's own default is an LZO.
fn prefer_lz4(file: &Path) {
    let offered = fs::read_to_string(file).unwrap_or_default();
    let has_lz4 = offered.split_whitespace().any(|word| word == "lz4");
    if has_lz4 && compression(file).starts_with("lzo") {
        // The default works as well.
        fs::write(file, "lz4").ok();
    }
}

/// A zram device that nobody uses, and whether it was added for us.
fn free_device() -> Result<(String, bool), SwapError> {
    if !Path::new(CONTROL).exists() {
        // Without zram-control the module is not there.
        std::process::Command::new("modprobe")
            .arg("zram")
            .status()
            .ok();
    }
    match fs::read_to_string(Path::new(CONTROL).join("hot_add")) {
        Ok(number) => Ok((format!("zram{}", number.trim()), true)),
        Err(error) => match unused()? {
            Some(name) => Ok((name, false)),
            None if error.kind() == io::ErrorKind::NotFound => Err(SwapError::NoZram),
            None => Err(SwapError::NoFreeDevice(error)),
        },
    }
}

fn unused() -> Result<Option<String>, SwapError> {
    let entries = fs::read_dir("/sys/block").map_err(step("list /sys/block"))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("zram"))
        .filter(|name| {
            fs::read_to_string(format!("/sys/block/{name}/disksize"))
                .is_ok_and(|size| size.trim() == "0")
        })
        .collect();
    names.sort();
    Ok(names.into_iter().next())
}

/// Where the UUID is in a header (include/linux/swap.h, `union swap_header`).
const UUID_AT: std::ops::Range<usize> = 1036..1052;
const MAGIC: &[u8] = b"SWAPSPACE2";

/// Writes what mkswap(8) writes.
fn write_header(device: &Path, bytes: u64, uuid: Uuid) -> io::Result<()> {
    let mut page = vec![0u8; PAGE_SIZE as usize];
    let last_page = u32::try_from(bytes / PAGE_SIZE - 1).map_err(io::Error::other)?;
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    page[UUID_AT].copy_from_slice(&uuid.0);
    page[PAGE_SIZE as usize - MAGIC.len()..].copy_from_slice(MAGIC);
    let file = OpenOptions::new().write(true).open(device)?;
    file.write_all_at(&page, 0)?;
    file.sync_all()
}

/// The UUID of a first page, if that is a swap header.
fn header_uuid(page: &[u8; PAGE_SIZE as usize]) -> Option<Uuid> {
    let uuid = page[UUID_AT].try_into().expect("16 bytes");
    page.ends_with(MAGIC).then_some(Uuid(uuid))
}

/// Whether it is swapped to.
fn is_swap(device: &Path) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swaps
        .lines()
        .any(|line| line.split_whitespace().next().map(Path::new) == Some(device))
}

fn swap_on(device: &Path) -> io::Result<()> {
    const PREFER: i32 = 0x8000;
    let path = c_path(device)?;
    // SAFETY: a valid path.
    let result = unsafe { libc::swapon(path.as_ptr(), PREFER | PRIORITY) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn swap_off(device: &Path) -> io::Result<()> {
    let path = c_path(device)?;
    // SAFETY: a valid path.
    let result = unsafe { libc::swapoff(path.as_ptr()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
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
    fn a_note_says_which_device_by_which_uuid() {
        let noted = Noted {
            name: "zram7".into(),
            uuid: Uuid::parse("01234567-89ab-cdef-0123-456789abcdef").expect("a UUID"),
            bytes: 2 << 30,
            added: true,
        };
        assert_eq!(Noted::parse(&noted.line()), Some(noted.clone()));
        let kept = Noted {
            added: false,
            ..noted
        };
        assert_eq!(Noted::parse(&kept.line()), Some(kept));
        let old = Noted::parse("/dev/zram0").expect("as older versions noted");
        assert_eq!((old.name.as_str(), old.uuid), ("zram0", Uuid::default()));
        for bad in [
            "",
            "sda 1",
            "/dev/zram",
            "zram0/../../sda",
            "zram1 xyz 5",
            "zram1 0 5",
        ] {
            assert_eq!(Noted::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_header_is_known_by_its_uuid() {
        let path = std::env::temp_dir().join(format!("isotherm-header-{}", std::process::id()));
        fs::write(&path, [0; 8192]).expect("a file");
        let uuid = Uuid::new().expect("the kernel makes them");
        assert_ne!(uuid, Uuid::new().expect("another"));
        write_header(&path, 8192, uuid).expect("written");
        let bytes = fs::read(&path).expect("ours");
        fs::remove_file(&path).expect("ours");
        let page: [u8; 4096] = bytes[..4096].try_into().expect("a page");
        assert_eq!(header_uuid(&page), Some(uuid));
        assert_eq!(header_uuid(&[0; 4096]), None);
    }
}
