//! `isotherm swap`: compressed swap in memory, set up and taken away.

use std::process::ExitCode;

use isotherm_linux::swap;

use isotherm_engine::units::{format_bytes, parse_bytes};

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
                format_bytes(size),
                device.display()
            );
            println!("it compresses by {}", swap::compression_of(&device));
        }
        What::Off => {
            for taken in swap::take_down_all_zram()? {
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
