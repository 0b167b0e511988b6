//! The accumulator of [`SizeReport`].

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::address::is_name_of_file;
use isotherm_engine::calibration::{Calibration, Measured, SWAP_COST};
use isotherm_engine::monitor::bits::{NONE, mask, or};
use isotherm_engine::page_cache::CachedBytes;
use isotherm_engine::{AddressRange, BLOCK_SIZE, GroupCharge, Nanos, PAGE_SIZE, TargetId};
use isotherm_record::item::{Header, Item, UsageSample};
use isotherm_record::pages::PageSnapshot;
use isotherm_report::{Accumulate, MappingTable, RecordContext, RecordEnd, Scope};

use crate::distances::{BlockFacts, Distances, Order, Resident};
use crate::growth::Growth;
use crate::misses::{Lost, Misses, cost_of};
use crate::report::{RefaultCosts, SizeAdvice, SizeEstimate, SizePoint, SizeReport, SizedMemory};

/// Version of the JSON format.
const VERSION: u32 = 1;
/// Time to read a page of a file from an SSD.
const FILE_COST: Nanos = Nanos(100_000);
/// Bounds of a cost that was not measured, as factors.
const UNMEASURED: [f64; 2] = [0.5, 2.0];
/// Factor on the upper bound: the kernel does not always reclaim the least recently used page.
const KERNEL_LRU: f64 = 1.05;
/// No program lives on less: the kernel charges 64 pages at once for each CPU.
const LEAST: u64 = 256 << 10;
/// Least memory unseen by scans that counts: charges are counted in batches.
pub(crate) const UNSEEN_MIN: u64 = 1 << 20;
/// Number of points of the curve.
const POINTS: u64 = 32;

/// The query.
#[derive(Clone, Copy, Debug)]
pub struct SizeOptions {
    /// Loss that is allowed, as a share of the program's time.
    pub max_slowdown: f64,
    /// Time that the program loses by a refault from swap, page-out included; `None` means the record's measured cost,
    /// or 11 us.
    pub swap_cost: Option<Nanos>,
    /// Time to read a page of a file back; `None` means 100 us.
    pub file_cost: Option<Nanos>,
    /// Price of a GiB of DRAM for a month.
    pub dram_price: Option<f64>,
}

impl Default for SizeOptions {
    fn default() -> Self {
        Self {
            max_slowdown: 0.01,
            swap_cost: None,
            file_cost: None,
            dram_price: None,
        }
    }
}

/// The accumulator.
#[derive(Clone, Debug)]
pub struct Size {
    context: RecordContext,
    options: SizeOptions,
    mappings: MappingTable,
    distances: Distances,
    calibration: Option<Box<Calibration>>,
    /// Memory of each target after its last scan.
    resident: BTreeMap<TargetId, Resident>,
    /// Mapped bytes over time.
    series: Vec<(Nanos, u64)>,
    from: Option<Nanos>,
    to: Nanos,
    nr_scans: u64,
    scanned: Nanos,
    page_seconds: [f64; 2],
    peaks: Peaks,
    /// Unmapped page cache at the last scan of it.
    cached: Option<CachedBytes>,
    /// Time of the last sample of the group's charge.
    charged_at: Option<Nanos>,
    /// Whether all processes of a watched group are reported, with all of their memory.
    is_whole: bool,
    names: BTreeSet<String>,
    /// CPU time of each target at the first and at the last sample.
    cpu: BTreeMap<u32, [Nanos; 2]>,
}

/// Returns the part of unmapped page cache that is needed: the pages that were used again, the same share of those of
/// unknown age, and at least those that are not written yet.
fn needed(cached: &CachedBytes) -> SizeEstimate {
    let unknown = cached.ages.unknown;
    let known = cached.total().saturating_sub(unknown);
    let share = if known > 0 {
        (cached.used_again as f64 / known as f64).min(1.0)
    } else {
        1.0
    };
    let likely = cached.used_again + (unknown as f64 * share) as u64;
    let most = (cached.used_again + cached.used_once + unknown).min(cached.total());
    SizeEstimate {
        bytes: likely.min(most).max(cached.dirty),
        low_bytes: cached.used_again.min(most),
        high_bytes: most.max(cached.dirty),
    }
}

/// Greatest values over time, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    mapped: u64,
    mapped_at: Nanos,
    swap_backed: u64,
    file: u64,
    kept: u64,
    kept_files: u64,
    swapped: u64,
    charged: Option<u64>,
    kernel: Option<u64>,
    kernel_reclaimable: Option<u64>,
    unmapped: Option<u64>,
    charged_swap_backed: Option<u64>,
    /// Memory of the group beyond what scans saw: of processes, and with shared memory that no process maps.
    unseen: Option<[u64; 2]>,
}

impl Size {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: SizeOptions) -> Self {
        let has_ranges = header
            .command
            .iter()
            .any(|word| word.starts_with("--range"));
        Self {
            is_whole: scope.target.is_none() && !has_ranges,
            context: RecordContext::new(header, scope),
            options,
            mappings: MappingTable::default(),
            distances: Distances::default(),
            calibration: None,
            resident: BTreeMap::new(),
            series: Vec::new(),
            from: None,
            to: Nanos(0),
            nr_scans: 0,
            scanned: Nanos(0),
            page_seconds: [0.0; 2],
            peaks: Peaks::default(),
            cached: None,
            charged_at: None,
            names: BTreeSet::new(),
            cpu: BTreeMap::new(),
        }
    }

    fn scan(&mut self, pages: &PageSnapshot) {
        let (mappings, target) = (&self.mappings, pages.target);
        let facts = |block: u64| {
            let range = AddressRange::new(block, block + BLOCK_SIZE);
            let all = |parts: &mut dyn Iterator<Item = AddressRange>| {
                parts.fold(NONE, |all, part| or(&all, &mask(block, part)))
            };
            let files = mappings
                .parts(target, range)
                .filter(|(_, name)| is_name_of_file(name));
            BlockFacts {
                file: all(&mut files.map(|(part, _)| part)),
                kept: all(&mut mappings.unreclaimable(target, range)),
            }
        };
        let resident = self.distances.scan(pages, facts);
        self.resident.insert(target, resident);
        let now = self.total();
        self.from.get_or_insert(pages.start);
        self.to = self.to.max(pages.end);
        self.nr_scans += 1;
        let length = pages.end.since(pages.start);
        self.scanned = self.scanned + length;
        self.page_seconds[0] += resident.pages as f64 * length.as_secs_f64();
        self.page_seconds[1] += resident.unknown_pages as f64 * length.as_secs_f64();
        self.series.push((pages.end, now.pages * PAGE_SIZE));
        let peaks = &mut self.peaks;
        if now.pages * PAGE_SIZE > peaks.mapped {
            peaks.mapped = now.pages * PAGE_SIZE;
            peaks.mapped_at = pages.end;
        }
        let file = now.file_pages * PAGE_SIZE;
        peaks.file = peaks.file.max(file);
        peaks.kept = peaks.kept.max(now.kept_pages * PAGE_SIZE);
        peaks.kept_files = peaks.kept_files.max(now.kept_file_pages * PAGE_SIZE);
        peaks.swap_backed = peaks.swap_backed.max(now.pages * PAGE_SIZE - file);
    }

    /// Returns the memory of all targets.
    fn total(&self) -> Resident {
        self.resident
            .values()
            .fold(Resident::default(), |sum, of| Resident {
                pages: sum.pages + of.pages,
                file_pages: sum.file_pages + of.file_pages,
                unknown_pages: sum.unknown_pages + of.unknown_pages,
                kept_pages: sum.kept_pages + of.kept_pages,
                kept_file_pages: sum.kept_file_pages + of.kept_file_pages,
            })
    }

    fn usage(&mut self, usage: &UsageSample) {
        let is_ours = |target: &u32| self.context.admits_target(TargetId(*target));
        let swapped = usage.swap.iter().filter(|(target, _)| is_ours(target));
        let swapped = swapped.map(|(_, bytes)| bytes).sum();
        self.peaks.swapped = self.peaks.swapped.max(swapped);
        for (target, cpu) in usage.cpu.iter().filter(|(target, _)| is_ours(target)) {
            self.cpu.entry(*target).or_insert([*cpu; 2])[1] = *cpu;
        }
        if let Some(charge) = &usage.charged {
            self.charge(charge, usage.time);
        }
        if let Some(cached) = &usage.cached {
            self.cached = Some(*cached);
        }
    }

    /// Takes in the anonymous and shared memory that the group is charged for.
    fn see_unseen(&mut self, anonymous: u64, shared: u64, time: Nanos) {
        let mapped = self.total();
        let before = self.charged_at.replace(time);
        let swap_backed = anonymous + shared;
        self.peaks.charged_swap_backed = self.peaks.charged_swap_backed.max(Some(swap_backed));
        // The first scans do not cover all memory yet.
        let begins = self.from.map(|from| from + Nanos(3 * self.interval().0));
        let Some(before) = before.filter(|_| begins.is_some_and(|begins| time >= begins)) else {
            return;
        };
        if !self.is_whole {
            return;
        }
        // Some pages of private mappings of files are anonymous.
        let unseen = anonymous.saturating_sub(mapped.pages * PAGE_SIZE);
        if unseen >= UNSEEN_MIN {
            self.distances.unseen(unseen / PAGE_SIZE, before, time);
        }
        // Shared memory that no process maps any more may still be read and written as files.
        let seen = (mapped.pages - mapped.file_pages) * PAGE_SIZE;
        let most = swap_backed.saturating_sub(seen);
        let [peak, peak_most] = self.peaks.unseen.unwrap_or_default();
        self.peaks.unseen = Some([peak.max(unseen), peak_most.max(most)]);
    }

    fn charge(&mut self, charge: &GroupCharge, time: Nanos) {
        let mapped = self.total();
        if let Some(anonymous) = charge.anonymous {
            self.see_unseen(anonymous, charge.shared.unwrap_or(0), time);
        }
        let peaks = &mut self.peaks;
        peaks.charged = peaks.charged.max(charge.total);
        if charge.kernel > peaks.kernel {
            peaks.kernel_reclaimable = charge.kernel_reclaimable;
        }
        peaks.kernel = peaks.kernel.max(charge.kernel);
        let mapped_files = mapped.file_pages * PAGE_SIZE;
        let unmapped = charge
            .page_cache
            .map(|files| files.saturating_sub(mapped_files));
        peaks.unmapped = peaks.unmapped.max(unmapped);
    }

    fn costs(&self) -> RefaultCosts {
        let file_ns = self.options.file_cost.unwrap_or(FILE_COST);
        let of = |low: f64, swap: f64, high: f64, is_measured: bool| RefaultCosts {
            swap_ns: Nanos(swap as u64),
            low_swap_ns: Nanos(low as u64),
            high_swap_ns: Nanos(high as u64),
            file_ns,
            is_measured,
        };
        if let Some(cost) = self.options.swap_cost {
            return of(cost.0 as f64, cost.0 as f64, cost.0 as f64, false);
        }
        let measured = self.calibration.as_ref();
        let measured = measured.and_then(|of| of.refault_ns.zip(of.page_out_whole_ns));
        let Some((refault, page_out)) = measured else {
            let cost = SWAP_COST.0 as f64;
            return of(cost * UNMEASURED[0], cost, cost * UNMEASURED[1], false);
        };
        let sum = |value: fn(&Measured) -> f64| value(&refault) + value(&page_out);
        of(sum(|m| m.min), sum(|m| m.median), sum(|m| m.max), true)
    }

    /// Returns the mean number of threads that ran at once.
    fn nr_running(&self, seconds: f64) -> f64 {
        let spent = self
            .cpu
            .values()
            .map(|[first, last]| last.since(*first).as_secs_f64());
        (spent.sum::<f64>() / seconds).max(1.0)
    }
}

/// Converts accesses to a loss.
#[derive(Clone, Copy)]
struct Losses {
    seconds: f64,
    nr_running: f64,
    max_slowdown: f64,
    /// Costs in nanoseconds: low, middle, high.
    costs: [Lost; 3],
}

impl Losses {
    fn slowdown(self, lost: Lost) -> f64 {
        (cost_of(lost, self.costs[1]) / 1e9 / self.seconds / self.nr_running).min(1.0)
    }

    /// Returns the least memory for accesses in `order`, in bytes; at most `most`.
    fn least(self, order: &Order, most: u64) -> SizeEstimate {
        let allowed_ns = self.max_slowdown * self.seconds * self.nr_running * 1e9;
        let [low, middle, high] = self.costs;
        let bytes = |misses: &Misses, costs| misses.least_for(allowed_ns, costs) * PAGE_SIZE;
        SizeEstimate {
            bytes: bytes(&order.likely(most / PAGE_SIZE), middle),
            low_bytes: bytes(&order.least, low),
            high_bytes: (bytes(&order.greatest, high) as f64 * KERNEL_LRU) as u64,
        }
        .map(|bytes| bytes.min(most))
        .in_order()
    }
}

impl Accumulate for Size {
    type Report = Option<SizeReport>;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        match item {
            Item::Mappings(change) => self.mappings.apply(change),
            Item::Pages(pages)
                if self.context.admits_target(pages.target)
                    && self.context.admits_time(pages.start) =>
            {
                self.scan(pages);
            }
            Item::Usage(usage) if self.context.admits_time(usage.time) => self.usage(usage),
            Item::Calibration(sample) => self.calibration = Some(sample.costs.clone()),
            Item::TargetStart(start) if self.context.admits_target(start.target) => {
                // A process that executes another program keeps its number.
                self.distances.end(start.target);
                let name = isotherm_record::printable(&start.name).into_owned();
                self.names.insert(name);
            }
            Item::TargetExit(exit) => {
                self.resident.remove(&exit.target);
                self.distances.end(exit.target);
            }
            _ => {}
        }
    }

    fn end(&mut self, end: RecordEnd) {
        self.context.end(end);
    }

    fn finish(mut self) -> Option<SizeReport> {
        let from = self.from?;
        self.distances.settle();
        let duration = self.to.since(from);
        let seconds = duration.as_secs_f64().max(1e-9);
        let costs = self.costs();
        let nr_running = self.nr_running(seconds);
        let losses = Losses {
            seconds,
            nr_running,
            max_slowdown: self.options.max_slowdown,
            costs: [costs.low_swap_ns, costs.swap_ns, costs.high_swap_ns]
                .map(|swap_ns| [swap_ns.0 as f64, costs.file_ns.0 as f64, 1e9 * nr_running]),
        };
        let memory = self.memory(seconds);
        let quarter = Nanos(self.to.0.saturating_sub(duration.0 / 4));
        let with_swap = self.with_swap(losses, &memory);
        // What is idle, read back once in the time to watch for, loses as much as is allowed.
        let idle = memory
            .mapped_peak_bytes
            .saturating_sub(with_swap.request.bytes)
            / PAGE_SIZE;
        let read_back_ns = cost_of([idle as f64, 0.0, 0.0], losses.costs[1]);
        let trusted_s = read_back_ns / 1e9 / nr_running / losses.max_slowdown;
        Some(SizeReport {
            report: "size",
            version: VERSION,
            names: self.names.iter().cloned().collect(),
            duration_ns: duration,
            scan_interval_ns: self.interval(),
            has_seen_start: self.has_seen_start(from),
            peak_at_ns: self.peaks.mapped_at.since(from),
            max_slowdown: losses.max_slowdown,
            nr_running: losses.nr_running,
            costs,
            with_swap,
            without_swap: self.without_swap(losses, &memory),
            today: None,
            programs: Vec::new(),
            verified: None,
            saved_per_month: {
                let saved = memory.peak_bytes.saturating_sub(with_swap.request.bytes);
                self.options
                    .dram_price
                    .map(|price| price * saved as f64 / f64::from(1 << 30))
            },
            growth: Growth::of(&self.series),
            grown_idle_bytes: self.distances.appeared_and_idle_since(quarter) * PAGE_SIZE,
            trusted_after_ns: Nanos((trusted_s * 1e9) as u64),
            points: self.points(losses, memory.mapped_peak_bytes),
            memory,
            record: {
                self.context.offset(from);
                self.context.record_info()
            },
        })
    }
}

impl Size {
    /// Returns the greatest growth within a scan interval, after the first two.
    fn burst(&self) -> u64 {
        let interval = self.interval();
        let begins = self.from.unwrap_or_default() + Nanos(2 * interval.0);
        let mut earlier = self.series.iter().peekable();
        let mut before = 0;
        let grown = self.series.iter().map(|(time, bytes)| {
            let is_earlier = |of: &&(Nanos, u64)| of.0 + interval <= *time;
            while let Some((_, bytes)) = earlier.next_if(|of| is_earlier(of)) {
                before = *bytes;
            }
            let counts = *time > begins && before > 0;
            if counts {
                bytes.saturating_sub(before)
            } else {
                0
            }
        });
        grown.max().unwrap_or(0)
    }

    fn interval(&self) -> Nanos {
        Nanos(self.scanned.0 / self.nr_scans.max(1))
    }

    /// Whether most of the memory appeared during the record.
    fn has_seen_start(&self, from: Nanos) -> bool {
        let early = from + Nanos(2 * self.interval().0);
        let early = self.series.iter().take_while(|(end, _)| *end <= early);
        let at_first = early.map(|(_, bytes)| *bytes).max();
        at_first.is_some_and(|bytes| bytes < self.peaks.mapped / 2)
    }

    fn memory(&self, seconds: f64) -> SizedMemory {
        let [mapped, unknown] = self.page_seconds;
        let mean = |page_seconds: f64| (page_seconds / seconds * PAGE_SIZE as f64) as u64;
        let peaks = &self.peaks;
        SizedMemory {
            peak_bytes: peaks.charged.unwrap_or(peaks.mapped),
            mapped_mean_bytes: mean(mapped),
            mapped_peak_bytes: peaks.mapped,
            swap_backed_peak_bytes: peaks.swap_backed,
            file_peak_bytes: peaks.file,
            unknown_mean_bytes: mean(unknown),
            swapped_peak_bytes: peaks.swapped,
            kernel_peak_bytes: peaks.kernel,
            kernel_reclaimable_bytes: peaks.kernel_reclaimable,
            unmapped_peak_bytes: peaks.unmapped,
            unseen_peak_bytes: peaks.unseen.map(|[unseen, _]| unseen),
            unmapped_needed: self.cached.map(|cached| {
                let needed = needed(&cached);
                needed.map(|bytes| bytes.min(peaks.unmapped.unwrap_or(bytes)))
            }),
        }
    }

    /// Returns the kernel memory and the unmapped page cache that are needed. Page scans do not cover them. Kernel memory
    /// that can be freed is mostly of files: none of it may be needed, or all. Version 1 does not say how much that is.
    fn not_mapped(memory: &SizedMemory) -> SizeEstimate {
        let kernel = memory.kernel_peak_bytes.unwrap_or(0);
        let reclaimable = memory.kernel_reclaimable_bytes;
        let kernel = SizeEstimate {
            bytes: kernel.saturating_sub(reclaimable.unwrap_or(0)),
            low_bytes: kernel.saturating_sub(reclaimable.unwrap_or(kernel)),
            high_bytes: kernel,
        };
        let unmapped = memory.unmapped_peak_bytes.unwrap_or(0);
        let not_known = SizeEstimate {
            low_bytes: 0,
            ..SizeEstimate::exactly(unmapped)
        };
        kernel.plus(memory.unmapped_needed.unwrap_or(not_known))
    }

    /// Returns the part of shared memory that no process maps which is needed: nothing, or at most all.
    fn unseen_shared(&self) -> SizeEstimate {
        let [processes, all] = self.peaks.unseen.unwrap_or_default();
        SizeEstimate {
            high_bytes: all.saturating_sub(processes),
            ..SizeEstimate::default()
        }
    }

    fn with_swap(&self, losses: Losses, memory: &SizedMemory) -> SizeAdvice {
        let floor = self.peaks.kept + LEAST.min(memory.mapped_peak_bytes);
        let most = memory.mapped_peak_bytes + memory.unseen_peak_bytes.unwrap_or(0);
        let mapped = losses.least(&self.distances.all, most);
        let mapped = mapped.map(|bytes| bytes.max(floor.min(memory.mapped_peak_bytes)));
        let request = mapped
            .plus(Self::not_mapped(memory))
            .plus(self.unseen_shared());
        let request =
            request.map(|bytes| bytes.min(memory.peak_bytes.max(memory.mapped_peak_bytes)));
        let burst = self.burst();
        let burst = burst.min(memory.mapped_peak_bytes.saturating_sub(mapped.bytes));
        let limit = request.plus(SizeEstimate::exactly(burst));
        let swap_backed = memory.swap_backed_peak_bytes;
        // At worst, all memory of files is in use, and takes the place of the rest.
        let in_memory = mapped.low_bytes.saturating_sub(memory.file_peak_bytes);
        SizeAdvice {
            request,
            high: SizeEstimate {
                bytes: request.high_bytes,
                ..request
            },
            limit: SizeEstimate {
                bytes: limit.high_bytes,
                ..limit
            },
            swap: SizeEstimate {
                bytes: swap_backed.saturating_sub(in_memory) + memory.swapped_peak_bytes,
                low_bytes: swap_backed.saturating_sub(mapped.high_bytes)
                    + memory.swapped_peak_bytes,
                high_bytes: swap_backed + memory.swapped_peak_bytes,
            },
        }
    }

    fn without_swap(&self, losses: Losses, memory: &SizedMemory) -> SizeAdvice {
        let swap_backed = self.peaks.charged_swap_backed.filter(|_| self.is_whole);
        let anonymous =
            swap_backed.unwrap_or(memory.swap_backed_peak_bytes) + memory.swapped_peak_bytes;
        let files = losses.least(&self.distances.files, memory.file_peak_bytes);
        let files = files.map(|bytes| bytes.max(self.peaks.kept_files));
        let all = SizeEstimate::exactly(anonymous)
            .plus(files)
            .plus(Self::not_mapped(memory));
        SizeAdvice {
            request: all,
            high: SizeEstimate {
                bytes: all.high_bytes,
                ..all
            },
            limit: SizeEstimate {
                bytes: all.high_bytes,
                ..all
            },
            swap: SizeEstimate::default(),
        }
    }

    fn points(&self, losses: Losses, peak: u64) -> Vec<SizePoint> {
        let likely = self.distances.all.likely(peak / PAGE_SIZE);
        let steps = 1..=POINTS;
        let point = |step: u64| {
            let limit_bytes = peak / PAGE_SIZE * step / POINTS * PAGE_SIZE;
            let lost = likely.beyond(limit_bytes / PAGE_SIZE);
            SizePoint {
                limit_bytes,
                refaults_per_s: (lost[0] + lost[1]) / losses.seconds,
                slowdown: losses.slowdown(lost),
            }
        };
        steps.map(point).collect()
    }
}
