//! Sets up compressed swap in memory, and removes it.
//!
//! Problem: another command removes the swap, maybe after a crash. Swap made by others must never be touched, although
//! device numbers are reused.
//!
//! Approach: a device is identified by the UUID in its swap header. Name, UUID and size are noted in the state
//! directory before the device is sized. So the next command finds what a killed command left behind. A noted device
//! that carries the noted UUID is ours. A device that is sized as noted, has an empty first page and is not in use as
//! swap was left unfinished. Any other is left alone and struck from the note. The device is added for the purpose if
//! the kernel can do that, and removed with the swap. A limit keeps its pool from taking more memory than the swap's
//! size, or half the machine.
//!
//! Limits: a command killed between adding a device and noting it leaves an empty device, which takes no memory.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use crate::arch;
use crate::meminfo::Meminfo;
use crate::privileges;
use crate::state::{self, StateError};
use crate::system_call::checked;
use crate::text;

/// Name of the file in the state directory that lists our devices.
const NOTE: &str = "zram-swap";
/// Priority of the swap: above the default of other swap, so that zram is used first.
const PRIORITY: i32 = 100;
/// Tries to take a device out of use, and the pause between them.
const SWAP_OFF_TRIES: u32 = 5;
const SWAP_OFF_PAUSE: Duration = Duration::from_millis(200);
const CONTROL: &str = "/sys/class/zram-control";

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
    #[error("no swap was set up by isotherm here (none is noted in /run/isotherm/{NOTE})")]
    NotOurs,
    #[error(
        "{0} was not set up by isotherm, or has been taken away already (it is not noted in /run/isotherm/{NOTE})"
    )]
    NotOurDevice(PathBuf),
    #[error("{0} bytes of swap: at least 1 MiB, at most 16 TiB is possible")]
    Size(u64),
}

fn step(what: impl Into<String>) -> impl FnOnce(io::Error) -> SwapError {
    let what = what.into();
    |source| SwapError::Step { what, source }
}

/// Result of removing a noted device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenDown {
    pub device: PathBuf,
    /// Size with which the device was made; 0 if an older version noted none.
    pub bytes: u64,
    /// Whether the device no longer matches the note: it is gone, or belongs to another user by now. It was left
    /// unchanged.
    pub was_not_ours: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Noted {
    /// Device name, such as `zram1`.
    name: String,
    /// UUID in the swap header.
    uuid: Uuid,
    bytes: u64,
    /// Whether the device was added for us.
    added: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uuid([u8; 16]);

impl Uuid {
    /// Reads a new UUID: the kernel generates one at each read.
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
    /// Parses a line of the note. Older versions noted the path alone, and wrote no UUID into the header.
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
        let Some(bytes) = text::number::<u64>(self.sys("disksize")) else {
            return State::Gone;
        };
        let first = File::open(self.device()).and_then(|file| {
            let mut page = vec![0; arch::page_bytes() as usize];
            file.read_exact_at(&mut page, 0).map(|()| page)
        });
        let is_swap = is_swap(&self.device());
        match (bytes, first) {
            (0, _) => State::Unsized,
            (_, Ok(page)) if header_uuid(&page) == Some(self.uuid) => State::Ours { is_swap },
            // The device was sized before the command was killed.
            (bytes, Ok(page))
                if bytes == self.bytes && page.iter().all(|byte| *byte == 0) && !is_swap =>
            {
                State::Ours { is_swap }
            }
            _ => State::Anothers,
        }
    }

    /// Reverts the set-up, however far it went. Returns whether the device was ours.
    fn take_down(&self) -> Result<bool, SwapError> {
        let device = self.device();
        let is_ours = match self.state() {
            State::Gone | State::Anothers => return Ok(false),
            State::Unsized => true,
            State::Ours { is_swap } => {
                if is_swap {
                    swap_off(&device).map_err(step(format!("swap off {}", device.display())))?;
                }
                // The kernel refuses while a process has the device open.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The device does not exist.
    Gone,
    /// The device has no size, so it is unused.
    Unsized,
    /// The device was set up by Isotherm.
    Ours { is_swap: bool },
    /// The device belongs to another user by now.
    Anothers,
}

/// Makes `bytes` of compressed swap in memory and returns the device. First cleans up what an earlier call left
/// unfinished.
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
        bytes: bytes & !(arch::page_bytes() - 1),
        added,
    };
    note.add(&noted)?;
    if let Err(error) = noted.set_up() {
        // A device that cannot be reverted now stays noted.
        if noted.take_down().is_ok() {
            note.strike(&noted)?;
        }
        return Err(error);
    }
    Ok(noted.device())
}

/// Removes all devices that [`set_up_zram`] made, here or in earlier runs.
pub fn take_down_all_zram() -> Result<Vec<TakenDown>, SwapError> {
    require_permission()?;
    let mut note = Note::open()?;
    let all = note.read();
    if all.is_empty() {
        return Err(SwapError::NotOurs);
    }
    all.iter().map(|noted| note.take_down(noted)).collect()
}

/// Removes the device that a call of [`set_up_zram`] returned, and no other.
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

/// Checks the privilege first: without it, some step fails for a misleading reason.
fn require_permission() -> Result<(), SwapError> {
    let may = privileges::may_swap();
    may.then_some(()).ok_or(SwapError::NotPermitted)
}

/// The note, locked while it is open: only one command at a time sets up or removes swap.
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

    /// Writes the note atomically.
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

/// Returns the maximum memory that a device of this size may take.
fn limit(bytes: u64) -> u64 {
    let half = Meminfo::read().get("MemTotal").map_or(bytes, |all| all / 2);
    bytes.min(half)
}

/// Returns the algorithm by which a device compresses, as the kernel marks it: `lzo [lzo-rle] lz4`.
fn compression(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let marked = text.split_whitespace().find(|word| word.starts_with('['));
    marked.map_or("unknown".into(), |word| word.replace(['[', ']'], ""))
}

/// Returns the algorithm by which a zram device compresses.
pub fn compression_of(device: &Path) -> String {
    let sys = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
    compression(&sys.join("comp_algorithm"))
}

/// Chooses LZ4 if the kernel has it: it reads pages back in two thirds of the time of LZO-RLE, for which targets wait.
/// Only replaces the kernel's own default if that is an LZO.
fn prefer_lz4(file: &Path) {
    let offered = fs::read_to_string(file).unwrap_or_default();
    let has_lz4 = offered.split_whitespace().any(|word| word == "lz4");
    if has_lz4 && compression(file).starts_with("lzo") {
        // A failure is ignored: the default works as well.
        fs::write(file, "lz4").ok();
    }
}

/// Returns an unused zram device, and whether it was added for us.
fn free_device() -> Result<(String, bool), SwapError> {
    if !Path::new(CONTROL).exists() {
        // Without zram-control the module is not loaded.
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
        .filter(|name| text::number::<u64>(format!("/sys/block/{name}/disksize")) == Some(0))
        .collect();
    names.sort();
    Ok(names.into_iter().next())
}

/// Position of the UUID in a header (include/linux/swap.h, `union swap_header`).
const UUID_AT: std::ops::Range<usize> = 1036..1052;
const MAGIC: &[u8] = b"SWAPSPACE2";

/// Writes the same swap header as mkswap(8).
fn write_header(device: &Path, bytes: u64, uuid: Uuid) -> io::Result<()> {
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

/// Returns the UUID of a header, which takes a page of the kernel.
fn header_uuid(page: &[u8]) -> Option<Uuid> {
    let uuid = page[UUID_AT].try_into().expect("16 bytes");
    page.ends_with(MAGIC).then_some(Uuid(uuid))
}

/// Whether the device is in use as swap.
fn is_swap(device: &Path) -> bool {
    super::areas().iter().any(|area| Path::new(area) == device)
}

fn swap_on(device: &Path) -> io::Result<()> {
    const PREFER: i32 = 0x8000;
    let path = c_path(device)?;
    // SAFETY: a valid path.
    checked(unsafe { libc::swapon(path.as_ptr(), PREFER | PRIORITY) }).map(drop)
}

/// Takes a device out of use. The kernel reads its pages back. That may fail for want of memory while a process whose
/// control group is at its limit ends, so it is tried again.
fn swap_off(device: &Path) -> io::Result<()> {
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
    fn a_note_says_which_device_by_which_uuid() {
        let mut noted = Noted {
            name: "zram7".into(),
            uuid: Uuid::parse("01234567-89ab-cdef-0123-456789abcdef").expect("a UUID"),
            bytes: 2 << 30,
            added: true,
        };
        assert_eq!(Noted::parse(&noted.line()), Some(noted.clone()));
        noted.added = false;
        assert_eq!(Noted::parse(&noted.line()), Some(noted));
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
