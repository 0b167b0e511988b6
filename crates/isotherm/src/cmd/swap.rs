//! `isotherm swap`: sets up compressed swap in memory, and removes it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use isotherm_linux::swap;

use isotherm_engine::units::{format_bytes, parse_bytes};
use serde::Serialize;

use crate::out::{self, ResultArgs};

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
            let compression = swap::compression_of(&device);
            if result.is_json() {
                let result = SetUp {
                    device: &device,
                    bytes: size,
                    compression,
                };
                println!("{}", out::json(&result)?);
                return Ok(ExitCode::SUCCESS);
            }
            println!(
                "{} of swap on {}; `isotherm swap off` takes it away",
                format_bytes(size),
                device.display()
            );
            println!("it compresses by {compression}");
        }
        What::Off { result } => {
            let taken = swap::take_down_all_zram()?;
            if result.is_json() {
                let devices = taken.into_iter().map(|taken| TakenDevice {
                    device: taken.device,
                    bytes: taken.bytes,
                    was_not_ours: taken.was_not_ours,
                });
                let devices = devices.collect();
                println!("{}", out::json(&TakenAway { devices })?);
                return Ok(ExitCode::SUCCESS);
            }
            for taken in taken {
                println!("{}", said(&taken));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn said(taken: &swap::TakenDown) -> String {
    let device = taken.device.display();
    if taken.was_not_ours {
        format!("{device} is gone, or not what was set up here; nothing was done to it")
    } else if taken.bytes == 0 {
        format!("the swap on {device} is taken away")
    } else {
        format!(
            "{} of swap on {device} are taken away",
            format_bytes(taken.bytes)
        )
    }
}

/// Returns the schemas of the printed JSON.
#[cfg(test)]
pub(crate) fn schemas() -> [schemars::Schema; 2] {
    [out::schema::<SetUp<'static>>(), out::schema::<TakenAway>()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_is_said_by_its_own_size() {
        let taken = |bytes, was_not_ours| {
            said(&swap::TakenDown {
                device: "/dev/zram1".into(),
                bytes,
                was_not_ours,
            })
        };
        assert_eq!(
            taken(2 << 30, false),
            "2 GiB of swap on /dev/zram1 are taken away"
        );
        assert_eq!(taken(0, false), "the swap on /dev/zram1 is taken away");
        assert!(taken(2 << 30, true).contains("nothing was done"));
    }
}
