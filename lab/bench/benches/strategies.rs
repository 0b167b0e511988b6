//! Each part of the strategy against DAMON's own, on the same synthetic memory: accuracy by bytes, regions, and the CPU
//! time at the prices measured in docs/results/overhead.md. Prints a table. The memory is synthetic and seeded, so the
//! table is the same on every machine.

#[path = "../../../crates/engine/tests/it/world.rs"]
mod world;

use isotherm_engine::{Attributes, Strategy};
use world::{World, scattered};

fn worlds() -> [(&'static str, World); 8] {
    let mut reserved = World::with_hot(1 << 10, &[(301, 101)], 200.0);
    reserved.reserve(1 << 20);
    [
        (
            "1 GiB, a tenth hot",
            World::with_hot(1 << 10, &[(301, 101)], 200.0),
        ),
        (
            "1 GiB, a tenth lukewarm (30/s)",
            World::with_hot(1 << 10, &[(301, 101)], 30.0),
        ),
        (
            "4 GiB, 205 hot pieces of 2 MiB",
            World::with_hot(4 << 10, &scattered(205, 4096), 200.0),
        ),
        (
            "16 GiB, 200 MiB hot",
            World::with_hot(16 << 10, &[(7003, 200)], 100.0),
        ),
        ("1 GiB, a tenth hot, 1 TiB reserved", reserved),
        (
            "4 GiB, every page 10/s",
            World::with_hot(4 << 10, &[(0, 4096)], 10.0),
        ),
        (
            "4 GiB, every page 25/s",
            World::with_hot(4 << 10, &[(0, 4096)], 25.0),
        ),
        (
            "160 GiB, 200 MiB hot",
            World::with_hot(160 << 10, &[(7003, 200)], 100.0),
        ),
    ]
}

fn contenders() -> [(&'static str, Attributes); 8] {
    let ours = Attributes::default();
    let base = Strategy::faithful();
    let slow = |strategy| Attributes {
        strategy,
        cpu_budget: None,
        ..ours
    };
    [
        ("faithful 5/100 ms", Attributes::faithful()),
        ("faithful 20/400 ms", slow(base)),
        (
            "  + clusters",
            slow(Strategy {
                cluster_pages: 16,
                ..base
            }),
        ),
        (
            "  + populated",
            slow(Strategy {
                populated_only: true,
                ..base
            }),
        ),
        (
            "  + weights",
            slow(Strategy {
                weighted_samples: true,
                ..base
            }),
        ),
        (
            "  + splits",
            slow(Strategy {
                aligned_splits: true,
                ..base
            }),
        ),
        ("  + all", slow(Strategy::default())),
        ("default: all, 1 % of a CPU", ours),
    ]
}

fn main() {
    for (name, world) in &worlds() {
        println!("\n{name:<36}  precision  recall  rate error  regions     CPU  found after");
        for (name, attributes) in &contenders() {
            let score = world.run(*attributes, 30.0, 10.0);
            let found = score
                .found_after
                .map_or("never".to_owned(), |s| format!("{s:.1} s"));
            println!(
                "{name:<36} {:>10.3} {:>7.3} {:>11.4} {:>8.0} {:>6.2}% {found:>12}",
                score.precision,
                score.recall,
                score.rate_error,
                score.nr_regions,
                score.cpu * 100.0,
            );
        }
    }
}
