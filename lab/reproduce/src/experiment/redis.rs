//! Pages in which redis keeps YCSB's records, and the frequency of their accesses.
//!
//! Problem: pages are hot or cold, and a record is not in one page. YCSB's records have ten fields of 100 bytes, and a
//! read reads all (`fieldcount`, `fieldlength`, `readallfields` of its core workloads). Values of more than 64 bytes
//! make redis keep a record as a hash table (`hash-max-listpack-value`): each value, name and entry is an allocation of
//! its own.
//!
//! Approach: jemalloc keeps allocations of each size class in pages of their own, which fill one after
//! the other while the snapshot is loaded. So a read touches the pages of four classes at the place where
//! its record was loaded, and the bucket of redis' own table:
//!
//! | class | parts of a record |
//! |---|---|
//! | 128 bytes | ten values, the record's buckets |
//! | 32 bytes | ten entries, redis' own entry, the key |
//! | 16 bytes | ten names, the object |
//! | 64 bytes | the record's table |
//!
//! For the accessed bit a page that a read touches counts once. For the time of reads each of its cache lines counts.
//!
//! Limits: sizes are scaled to redis' published size.

use std::sync::Arc;

use super::tiering::setting::{KeyDistribution, TieringSetting};
use isotherm_sim::statistics::scramble;

/// Bytes of a record in each class.
const CLASSES: [f64; 4] = [11.0 * 128.0, 12.0 * 32.0, 11.0 * 16.0, 64.0];
const PAGE: f64 = 4096.0;
const LINE: f64 = 64.0;
/// YCSB's constant of zipfian distributions.
const SKEW: f64 = 0.99;

/// Effect of clients' reads on each page of redis, in the order in which the pages were loaded.
#[derive(Clone, Debug)]
pub struct Reads {
    /// Reads per second that touch the page.
    pub touches: Arc<Vec<f32>>,
    /// Cache lines read from the page per second.
    pub lines: Arc<Vec<f32>>,
}

/// Computes the reads of an experiment.
pub fn reads(setting: &TieringSetting, distribution: KeyDistribution) -> Reads {
    let records = record_rates(setting, distribution);
    let nr_pages = setting.anon_pages() as usize;
    let mut pages = Pages {
        touches: zeros(nr_pages),
        lines: zeros(nr_pages),
        next: 0,
    };
    // redis' own buckets, of eight bytes, come first: the snapshot contains their number.
    let nr_buckets = setting.records.next_power_of_two() as usize;
    let index = (nr_buckets * 8).div_ceil(4096).min(nr_pages / 2);
    let bucket_reads = (setting.reads_per_s / index as f64) as f32;
    pages.touches[..index].fill(bucket_reads);
    pages.lines[..index].fill(bucket_reads);
    pages.next = index;

    let room = (nr_pages - index) as f64 * PAGE;
    let scale = room / (CLASSES.iter().sum::<f64>() * records.len().max(1) as f64);
    let mut classes = CLASSES.map(|bytes| Class {
        record_bytes: bytes * scale,
        page: 0,
        room: 0.0,
    });
    for rate in records {
        for class in &mut classes {
            class.load(rate, &mut pages);
        }
    }
    Reads {
        touches: Arc::new(pages.touches),
        lines: Arc::new(pages.lines),
    }
}

/// Returns the reads per second of each record, in the order in which the records were loaded.
fn record_rates(setting: &TieringSetting, distribution: KeyDistribution) -> Vec<f32> {
    let mut sum = 0.0;
    let mut rates = zeros(setting.records as usize);
    for rank in 0..setting.records {
        let record = match distribution {
            KeyDistribution::Zipfian => scramble(rank) % setting.records,
            KeyDistribution::Latest => setting.records - 1 - rank,
        };
        let weight = libm::pow((rank + 1) as f64, -SKEW);
        rates[record as usize] += weight as f32;
        sum += weight;
    }
    let scale = (setting.reads_per_s / sum) as f32;
    for rate in &mut rates {
        *rate *= scale;
    }
    rates
}

/// Returns zeros that are written: fresh memory from the kernel would fault twice, as it is read first.
fn zeros(count: usize) -> Vec<f32> {
    std::iter::repeat_n(0.0, count).collect()
}

/// All pages; those from `next` on are unused.
struct Pages {
    touches: Vec<f32>,
    lines: Vec<f32>,
    next: usize,
}

struct Class {
    record_bytes: f64,
    /// The page that is being filled; `room` is the number of its free bytes.
    page: usize,
    room: f64,
}

impl Class {
    fn load(&mut self, rate: f32, pages: &mut Pages) {
        let mut bytes = self.record_bytes;
        while bytes > 0.0 {
            if self.room <= 0.0 {
                // The last pages of the classes may be one too many by rounding.
                self.page = pages.next.min(pages.touches.len() - 1);
                self.room = PAGE;
                pages.next += 1;
            }
            let taken = bytes.min(self.room);
            pages.touches[self.page] += rate;
            pages.lines[self.page] += rate * (taken / LINE) as f32;
            bytes -= taken;
            self.room -= taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_touches_its_classes_pages_and_a_bucket() {
        let setting = TieringSetting {
            anon_mib: 538,
            records: 300_000,
            reads_per_s: 1_000.0,
            ..TieringSetting::published(0)
        };
        for distribution in KeyDistribution::ALL {
            let Reads { touches, lines } = reads(&setting, distribution);
            assert_eq!(touches.len() as u64, setting.anon_pages());
            let sum = |rates: &[f32]| rates.iter().map(|rate| f64::from(*rate)).sum::<f64>();
            // A read touches four classes and the bucket, and sometimes the next page as well.
            assert!((5_000.0..6_000.0).contains(&sum(&touches)), "{touches:?}");
            // A read takes about 2 KB and a bucket.
            let sum = sum(&lines);
            assert!((28_000.0..36_000.0).contains(&sum), "{sum}");
        }
    }
}
