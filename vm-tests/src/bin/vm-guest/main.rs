//! `vm-guest`: jobs in the guest that busybox cannot do. One file per job.

mod blamed;
mod family;
mod frames;
mod hot;
mod memory;
mod pagemap;
mod pages;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use isotherm_workload::family::program;

/// Helpers for scenarios, run inside the virtual machine.
#[derive(Parser)]
enum Job {
    /// Map a page with a hint above 47 bits; print its address, or `refused`.
    MapHigh,
    /// Wake up again and again: each time the processor changes address spaces, which flushes an emulated TLB.
    Wake {
        /// Wake up at this interval, in microseconds.
        #[arg(long, default_value_t = 1000)]
        every_us: u64,
    },
    Hot(hot::Args),
    Blamed(blamed::Args),
    Frames(frames::Args),
    Pages(pages::Args),
    /// Run a program of the generated family.
    TruthCase(program::ProgramOptions),
    PageFrames(family::PageFrames),
    CpuShare(family::CpuShare),
}

fn main() -> ExitCode {
    let result = match Job::parse() {
        Job::MapHigh => {
            match memory::map(4096, true) {
                Ok(page) => println!("{:#x}", page.as_ptr().addr()),
                Err(_) => println!("refused"),
            }
            Ok(())
        }
        Job::Wake { every_us } => loop {
            thread::sleep(Duration::from_micros(every_us));
        },
        Job::Hot(args) => hot::run(&args),
        Job::Blamed(args) => blamed::run(&args),
        Job::Frames(args) => frames::run(&args),
        Job::Pages(args) => pages::run(&args),
        Job::PageFrames(args) => family::page_frames(&args),
        Job::CpuShare(args) => family::cpu_share(&args),
        Job::TruthCase(options) => program::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("vm-guest: {e}");
            ExitCode::FAILURE
        }
    }
}
