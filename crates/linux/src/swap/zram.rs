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

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::area::{
    SwapError, Uuid, compression, first_page, header_uuid, impossible, is_swap, step, swap_off,
    swap_on, write_header,
};
use crate::arch;
use crate::meminfo::Meminfo;
use crate::text;

/// Priority of the swap by default: above that of other swap, so that zram is used first.
pub(super) const PRIORITY: i32 = 100;
const CONTROL: &str = "/sys/class/zram-control";

/// Compressed swap in memory to set up.
#[derive(Clone, Debug, Default)]
pub struct ZramOptions {
    /// Size before compression.
    pub bytes: u64,
    /// 100 if it is not given.
    pub priority: Option<i32>,
    /// Block device that takes what does not compress, and what is idle (CONFIG_ZRAM_WRITEBACK). It is overwritten.
    pub writeback: Option<PathBuf>,
    /// Second algorithm, for pages that the first leaves large (CONFIG_ZRAM_MULTI_COMP).
    pub recompress: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZramDevice {
    /// Device name, such as `zram1`.
    name: String,
    /// UUID in the swap header.
    uuid: Uuid,
    pub(super) bytes: u64,
    /// Whether the device was added for us.
    added: bool,
}

impl ZramDevice {
    /// Finds or adds an unused device.
    pub(crate) fn new(bytes: u64) -> Result<Self, SwapError> {
        let (name, added) = free_device()?;
        Ok(Self {
            name,
            uuid: Uuid::new().map_err(step("make a UUID"))?,
            bytes: bytes & !(arch::page_bytes() - 1),
            added,
        })
    }

    /// Parses a line of the note. Older versions noted the path alone, and wrote no UUID into the header.
    pub(super) fn parse(line: &str) -> Option<Self> {
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

    pub(super) fn line(&self) -> String {
        let Self {
            name, uuid, bytes, ..
        } = self;
        let added = if self.added { " added" } else { "" };
        format!("{name} {uuid} {bytes}{added}")
    }

    pub(crate) fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    pub(crate) fn sys(&self, file: &str) -> PathBuf {
        Path::new("/sys/block").join(&self.name).join(file)
    }

    fn set(&self, file: &str, value: &str) -> Result<(), SwapError> {
        let path = self.sys(file);
        fs::write(&path, value).map_err(step(format!("write {value} to {}", path.display())))
    }

    pub(super) fn state(&self) -> State {
        let Some(bytes) = text::number::<u64>(self.sys("disksize")) else {
            return State::Gone;
        };
        let first = first_page(&self.device());
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
    pub(super) fn take_down(&self) -> Result<bool, SwapError> {
        let device = self.device();
        let is_ours = match self.state() {
            State::Gone | State::Anothers => return Ok(false),
            State::Unsized => true,
            State::Ours { is_swap } => {
                if is_swap {
                    swap_off(&device)?;
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

    /// Sizes the device and gives it a swap header.
    pub(crate) fn make(&self, options: &ZramOptions) -> Result<(), SwapError> {
        let device = self.device();
        self.configure(&self.sys(""), options)?;
        write_header(&device, self.bytes, self.uuid)
            .map_err(step(format!("write a swap header to {}", device.display())))
    }

    pub(super) fn set_up(&self, options: &ZramOptions) -> Result<(), SwapError> {
        self.make(options)?;
        swap_on(&self.device(), options.priority.or(Some(PRIORITY)))
    }

    /// Writes the settings of the device, whose directory is `sys`: its size last, as it fixes the others.
    fn configure(&self, sys: &Path, options: &ZramOptions) -> Result<(), SwapError> {
        let set = |file: &str, value: &str| {
            let path = sys.join(file);
            fs::write(&path, value).map_err(step(format!("write {value} to {}", path.display())))
        };
        let optional = |file: &str, value: &str, what: &str, lacks: &str| {
            let path = sys.join(file);
            if path.exists() {
                return set(file, value);
            }
            let why = format!(
                "this kernel has {lacks} off ({} is absent); leave it out, or use `isotherm swap zswap`",
                path.display()
            );
            Err(impossible(what, why))
        };
        set("mem_limit", &limit(self.bytes).to_string())?;
        prefer_lz4(&sys.join("comp_algorithm"));
        if let Some(device) = &options.writeback {
            let (what, device) = (
                "write zram's pages back to a disk",
                device.to_string_lossy(),
            );
            optional("backing_dev", &device, what, "CONFIG_ZRAM_WRITEBACK")?;
        }
        if let Some(algorithm) = &options.recompress {
            let (what, value) = (
                "compress zram's pages again",
                format!("algo={algorithm} priority=1"),
            );
            optional("recomp_algorithm", &value, what, "CONFIG_ZRAM_MULTI_COMP")?;
        }
        fs::write(sys.join("disksize"), self.bytes.to_string()).map_err(step(format!(
            "size {} (its compression is {}; is the kernel's module for that there?)",
            self.name,
            compression(&sys.join("comp_algorithm"))
        )))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The device does not exist.
    Gone,
    /// The device has no size, so it is unused.
    Unsized,
    /// The device was set up by Isotherm.
    Ours { is_swap: bool },
    /// The device belongs to another user by now.
    Anothers,
}

/// Returns the maximum memory that a device of this size may take.
fn limit(bytes: u64) -> u64 {
    let half = Meminfo::read().get("MemTotal").map_or(bytes, |all| all / 2);
    bytes.min(half)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_which_device_by_which_uuid() {
        let mut noted = ZramDevice {
            name: "zram7".into(),
            uuid: Uuid::parse("01234567-89ab-cdef-0123-456789abcdef").expect("a UUID"),
            bytes: 2 << 30,
            added: true,
        };
        assert_eq!(ZramDevice::parse(&noted.line()), Some(noted.clone()));
        noted.added = false;
        assert_eq!(ZramDevice::parse(&noted.line()), Some(noted));
        let old = ZramDevice::parse("/dev/zram0").expect("as older versions noted");
        assert_eq!((old.name.as_str(), old.uuid), ("zram0", Uuid::default()));
        for bad in [
            "",
            "sda 1",
            "/dev/zram",
            "zram0/../../sda",
            "zram1 xyz 5",
            "zram1 0 5",
        ] {
            assert_eq!(ZramDevice::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn writeback_and_recompression_are_set_before_the_size_or_refused() {
        let sys = tempfile::tempdir().expect("a directory");
        let device = ZramDevice {
            name: "zram7".into(),
            uuid: Uuid::default(),
            bytes: 1 << 20,
            added: false,
        };
        let mut options = ZramOptions {
            writeback: Some("/dev/loop9".into()),
            ..ZramOptions::default()
        };
        let refused = |options: &ZramOptions| {
            let error = device
                .configure(sys.path(), options)
                .expect_err("it is absent");
            assert!(!sys.path().join("disksize").exists());
            error.to_string()
        };
        assert!(refused(&options).contains("CONFIG_ZRAM_WRITEBACK"));
        fs::write(sys.path().join("backing_dev"), "none").expect("written");
        options.recompress = Some("zstd".into());
        assert!(refused(&options).contains("CONFIG_ZRAM_MULTI_COMP"));
        fs::write(sys.path().join("recomp_algorithm"), "").expect("written");
        device.configure(sys.path(), &options).expect("both exist");
        let read = |name: &str| fs::read_to_string(sys.path().join(name)).expect(name);
        assert_eq!(read("backing_dev"), "/dev/loop9");
        assert_eq!(read("recomp_algorithm"), "algo=zstd priority=1");
        assert_eq!(read("disksize"), "1048576");
    }
}
