//! scratch
use isotherm_sim::experiment::{redis::reads, tiering::*};
fn main() {
    for cold in std::env::args().skip(1) {
        let c: u64 = cold.parse().unwrap();
        let s = Setting::published(c);
        for d in [Distribution::Zipfian, Distribution::Latest] {
            let r = reads(&s, d);
            for p in [Placement::Default, Placement::Tiered] {
                let t = std::time::Instant::now();
                let o = run(&s, p, &r);
                println!("{c} {d:?} {p:?} {o:?} {:?}", t.elapsed());
            }
        }
    }
}
