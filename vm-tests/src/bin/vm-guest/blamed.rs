//! A program whose functions are known to touch certain memory first (`isotherm report blame`).
//!
//! Each function here has memory of its own and is called once. Two fill memory that is idle from then on, one in small
//! pages and one in huge pages. One fills memory that stays in use. One fills memory that is paged out some seconds
//! later, and another reads that back.

use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::memory::{self, HUGE_PAGE, touch};

/// Touch memory, each part of it by a function of its own, and keep one in use until killed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Give each part this much memory, in MiB.
    #[arg(long, default_value_t = 32)]
    mib: usize,
    /// Page one part out, and bring it back. There must be swap.
    #[arg(long)]
    swap: bool,
    /// Page the part out this many seconds after the start.
    #[arg(long, default_value_t = 4)]
    swap_after: u64,
}

pub(crate) fn run(args: &Args) -> io::Result<()> {
    let bytes = args.mib << 20;
    let started = Instant::now();
    fill_index(memory::map(bytes, false)?);
    fill_table(memory::map_huge(bytes)?);
    let cache = memory::map(bytes, false)?;
    fill_cache(cache);
    let log = memory::map(if args.swap { bytes } else { 0x1000 }, false)?;
    write_log(log);
    let mut is_out = !args.swap;
    loop {
        touch(cache);
        thread::sleep(Duration::from_millis(50));
        if !is_out && started.elapsed() > Duration::from_secs(args.swap_after) {
            is_out = true;
            memory::page_out(log)?;
            read_log(log);
        }
    }
}

#[inline(never)]
fn fill_index(memory: &[AtomicU8]) {
    touch(memory);
    black_box("index");
}

#[inline(never)]
fn fill_table(memory: &[AtomicU8]) {
    for huge_page in memory.chunks(HUGE_PAGE) {
        touch(huge_page);
    }
    black_box("table");
}

#[inline(never)]
fn fill_cache(memory: &[AtomicU8]) {
    touch(memory);
    black_box("cache");
}

#[inline(never)]
fn write_log(memory: &[AtomicU8]) {
    // A page whose bytes are all equal takes no memory in swap.
    for (at, byte) in memory.iter().enumerate().step_by(97) {
        byte.store(((at * 31) >> 7) as u8, Ordering::Relaxed);
    }
    black_box("write");
}

#[inline(never)]
fn read_log(memory: &[AtomicU8]) {
    touch(memory);
    black_box("read");
}
