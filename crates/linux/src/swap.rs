//! Swap: how much there is, and zram set up for it and taken away again.
//!
//! What is set up is written down (in `/run/isotherm`), so that it can be undone later, by another
//! run, and so that swap which somebody else made is never touched.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use isotherm_engine::{PAGE_SIZE, Refusal};
use thiserror::Error;

use crate::meminfo::Meminfo;

/// Where it is noted which devices are ours.
const NOTE: &str = "/run/isotherm/zram-swap";
/// Above the priority that other swap has by default, so that zram is used first.
const PRIORITY: i32 = 100;

/// Swap of the whole system, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapFacts {
    /// All.
    pub total: u64,
    /// Unused.
    pub free: u64,
}

impl SwapFacts {
    /// Why no anonymous memory can be swapped out, if none can.
    pub fn refusal(self) -> Option<Refusal> {
        self.refusal_of(1)
    }

    /// Why `bytes` of anonymous memory cannot be swapped out as a whole, if they cannot.
    pub fn refusal_of(self, bytes: u64) -> Option<Refusal> {
        if self.total == 0 {
            Some(Refusal::NoSwap)
        } else if self.free < bytes {
            Some(Refusal::SwapFull)
        } else {
            None
        }
    }
}

/// What swap there is now; none where that cannot be read.
pub fn facts() -> SwapFacts {
    let memory = Meminfo::read();
    let bytes = |name| memory.get(name).unwrap_or(0);
    SwapFacts {
        total: bytes("SwapTotal"),
        free: bytes("SwapFree"),
    }
}

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
    /// There is no zram.
    #[error(
        "this kernel has no zram (/sys/block has no zram device, and `modprobe zram` did not bring one)"
    )]
    NoZram,
    /// All devices are in use, and no more can be added.
    #[error("all zram devices are in use, and another could not be added: {0}")]
    NoFreeDevice(io::Error),
    /// Nothing to take away.
    #[error("no swap was set up by isotherm here ({NOTE} names none)")]
    NotOurs,
    /// This device is not to be taken away.
    #[error(
        "{0} was not set up by isotherm, or has been taken away already ({NOTE} does not name it)"
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

/// Makes `bytes` of compressed swap in memory. Returns the device.
pub fn set_up_zram(bytes: u64) -> Result<PathBuf, SwapError> {
    if !(1 << 20..=1 << 44).contains(&bytes) {
        return Err(SwapError::Size(bytes));
    }
    let name = free_device()?;
    let sys = Path::new("/sys/block").join(&name);
    let device = Path::new("/dev").join(&name);
    let bytes = bytes & !(PAGE_SIZE - 1);
    prefer_lz4(&sys);
    fs::write(sys.join("disksize"), bytes.to_string()).map_err(step(format!(
        "size {} (its compression is {}; is the kernel's module for that there?)",
        device.display(),
        compression(&sys)
    )))?;
    let made = write_header(&device, bytes)
        .map_err(step(format!("write a swap header to {}", device.display())))
        .and_then(|()| {
            // Noted first: were we killed in between, `swap off` finds it.
            note(&device).map_err(step(format!("note it in {NOTE}")))?;
            swap_on(&device).map_err(step(format!("swap on {}", device.display())))
        });
    if let Err(error) = made {
        fs::write(sys.join("reset"), "1").ok();
        forget(&device).ok();
        return Err(error);
    }
    Ok(device)
}

/// Chooses LZ4 where the kernel has it: it brings pages back in two thirds of the time that LZO-RLE
/// takes, which is what targets wait for. Only where the kernel's own default is an LZO.
fn prefer_lz4(sys: &Path) {
    let path = sys.join("comp_algorithm");
    let offered = fs::read_to_string(&path).unwrap_or_default();
    let has_lz4 = offered.split_whitespace().any(|word| word == "lz4");
    if has_lz4 && compression(sys).starts_with("lzo") {
        // The default works as well.
        fs::write(&path, "lz4").ok();
    }
}

/// The algorithm that a zram device compresses by.
pub fn compression_of(device: &Path) -> String {
    compression(&Path::new("/sys/block").join(device.file_name().unwrap_or_default()))
}

/// Memory that all zram devices take, in bytes.
pub fn zram_pool() -> u64 {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let used = |stat: String| stat.split_whitespace().nth(2)?.parse::<u64>().ok();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("zram"))
        .filter_map(|entry| used(fs::read_to_string(entry.path().join("mm_stat")).ok()?))
        .sum()
}

/// The algorithm that a device compresses by, as the kernel marks it: `lzo [lzo-rle] lz4`.
fn compression(sys: &Path) -> String {
    let text = fs::read_to_string(sys.join("comp_algorithm")).unwrap_or_default();
    let marked = text.split_whitespace().find(|word| word.starts_with('['));
    marked.map_or("unknown".into(), |word| word.replace(['[', ']'], ""))
}

/// Takes away all that [`set_up_zram`] made, here or in earlier runs. Returns the devices.
pub fn take_down_all_zram() -> Result<Vec<PathBuf>, SwapError> {
    let devices = noted();
    if devices.is_empty() {
        return Err(SwapError::NotOurs);
    }
    devices
        .iter()
        .try_for_each(|device| take_down_zram(device))?;
    Ok(devices)
}

/// Takes away the device that a call of [`set_up_zram`] returned, and no other.
pub fn take_down_zram(device: &Path) -> Result<(), SwapError> {
    if !noted().iter().any(|noted| noted == device) {
        return Err(SwapError::NotOurDevice(device.to_owned()));
    }
    match swap_off(device) {
        Ok(()) => {}
        // It is not in use: was taken away by hand, or never put to use.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        Err(error) => return Err(step(format!("swap off {}", device.display()))(error)),
    }
    let name = device.file_name().unwrap_or_default();
    fs::write(Path::new("/sys/block").join(name).join("reset"), "1")
        .map_err(step(format!("reset {}", device.display())))?;
    forget(device).map_err(step(format!("strike it from {NOTE}")))
}

/// A zram device that nobody uses.
fn free_device() -> Result<String, SwapError> {
    if let Some(name) = unused()? {
        return Ok(name);
    }
    let added = fs::read_to_string("/sys/class/zram-control/hot_add");
    match added {
        Ok(number) => Ok(format!("zram{}", number.trim())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Without zram-control the module is not there.
            std::process::Command::new("modprobe")
                .arg("zram")
                .status()
                .ok();
            unused()?.ok_or(SwapError::NoZram)
        }
        Err(error) => Err(SwapError::NoFreeDevice(error)),
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

/// Writes what mkswap(8) writes (include/linux/swap.h, `union swap_header`).
fn write_header(device: &Path, bytes: u64) -> io::Result<()> {
    let mut page = vec![0u8; PAGE_SIZE as usize];
    let last_page = u32::try_from(bytes / PAGE_SIZE - 1).map_err(io::Error::other)?;
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    page[PAGE_SIZE as usize - 10..].copy_from_slice(b"SWAPSPACE2");
    let file = OpenOptions::new().write(true).open(device)?;
    file.write_all_at(&page, 0)?;
    file.sync_all()
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

fn noted() -> Vec<PathBuf> {
    fs::read_to_string(NOTE)
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("/dev/zram"))
        .map(PathBuf::from)
        .collect()
}

fn note(device: &Path) -> io::Result<()> {
    fs::create_dir_all("/run/isotherm")?;
    let mut file = File::options().create(true).append(true).open(NOTE)?;
    writeln!(file, "{}", device.display())
}

fn forget(device: &Path) -> io::Result<()> {
    let rest: Vec<PathBuf> = noted().into_iter().filter(|d| d != device).collect();
    if rest.is_empty() {
        return match fs::remove_file(NOTE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let mut file = File::create(NOTE)?;
    rest.iter()
        .try_for_each(|device| writeln!(file, "{}", device.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_refuses_what_does_not_fit() {
        let check = |total, free, bytes, want| {
            assert_eq!(SwapFacts { total, free }.refusal_of(bytes), want);
        };
        check(0, 0, 1, Some(Refusal::NoSwap));
        check(8192, 0, 1, Some(Refusal::SwapFull));
        check(8192, 4096, 4096, None);
        check(8192, 4096, 8192, Some(Refusal::SwapFull));
        let nearly_full = SwapFacts {
            total: 8192,
            free: 4096,
        };
        assert_eq!(nearly_full.refusal(), None);
    }
}
