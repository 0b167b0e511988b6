//! `isotherm swap`: sets up swap, in memory or on a disk, and removes it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use isotherm_engine::units::{format_bytes, parse_bytes, parse_share};
use isotherm_linux::swap::{SwapArea, SwapSetup, TakenDown, ZramOptions, ZswapOptions};
use serde::Serialize;

use super::advise::{self, AdviseArgs};
use super::order_text;
use crate::out::ResultArgs;

/// Set up swap, which paging out anonymous memory needs: in memory (zram), or on a disk behind zswap. Measure which is
/// better here, or take it away.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm swap advise --pid 1234
  isotherm swap zram --size 4G
  isotherm swap zswap --size 4G
  isotherm swap off")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// JSON of `swap zram` and `swap zswap`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SetUp {
    /// The zram device, or the file or device behind zswap.
    #[cfg_attr(test, schemars(with = "String"))]
    device: PathBuf,
    /// 0 for a device that was swap before.
    bytes: u64,
    compression: String,
    /// All swap of the machine; the first is used first.
    order: Vec<SwapArea>,
}

/// JSON of `swap off`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TakenAway {
    devices: Vec<TakenDown>,
}

#[derive(clap::Subcommand)]
enum What {
    /// Set up a zram device and swap to it
    #[command(after_help = "Example:\n  isotherm swap zram --size 4G")]
    Zram(ZramArgs),
    /// Set up swap on a disk, with zswap before it
    #[command(after_help = "Examples:
  isotherm swap zswap --size 4G
  isotherm swap zswap --device /dev/vdb2 --max-pool 30% --shrinker")]
    Zswap(ZswapArgs),
    /// Measure zram and zswap with the data of programs, and say which is better here and how much is needed
    Advise(AdviseArgs),
    /// Take away all that `isotherm swap` set up, here or in earlier runs, and set again what it changed
    #[command(after_help = "Example:\n  isotherm swap off")]
    Off {
        #[command(flatten)]
        result: ResultArgs,
    },
}

#[derive(clap::Args)]
struct ZramArgs {
    /// Offer this much swap, counted before compression
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: u64,
    /// Use it before areas of a lower priority
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_priority())]
    priority: i32,
    /// Let zram write to this block device, whose content is lost (CONFIG_ZRAM_WRITEBACK): what and when is written to
    /// /sys/block/zramN/writeback
    #[arg(long, value_name = "DEVICE")]
    writeback: Option<PathBuf>,
    /// Let zram compress pages again by this algorithm (CONFIG_ZRAM_MULTI_COMP): which ones is written to
    /// /sys/block/zramN/recompress
    #[arg(long, value_name = "ALGORITHM")]
    recompress: Option<String>,
    #[command(flatten)]
    result: ResultArgs,
}

#[derive(clap::Args)]
struct ZswapArgs {
    /// Make a swap file of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, required_unless_present = "device")]
    size: Option<u64>,
    /// Make it at this path, on a file system that can hold swap
    #[arg(long, value_name = "PATH", default_value = "/var/swap.isotherm")]
    file: PathBuf,
    /// Use this block device, which mkswap has prepared, in place of a file
    #[arg(long, value_name = "PATH", conflicts_with_all = ["size", "file"])]
    device: Option<PathBuf>,
    /// Compress by this algorithm [default: as it is]
    #[arg(long, value_name = "NAME")]
    compressor: Option<String>,
    /// Keep at most this part of the machine's memory for compressed pages [default: as it is]
    #[arg(long, value_name = "SHARE", value_parser = parse_percent)]
    max_pool: Option<u32>,
    /// Refuse pages once the pool is full, until it has fallen to this part of its maximum [default: as it is]
    #[arg(long, value_name = "SHARE", value_parser = parse_percent)]
    accept_threshold: Option<u32>,
    /// Write the coldest pages to the disk whenever memory is short, not only when the pool is full (Linux 6.8)
    #[arg(long)]
    shrinker: bool,
    /// Use the disk before areas of a lower priority [default: after all others]
    #[arg(long, value_name = "N", value_parser = parse_priority())]
    priority: Option<i32>,
    #[command(flatten)]
    result: ResultArgs,
}

fn parse_priority() -> clap::builder::RangedI64ValueParser<i32> {
    clap::value_parser!(i32).range(0..=0x7fff)
}

/// Parses a share of whole percents, at least one.
fn parse_percent(text: &str) -> anyhow::Result<u32> {
    let percent = parse_share(text)? * 100.0;
    let is_whole = (percent - percent.round()).abs() < 1e-9 && percent >= 1.0;
    ensure!(
        is_whole,
        "'{text}' is not a whole number of percents from 1% to 100%"
    );
    Ok(percent.round() as u32)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Zram(args) => {
            let device = SwapSetup::zram(&ZramOptions {
                bytes: args.size,
                priority: Some(args.priority),
                writeback: args.writeback.clone(),
                recompress: args.recompress.clone(),
            })?;
            let compression = SwapArea::compression_of(&device);
            args.result
                .print(&SetUp::new(device, args.size, compression), SetUp::text)?;
        }
        What::Zswap(args) => {
            let options = args.options();
            let area = SwapSetup::zswap(&options)?;
            let by = fs::read_to_string("/sys/module/zswap/parameters/compressor")?;
            let set_up = SetUp::new(area, options.bytes, format!("{} (zswap)", by.trim()));
            args.result.print(&set_up, SetUp::text)?;
        }
        What::Advise(args) => return advise::run(args),
        What::Off { result } => {
            let taken = TakenAway {
                devices: SwapSetup::take_down_all()?,
            };
            result.print(&taken, |taken| taken.devices.iter().map(said).collect())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl ZswapArgs {
    fn options(&self) -> ZswapOptions {
        let percent = |of: Option<u32>| of.map(|percent| percent.to_string());
        let settings = [
            ("compressor", self.compressor.clone()),
            ("max_pool_percent", percent(self.max_pool)),
            ("accept_threshold_percent", percent(self.accept_threshold)),
            ("shrinker_enabled", self.shrinker.then(|| "Y".into())),
        ];
        let settings = settings.into_iter();
        ZswapOptions {
            bytes: self.size.unwrap_or(0),
            path: self.device.as_ref().unwrap_or(&self.file).clone(),
            priority: self.priority,
            settings: settings
                .filter_map(|(name, value)| Some((name, value?)))
                .collect(),
        }
    }
}

impl SetUp {
    fn new(device: PathBuf, bytes: u64, compression: String) -> Self {
        Self {
            device,
            bytes,
            compression,
            order: SwapArea::all(),
        }
    }

    fn text(&self) -> String {
        let size = format_bytes(self.bytes) + " of ";
        format!(
            "{}swap on {}; `isotherm swap off` takes it away\nit compresses by {}\n{}",
            if self.bytes == 0 { "" } else { &size },
            self.device.display(),
            self.compression,
            order_text(&self.order)
        )
    }
}

fn said(taken: &TakenDown) -> String {
    let device = taken.device.display();
    if let Some(value) = &taken.set_again {
        format!("{device} is {value} again\n")
    } else if taken.was_not_ours {
        format!("{device} is gone, or not what was set up here; nothing was done to it\n")
    } else if taken.bytes == 0 {
        format!("the swap on {device} is taken away\n")
    } else {
        let size = format_bytes(taken.bytes);
        format!("{size} of swap on {device} are taken away\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_is_said_by_its_own_size() {
        let taken = |bytes, was_not_ours| {
            said(&TakenDown {
                device: "/dev/zram1".into(),
                bytes,
                set_again: None,
                was_not_ours,
            })
        };
        let said = "2 GiB of swap on /dev/zram1 are taken away\n";
        assert_eq!(taken(2 << 30, false), said);
        assert_eq!(taken(0, false), "the swap on /dev/zram1 is taken away\n");
        assert!(taken(2 << 30, true).contains("nothing was done"));
    }

    #[test]
    fn the_order_of_use_is_said_and_shares_are_whole_percents() {
        let area = |path: &str, priority| SwapArea {
            path: path.into(),
            priority,
        };
        let text = order_text(&[area("/dev/zram1", 100), area("/swap", -2)]);
        assert_eq!(
            text,
            "used first: /dev/zram1 (priority 100); then /swap (priority -2)\n"
        );
        assert_eq!(parse_percent("20%").ok(), Some(20));
        assert!(
            ["0%", "2.5%", "120%", ""]
                .iter()
                .all(|bad| parse_percent(bad).is_err())
        );
    }
}
