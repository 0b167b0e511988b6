//! scratch
use isotherm_sim::experiment::compaction::*;
fn main() {
    let ps: Vec<String> = std::env::args().skip(1).collect();
    for p in ps {
        let t = std::time::Instant::now();
        let o = if let Some(j) = p.strip_prefix('j') {
            java(&Setting::published(j.parse().unwrap()), 700)
        } else {
            driver(&Setting::published(p.parse().unwrap()))
        };
        let l = &o.latency_us;
        println!(
            "{p}: n {} of {} mean {:.1} sd {:.1} max {:.0} direct {} elapsed {:.1}s took {:?} {:?}",
            l.count,
            o.free_before,
            l.mean,
            l.stddev,
            l.max,
            o.direct,
            o.elapsed.as_secs_f64(),
            t.elapsed(),
            l.percentiles
                .iter()
                .map(|(p, v)| format!("p{p} {v:.1}"))
                .collect::<Vec<_>>()
        );
    }
}
