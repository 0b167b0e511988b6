//! The accumulator of [`SizeReport`].

use std::collections::{BTreeMap, BTreeSet};

use isotherm_engine::address::is_name_of_file;
use isotherm_engine::calibration::{Calibration, Measured, SWAP_COST};
use isotherm_engine::monitor::bits::{NONE, mask, or};
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE, TargetId};
use isotherm_record::item::{Header, Item, UsageSample};
use isotherm_record::pages::PageSnapshot;
use isotherm_report::{Accumulate, MappingTable, RecordContext, RecordEnd, Scope};

use crate::charge::{Charged, Charges};
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
/// Time after which the CPU time of a target tells how much it does.
const CPU_KNOWN: Nanos = Nanos(3_000_000_000);
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
    /// Mapped pages, those of unknown use, those that stay whatever the limit, and those of files among the latter, times
    /// seconds.
    page_seconds: [f64; 4],
    peaks: Peaks,
    charges: Charges,
    /// Whether all processes of a watched group are reported, with all of their memory.
    is_whole: bool,
    names: BTreeSet<String>,
    /// CPU time of each target at the first and at the last sample, and their times.
    cpu: BTreeMap<u32, [(Nanos, Nanos); 2]>,
}

/// Greatest values over time, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    mapped: u64,
    mapped_at: Nanos,
    swap_backed: u64,
    file: u64,
    swapped: u64,
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
            page_seconds: [0.0; 4],
            peaks: Peaks::default(),
            charges: Charges::default(),
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
        let of_kind = [
            resident.pages,
            resident.unknown_pages,
            resident.kept_pages,
            resident.kept_file_pages,
        ];
        for (sum, pages) in self.page_seconds.iter_mut().zip(of_kind) {
            *sum += pages as f64 * length.as_secs_f64();
        }
        self.series.push((pages.end, now.pages * PAGE_SIZE));
        let peaks = &mut self.peaks;
        if now.pages * PAGE_SIZE > peaks.mapped {
            peaks.mapped = now.pages * PAGE_SIZE;
            peaks.mapped_at = pages.end;
        }
        let file = now.file_pages * PAGE_SIZE;
        peaks.file = peaks.file.max(file);
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
            let now = (*cpu, usage.time);
            self.cpu.entry(*target).or_insert([now; 2])[1] = now;
        }
        self.charges.machine(usage);
        if let Some(charge) = &usage.charged {
            let charged = Charged {
                charge,
                time: usage.time,
                mapped: self.total(),
                // The first scans do not cover all memory yet.
                begins: self.from.map(|from| from + Nanos(3 * self.interval().0)),
                is_whole: self.is_whole,
            };
            self.charges.take(&charged, &mut self.distances);
        }
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
            .map(|[(first, _), (last, _)]| last.since(*first).as_secs_f64());
        spent.sum::<f64>() / seconds
    }
}

/// Converts accesses to a loss.
#[derive(Clone, Copy)]
struct Losses {
    seconds: f64,
    nr_running: f64,
    max_slowdown: f64,
    /// The loss by refaults while it was watched, if they were counted.
    present: Option<f64>,
    /// Costs in nanoseconds: low, middle, high.
    costs: [Lost; 3],
}

impl Losses {
    fn slowdown(self, lost: Lost) -> f64 {
        (cost_of(lost, self.costs[1]) / 1e9 / self.seconds / self.nr_running).min(1.0)
    }

    fn allowed_ns(self) -> f64 {
        self.max_slowdown * self.seconds * self.nr_running * 1e9
    }

    /// Returns the least memory for accesses in `order`, in bytes; at most `most`.
    fn least(self, order: &Order, most: u64) -> SizeEstimate {
        let allowed_ns = self.allowed_ns();
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

    fn finish_at(mut self, end: RecordEnd) -> Option<SizeReport> {
        self.context.end(end);
        let from = self.from?;
        let duration = self.to.since(from);
        let seconds = duration.as_secs_f64().max(1e-9);
        let costs = self.costs();
        self.settle(&costs);
        let nr_running = self.nr_running(seconds);
        let memory = self.memory(seconds);
        let losses = self.losses(&costs, &memory, (seconds, nr_running.max(1.0)));
        let quarter = Nanos(self.to.0.saturating_sub(duration.0 / 4));
        let with_swap = self.with_swap(losses, &memory);
        let without_swap = self.without_swap(losses, &memory);
        let has_swap = self.charges.swap != Some(0);
        let advice = if has_swap { with_swap } else { without_swap };
        // What is idle, read back once in the time to watch for, loses as much as is allowed.
        let idle = memory
            .mapped_peak_bytes
            .saturating_sub(with_swap.request.bytes)
            / PAGE_SIZE;
        let read_back_ns = cost_of([idle as f64, 0.0, 0.0], losses.costs[1]);
        let trusted_s = read_back_ns / 1e9 / losses.nr_running / losses.max_slowdown;
        Some(SizeReport {
            report: "size",
            version: VERSION,
            names: self.names.iter().cloned().collect(),
            duration_ns: duration,
            scan_interval_ns: self.interval(),
            has_seen_start: self.has_seen_start(from),
            peak_at_ns: self.peaks.mapped_at.since(from),
            max_slowdown: losses.max_slowdown,
            nr_running,
            present_slowdown: losses.present,
            machine_swap_bytes: self.charges.swap,
            costs,
            with_swap,
            without_swap,
            today: None,
            programs: Vec::new(),
            verified: None,
            saved_per_month: {
                let need = advice.request.bytes;
                let saved = memory.peak_bytes.saturating_sub(need);
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
    /// Counts the times in which memory was in use, by the CPU times of the targets.
    fn settle(&mut self, costs: &RefaultCosts) {
        let known =
            { self.cpu.iter() }.filter(|(_, [(_, from), (_, to)])| to.since(*from) >= CPU_KNOWN);
        let cpu_s = known.map(|(target, [(first, _), (last, _)])| {
            (TargetId(*target), last.since(*first).as_secs_f64())
        });
        self.distances
            .settle(&cpu_s.collect(), [costs.swap_ns, costs.file_ns]);
    }

    fn losses(
        &self,
        costs: &RefaultCosts,
        memory: &SizedMemory,
        (seconds, nr_running): (f64, f64),
    ) -> Losses {
        // Files that others are charged for are not read back.
        let foreign = memory.foreign_bytes.unwrap_or(0) as f64;
        let own = 1.0 - (foreign / memory.file_peak_bytes.max(1) as f64).min(1.0);
        let all_costs = [
            (costs.low_swap_ns, own),
            (costs.swap_ns, own),
            (costs.high_swap_ns, 1.0),
        ];
        Losses {
            seconds,
            nr_running,
            max_slowdown: self.options.max_slowdown,
            present: { self.charges.lost_ns(costs) }.map(|ns| ns / 1e9 / seconds / nr_running),
            costs: all_costs.map(|(swap_ns, own)| {
                let file_ns = costs.file_ns.0 as f64 * own;
                [swap_ns.0 as f64, file_ns, 1e9 * nr_running]
            }),
        }
    }

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

    /// Returns the means over time of what `page_seconds` sums up, in bytes.
    fn means(&self, seconds: f64) -> [u64; 4] {
        { self.page_seconds }.map(|sum| (sum / seconds * PAGE_SIZE as f64) as u64)
    }

    fn memory(&self, seconds: f64) -> SizedMemory {
        let [mapped, unknown, ..] = self.means(seconds);
        let (peaks, charges) = (&self.peaks, &self.charges);
        SizedMemory {
            peak_bytes: charges.total.unwrap_or(peaks.mapped),
            mapped_mean_bytes: mapped,
            mapped_peak_bytes: peaks.mapped,
            swap_backed_peak_bytes: peaks.swap_backed,
            file_peak_bytes: peaks.file,
            unknown_mean_bytes: unknown,
            swapped_peak_bytes: peaks.swapped,
            kernel_peak_bytes: charges.kernel,
            kernel_reclaimable_bytes: charges.kernel_reclaimable,
            unmapped_peak_bytes: charges.unmapped,
            unseen_peak_bytes: charges.unseen.map(|[unseen, _]| unseen),
            unmapped_needed: charges.needed(),
            foreign_bytes: charges.foreign,
        }
    }

    /// Returns what the group's own charge needs of `mapped` memory: others are charged for some, likely for as much used
    /// memory as of files in general.
    fn charged(mapped: SizeEstimate, files: SizeEstimate, memory: &SizedMemory) -> SizeEstimate {
        let foreign = memory.foreign_bytes.unwrap_or(0);
        let used = files.bytes as f64 / memory.file_peak_bytes.max(1) as f64;
        SizeEstimate {
            bytes: { mapped.bytes }.saturating_sub((foreign as f64 * used.min(1.0)) as u64),
            low_bytes: mapped.low_bytes.saturating_sub(foreign),
            ..mapped
        }
    }

    /// Returns the needs of files alone.
    fn files(&self, losses: Losses, memory: &SizedMemory) -> SizeEstimate {
        let files = losses.least(&self.distances.files, memory.file_peak_bytes);
        let [.., kept_files] = self.means(losses.seconds);
        files.map(|bytes| bytes.max(kept_files))
    }

    fn with_swap(&self, losses: Losses, memory: &SizedMemory) -> SizeAdvice {
        let [_, _, kept, _] = self.means(losses.seconds);
        let floor = kept + LEAST.min(memory.mapped_peak_bytes);
        let most = memory.mapped_peak_bytes + memory.unseen_peak_bytes.unwrap_or(0);
        let mapped = losses.least(&self.distances.all, most);
        let mapped = mapped.map(|bytes| bytes.max(floor.min(memory.mapped_peak_bytes)));
        let request = Self::charged(mapped, self.files(losses, memory), memory)
            .plus(self.charges.not_mapped(memory))
            .plus(self.charges.unseen_shared());
        let request =
            request.map(|bytes| bytes.min(memory.peak_bytes.max(memory.mapped_peak_bytes)));
        let burst = self.burst();
        let burst = burst.min(memory.mapped_peak_bytes.saturating_sub(mapped.bytes));
        let swap_backed = memory.swap_backed_peak_bytes;
        // At worst, all memory of files is in use, and takes the place of the rest.
        let in_memory = mapped.low_bytes.saturating_sub(memory.file_peak_bytes);
        let swap = SizeEstimate {
            bytes: swap_backed.saturating_sub(in_memory) + memory.swapped_peak_bytes,
            low_bytes: swap_backed.saturating_sub(mapped.high_bytes) + memory.swapped_peak_bytes,
            high_bytes: swap_backed + memory.swapped_peak_bytes,
        };
        self.advice(losses, request, burst, swap)
    }

    fn without_swap(&self, losses: Losses, memory: &SizedMemory) -> SizeAdvice {
        let swap_backed = self.charges.swap_backed.filter(|_| self.is_whole);
        let anonymous =
            swap_backed.unwrap_or(memory.swap_backed_peak_bytes) + memory.swapped_peak_bytes;
        let files = self.files(losses, memory);
        let request = SizeEstimate::exactly(anonymous)
            .plus(Self::charged(files, files, memory))
            .plus(self.charges.not_mapped(memory));
        self.advice(losses, request, 0, SizeEstimate::default())
    }

    /// Returns what to set for a need of `request`. A program that loses more than is allowed now needs at least what it
    /// has, and one that would lose that by reclaim of its page cache needs all of it.
    fn advice(
        &self,
        losses: Losses,
        mut request: SizeEstimate,
        burst: u64,
        swap: SizeEstimate,
    ) -> SizeAdvice {
        let peak = self.charges.total.unwrap_or(0);
        if losses.present > Some(losses.max_slowdown) {
            request.bytes = request.bytes.max(self.charges.mean());
            request.high_bytes = request.high_bytes.max(peak);
        }
        let [likely_ns, most_ns] = self.charges.reclaim_ns();
        if likely_ns > losses.allowed_ns() {
            request.bytes = request.bytes.max(peak);
        }
        if most_ns > losses.allowed_ns() {
            request.high_bytes = request.high_bytes.max(peak);
        }
        let burst = burst.max(self.charges.hidden_burst());
        let limit = request.plus(SizeEstimate::exactly(burst));
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
            swap,
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
