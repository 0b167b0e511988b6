//! `isotherm swap`: compressed swap in memory, set up and taken away.

use std::process::ExitCode;

use isotherm_linux::swap;

use crate::units::{format_bytes, parse_bytes};

/// Set up compressed swap in memory (zram), which paging out anonymous memory needs, or take it away.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm swap zram --size 4G
  isotherm swap off")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Set up a zram device and swap to it
    #[command(after_help = "Example:\n  isotherm swap zram --size 4G")]
    Zram {
        /// Bytes before compression
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
        size: u64,
    },
    /// Take away all that `isotherm swap zram` set up, here or in earlier runs
    #[command(after_help = "Example:\n  isotherm swap off")]
    Off,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Zram { size } => {
            let device = swap::set_up_zram(size)?;
            println!(
                "{} of swap on {}; `isotherm swap off` takes it away",
                format_bytes(swap::facts().total),
                device.display()
            );
            println!("it compresses by {}", swap::compression_of(&device));
        }
        What::Off => {
            for device in swap::take_down_all_zram()? {
                println!("{} is no swap any more, and empty", device.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
