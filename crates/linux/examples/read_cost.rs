//! Measures what reading and clearing cost on this machine: `cargo run --release --example read_cost -- PID`.

use std::time::Instant;

use isotherm_engine::{AccessProbe, AddressRange, PAGE_SIZE, Sample, TargetId};
use isotherm_linux::clock::process_cpu;
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::Process;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pid: u32 = std::env::args()
        .nth(1)
        .ok_or("name a process id")?
        .parse()?;
    let target = TargetId(0);
    let mut probe = PageTableProbe::new()?;
    probe.add(target, Process::open(pid)?)?;
    let mappings = probe.process(target).ok_or("gone")?.mappings()?;
    let ranges: Vec<AddressRange> = mappings.iter().map(|m| m.range).collect();
    let timed = |what: &str, per: f64, unit: &str, run: &mut dyn FnMut()| {
        let (wall, cpu) = (Instant::now(), process_cpu());
        run();
        let (wall, cpu) = (
            wall.elapsed().as_nanos() as f64,
            process_cpu().since(cpu).0 as f64,
        );
        println!(
            "{what}: {:.2} ns CPU, {:.2} ns wall {unit}; {:.3} ms in all",
            cpu / per,
            wall / per,
            cpu / 1e6
        );
    };
    for _ in 0..3 {
        let mut blocks = Vec::new();
        timed("find blocks", 1.0, "", &mut || {
            blocks = probe
                .occupied_blocks(target, &ranges)
                .ok()
                .flatten()
                .unwrap_or_default();
        });
        let pages = blocks.len() as f64 * 512.0;
        let mut set = 0;
        timed("read tables", pages, "a page", &mut || {
            set = 0;
            let _ = probe.read_blocks(target, &blocks, |f| set += f.accessed[0].count_ones());
        });
        let samples: Vec<Sample> = blocks
            .iter()
            .step_by((blocks.len() / 200).max(1))
            .map(|b| Sample {
                target,
                address: b + 64 * PAGE_SIZE,
                nr_pages: 16,
            })
            .collect();
        let before = probe.cost().clears;
        timed(
            "arm clusters of 16",
            samples.len() as f64,
            "each",
            &mut || {
                let _ = probe.arm(&samples);
            },
        );
        println!("  {} clears", probe.cost().clears - before);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut touches = Vec::new();
        timed("check clusters", samples.len() as f64, "each", &mut || {
            let _ = probe.check(&mut touches);
        });
    }
    Ok(())
}
