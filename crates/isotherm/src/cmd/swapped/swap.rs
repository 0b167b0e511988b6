//! `isotherm swap`: sets up compressed swap in memory, and removes it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use isotherm_linux::swap;

use isotherm_engine::units::{format_bytes, parse_bytes};
use serde::Serialize;

use crate::out::ResultArgs;

/// Set up compressed swap in memory (zram), which paging out anonymous memory needs, or take it away.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm swap zram --size 4G
  isotherm swap off")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// JSON of `swap zram`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SetUp<'a> {
    #[cfg_attr(test, schemars(with = "String"))]
    device: &'a Path,
    bytes: u64,
    compression: String,
}

/// JSON of `swap off`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TakenAway {
    devices: Vec<TakenDevice>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TakenDevice {
    #[cfg_attr(test, schemars(with = "String"))]
    device: PathBuf,
    /// 0 where it is not known.
    bytes: u64,
    /// It was gone, or another's: nothing was done.
    was_not_ours: bool,
}

#[derive(clap::Subcommand)]
enum What {
    /// Set up a zram device and swap to it
    #[command(after_help = "Example:\n  isotherm swap zram --size 4G")]
    Zram {
        /// Offer this much swap, counted before compression
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        size: u64,
        #[command(flatten)]
        result: ResultArgs,
    },
    /// Take away all that `isotherm swap zram` set up, here or in earlier runs
    #[command(after_help = "Example:\n  isotherm swap off")]
    Off {
        #[command(flatten)]
        result: ResultArgs,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Zram { size, result } => {
            let device = swap::set_up_zram(size)?;
            let set_up = SetUp {
                device: &device,
                bytes: size,
                compression: swap::compression_of(&device),
            };
            result.print(&set_up, SetUp::text)?;
        }
        What::Off { result } => {
            let devices = swap::take_down_all_zram()?.into_iter();
            let devices = devices.map(|taken| TakenDevice {
                device: taken.device,
                bytes: taken.bytes,
                was_not_ours: taken.was_not_ours,
            });
            let taken = TakenAway {
                devices: devices.collect(),
            };
            result.print(&taken, |taken| taken.devices.iter().map(said).collect())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl SetUp<'_> {
    fn text(&self) -> String {
        format!(
            "{} of swap on {}; `isotherm swap off` takes it away\nit compresses by {}\n",
            format_bytes(self.bytes),
            self.device.display(),
            self.compression
        )
    }
}

fn said(taken: &TakenDevice) -> String {
    let device = taken.device.display();
    if taken.was_not_ours {
        format!("{device} is gone, or not what was set up here; nothing was done to it\n")
    } else if taken.bytes == 0 {
        format!("the swap on {device} is taken away\n")
    } else {
        let size = format_bytes(taken.bytes);
        format!("{size} of swap on {device} are taken away\n")
    }
}

#[cfg(test)]
pub(crate) fn schemas() -> [schemars::Schema; 2] {
    use crate::out::schema;
    [schema::<SetUp<'static>>(), schema::<TakenAway>()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_is_said_by_its_own_size() {
        let taken = |bytes, was_not_ours| {
            said(&TakenDevice {
                device: "/dev/zram1".into(),
                bytes,
                was_not_ours,
            })
        };
        let said = "2 GiB of swap on /dev/zram1 are taken away\n";
        assert_eq!(taken(2 << 30, false), said);
        assert_eq!(taken(0, false), "the swap on /dev/zram1 is taken away\n");
        assert!(taken(2 << 30, true).contains("nothing was done"));
    }
}
