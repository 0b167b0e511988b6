//! The configurations of *DAMON: data access monitor* and of its physical memory patches (SeongJae Park, 2021): orig,
//! rec, prec, thp, ethp, prcl and pprcl, on synthetic programs.
//!
//! Problem: what the schemes save and cost depends on how programs access memory, which was not published.
//!
//! Approach: a [`Program`] has what was published of a program without DAMON: its size, run time and page cache
//! ([`Inputs`]). Two more inputs are how much sparser than huge pages its memory is, and what huge pages gained. That
//! gain determines how many of its translations are missed. For all else there is one prior for all programs:
//! - memory is filled, and files are read, evenly during the first tenth of the run, 10 s at most, from its start to
//!   its end; files are read once;
//! - one part is accessed all the time, each page [`HOT_RATE`] times a second; it lies at the start;
//! - the size of the other part is unknown: it is half ([`Knowledge::Nothing`]), or what prcl saved
//!   ([`Knowledge::Prcl`]; that number is then no prediction);
//! - each page of that part is used again after some time. These times lie between the 5 s after which the schemes call
//!   a page idle and the length of the run. They are evenly spread by their logarithm.
//!
//! The machine follows the rules of the kernel's DAMON ([`Rules::KernelDamon`]), and its memory has been in use before:
//! pieces of 4 MiB are in any order. Runs are single-threaded: the published run times are those of one thread.
//!
//! Limits: there are no phases. Nothing is known of the machine's own memory, which pprcl reclaims as well. Runs longer
//! than [`WINDOW`] are taken to go on like the last third of it.

use isotherm_engine::table::TableAttributes;
use isotherm_engine::{AddressRange, Attributes, BLOCK_SIZE, Nanos, PAGE_SIZE};
use isotherm_policy::Scheme;
use isotherm_policy::scheme::huge::MAX_WASTE;

use isotherm_sim::cost::{KERNEL_DAMON, THIS_MACHINE};
use isotherm_sim::machine::{
    AreaSpec, MachineSpec, NodeSpec, Pattern, Rates, Rules, SimMachine, SimProcessSpec, SwapKind,
    ThpMode, Use, miss_share,
};
use isotherm_sim::memory::BLOCK_PAGES;
use isotherm_sim::simulation::{SimContextSpec, Simulation, Watch};

/// Simulated part of a run.
pub const WINDOW: Nanos = Nanos::from_millis(45_000);
/// Accesses per second to each hot page: none is idle for seconds.
const HOT_RATE: f32 = 50.0;
/// Shortest time after which idle memory is used again, in seconds: the schemes' age.
const IDLE_S: f64 = 5.0;
/// Time that prcl needs to find that memory is idle, in seconds.
const NOTICED_S: f64 = 1.0;
/// The published machine's zram, in bytes.
const SWAP_BYTES: u64 = 4 << 30;
/// The published evaluation's Python wrapper, which runs wherever DAMON does: "about 10-15MB".
const WRAPPER_BYTES: f64 = 12.5e6;
/// Memory that `prec` monitors: "17GB sized System RAM region".
const PREC_BYTES: u64 = 17 << 30;
/// Number of classes of idle memory, by how long it is not used.
const IDLE_CLASSES: u32 = 24;
/// The heap, and the page cache.
const HEAP: u64 = 0x7000_0000_0000;
const FILES: u64 = 0x7e00_0000_0000;

/// Published numbers of a program without DAMON, and with huge pages for everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// Mean resident memory, in bytes.
    pub rss: f64,
    /// Mean memory of the machine that came into use, in bytes.
    pub memory_used: f64,
    /// Run time.
    pub runtime_s: f64,
    /// Share of its memory that huge pages added.
    pub huge_waste: f64,
    /// Share of its time that huge pages saved.
    pub huge_gain: f64,
    /// Share of its memory that prcl saved.
    pub saved: f64,
}

/// Knowledge about the idle part of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// Nothing is known: half of it is taken as idle.
    Nothing,
    /// The share that prcl saved of it is known.
    Prcl,
}

/// A synthetic program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Program {
    /// Its memory in bytes, once it is filled.
    pub bytes: u64,
    /// Bytes that it reads of files.
    pub file_bytes: u64,
    /// Share of its memory that idles.
    pub idle: f64,
    /// Pages filled in each block.
    pub filled_of_block: u32,
    /// Run time where nothing delays it.
    pub runtime_s: f64,
    /// Time to fill its memory.
    pub fill_s: f64,
    /// Accesses per second that may miss translations; `None` where huge pages gained nothing.
    pub accesses_per_s: Option<f64>,
}

impl Program {
    /// Builds a program from its published numbers.
    pub fn new(inputs: &Inputs, knowledge: Knowledge) -> Self {
        let runtime_s = inputs.runtime_s;
        let fill_s = (runtime_s / 10.0).min(10.0);
        // A mean over the run is smaller than the size once all is filled.
        let whole = |mean: f64| (mean.max(0.0) / (1.0 - fill_s / 2.0 / runtime_s)) as u64;
        let idle = match knowledge {
            Knowledge::Nothing => 0.5,
            Knowledge::Prcl => (inputs.saved / saved_of_idle(runtime_s, fill_s)).clamp(0.0, 1.0),
        };
        let filled = BLOCK_PAGES as f64 / (1.0 + inputs.huge_waste.max(0.0));
        let mut program = Self {
            bytes: whole(inputs.rss),
            file_bytes: whole(inputs.memory_used - inputs.rss),
            idle,
            filled_of_block: (filled.round() as u32).clamp(1, BLOCK_PAGES as u32),
            runtime_s,
            fill_s,
            accesses_per_s: None,
        };
        program.accesses_per_s = program.accesses_for(inputs.huge_gain);
        program
    }

    fn blocks(&self) -> u64 {
        (self.bytes / PAGE_SIZE).div_ceil(u64::from(self.filled_of_block))
    }

    /// Time of its work without its first faults, in seconds.
    fn work_s(&self) -> f64 {
        let pages = (self.bytes / PAGE_SIZE) as f64;
        self.runtime_s - pages * KERNEL_DAMON.minor_fault.as_secs_f64()
    }

    /// Rates of access from its start on, each with the page before which it ends.
    fn rates(&self) -> Vec<(u32, f32)> {
        let pages = (self.blocks() * BLOCK_PAGES) as f64;
        let mut rates = vec![((pages * (1.0 - self.idle)).round() as u32, HOT_RATE)];
        for class in 0..IDLE_CLASSES {
            let share = f64::from(class + 1) / f64::from(IDLE_CLASSES);
            let end = (pages * (1.0 - self.idle + self.idle * share)).round();
            let unused_s = unused_for(class, self.runtime_s);
            rates.push((end as u32, unused_s.recip() as f32));
        }
        rates
    }

    /// Returns the accesses per second with which huge pages gain `gain`. It follows from the shares of translations
    /// that are missed with small and with huge pages.
    fn accesses_for(&self, gain: f64) -> Option<f64> {
        let blocks = self.blocks() as f64;
        let costs = KERNEL_DAMON;
        let faults_s = (self.bytes / PAGE_SIZE) as f64 * costs.minor_fault.as_secs_f64()
            - blocks * costs.huge_fault.as_secs_f64();
        let gained_s = gain * self.runtime_s - faults_s;
        let small_of_block = f64::from(self.filled_of_block);
        let mut before = 0;
        let (mut small, mut huge) = (Vec::new(), Vec::new());
        for (end, rate) in self.rates() {
            let blocks = f64::from(end - before) / BLOCK_PAGES as f64;
            let rate = f64::from(rate);
            small.push((blocks * small_of_block, rate));
            huge.push((blocks, rate * small_of_block));
            before = end;
        }
        let saved = miss_share(small, costs.tlb_entries) - miss_share(huge, costs.tlb_entries);
        let per_s = gained_s / (self.work_s() * costs.tlb_miss.as_secs_f64() * saved);
        (saved > 0.0 && gained_s > 0.0).then_some(per_s)
    }

    fn processes(&self, with_translations: bool) -> Vec<SimProcessSpec> {
        let fill = Some((Nanos(0), nanos(self.fill_s)));
        let area = |name: &str, start, length, purpose, rates| {
            let range = AddressRange::new(start, start + length);
            AreaSpec {
                purpose,
                fill,
                ..AreaSpec::new(name, range, Pattern::steady(rates))
            }
        };
        let process = |name: &str, areas| SimProcessSpec {
            name: name.to_owned(),
            areas,
            ..SimProcessSpec::default()
        };
        let rates = Rates::Steps(self.rates());
        let mut heap = area("heap", HEAP, self.blocks() * BLOCK_SIZE, Use::Anon, rates);
        heap.filled_of_block = Some(self.filled_of_block);
        let mut processes = vec![process("synthetic", vec![heap])];
        processes[0].work = Some(nanos(self.work_s()));
        if with_translations {
            processes[0].accesses_per_s = self.accesses_per_s;
        }
        let file_pages = self.file_bytes / PAGE_SIZE;
        if file_pages > 0 {
            // No process maps it: it is memory of the machine, not of the program.
            let length = file_pages * PAGE_SIZE;
            let files = area("files", FILES, length, Use::File, Rates::Never);
            processes.push(process("page cache", vec![files]));
        }
        processes
    }
}

fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9) as u64)
}

/// Returns the seconds for which the pages of a class of idle memory are not used, in a run of this length.
fn unused_for(class: u32, runtime_s: f64) -> f64 {
    let longest = runtime_s.max(2.0 * IDLE_S);
    let at = (f64::from(class) + 0.5) / f64::from(IDLE_CLASSES);
    IDLE_S * libm::pow(longest / IDLE_S, at)
}

/// Returns the share of idle memory that prcl saves, on average over the run. A page is out of memory from 5 s after
/// its use until its next use.
fn saved_of_idle(runtime_s: f64, fill_s: f64) -> f64 {
    let away = |class| libm::exp(-IDLE_S / unused_for(class, runtime_s));
    let away = (0..IDLE_CLASSES).map(away).sum::<f64>() / f64::from(IDLE_CLASSES);
    let until_then = fill_s / 2.0 + IDLE_S + NOTICED_S;
    away * (1.0 - until_then / runtime_s).max(0.1)
}

/// A configuration of the evaluation.
#[derive(Clone, Debug)]
pub struct ReclaimConfiguration {
    /// Its name in the evaluation.
    pub name: &'static str,
    /// Its title here: one configuration may be simulated in several ways.
    pub title: &'static str,
    /// Huge pages are used for everything.
    pub thp: bool,
    /// Memory that DAMON monitors, if any.
    pub watched: Option<Watched>,
    /// Schemes that are applied.
    pub schemes: Vec<Scheme>,
    /// Rules that the machine follows.
    pub rules: Rules,
    /// Knowledge about the programs.
    pub knowledge: Knowledge,
}

/// Memory that a configuration monitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The program's addresses.
    Program,
    /// Physical memory: the region that `prec` monitored where there is no scheme, else all of it.
    Physical,
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReclaimOutcome {
    /// Mean resident memory, in KiB.
    pub rss_kib: f64,
    /// Mean memory of the machine that came into use, in KiB.
    pub memory_used_kib: f64,
    /// Run time.
    pub runtime_s: f64,
}

/// Simulates one run, on a machine of 36 CPUs and 128 GiB, as published, with zram.
pub fn run(program: &Program, configuration: &ReclaimConfiguration) -> ReclaimOutcome {
    let machine = SimMachine::new(MachineSpec {
        cpus: 36,
        nodes: vec![NodeSpec::new(128 << 30)],
        swap: Some((SwapKind::Zram { ratio: 3.0 }, SWAP_BYTES)),
        rules: configuration.rules,
        is_scattered: true,
        costs: match configuration.rules {
            Rules::KernelDamon => KERNEL_DAMON,
            Rules::Isotherm => THIS_MACHINE,
        },
        thp: if configuration.thp {
            ThpMode::Always
        } else {
            ThpMode::Madvise
        },
        ..MachineSpec::default()
    });
    // The other configurations have no huge pages: a translation costs there what it costs in orig.
    let with_huge = configuration.thp || configuration.schemes.iter().any(asks_for_huge);
    // Of processes with the same start time the first in the list starts first: the program is process 0.
    let starts = program.processes(with_huge).into_iter();
    let starts = starts.map(|process| (Nanos(0), process)).collect();
    let contexts = configuration.context(program).into_iter().collect();
    let mut means = Means {
        used_before: machine.used(),
        due: SECOND,
        seconds: Vec::new(),
    };
    let simulation = Simulation::new(machine, starts, contexts, WINDOW);
    let mut simulation = simulation.expect("a configuration of ours");
    if configuration.rules == Rules::Isotherm {
        simulation.set_max_waste(0, Some(MAX_WASTE));
    }
    let mut events = Vec::new();
    let mut goes_on = true;
    while goes_on {
        goes_on = simulation.step(&mut events);
        events.clear();
        let machine = simulation.machine();
        if machine.processes().first().is_some_and(|p| !p.is_running()) {
            break;
        }
        means.look(machine);
    }
    let wrapper_kib = configuration
        .watched
        .map_or(0.0, |_| WRAPPER_BYTES / 1024.0);
    means.outcome(simulation.machine(), program.work_s(), wrapper_kib)
}

fn asks_for_huge(scheme: &Scheme) -> bool {
    use isotherm_policy::scheme::Action;
    matches!(scheme.action, Action::Hugepage | Action::Collapse)
}

impl ReclaimConfiguration {
    fn context(&self, program: &Program) -> Option<SimContextSpec> {
        let faithful = Attributes::default();
        let (watch, limits) = match self.watched? {
            Watched::Program => {
                let end = HEAP + program.blocks() * BLOCK_SIZE;
                let watch = match self.rules {
                    Rules::KernelDamon => Watch::Regions(faithful),
                    Rules::Isotherm => Watch::Tables(TableAttributes::default()),
                };
                (watch, vec![AddressRange::new(HEAP, end)])
            }
            Watched::Physical if self.schemes.is_empty() => (
                Watch::Physical(faithful, None),
                vec![AddressRange::new(0, PREC_BYTES)],
            ),
            Watched::Physical => (Watch::Physical(faithful, None), Vec::new()),
        };
        Some(SimContextSpec {
            limits,
            ..SimContextSpec::new(watch, self.schemes.clone())
        })
    }
}

const SECOND: Nanos = Nanos::from_millis(1_000);

#[derive(Clone, Copy, Debug)]
struct Second {
    at: Nanos,
    work: Nanos,
    rss: f64,
    used: f64,
}

struct Means {
    used_before: u64,
    due: Nanos,
    seconds: Vec<Second>,
}

impl Means {
    fn look(&mut self, machine: &SimMachine) {
        if machine.now() < self.due {
            return;
        }
        self.due = self.due + SECOND;
        let process = &machine.processes()[0];
        self.seconds.push(Second {
            at: machine.now(),
            work: process.work(),
            rss: process.rss() as f64,
            used: machine.used() as f64 - self.used_before as f64,
        });
    }

    /// Returns the outcome of the whole run. The part that was not simulated is like the last third of the simulated
    /// one.
    fn outcome(&self, machine: &SimMachine, work_s: f64, wrapper_kib: f64) -> ReclaimOutcome {
        let process = &machine.processes()[0];
        let ended = process.ended.unwrap_or(WINDOW).as_secs_f64();
        let tail = &self.seconds[self.seconds.len() * 2 / 3..];
        let rest_s = match (process.is_running(), tail.first(), tail.last()) {
            (true, Some(first), Some(last)) if last.work > first.work => {
                let pace = last.at.since(first.at).as_secs_f64()
                    / last.work.since(first.work).as_secs_f64();
                (work_s - process.work().as_secs_f64()).max(0.0) * pace
            }
            _ => 0.0,
        };
        let whole = |of: fn(&Second) -> f64| {
            let mean = |seconds: &[Second]| {
                seconds.iter().map(of).sum::<f64>() / seconds.len().max(1) as f64
            };
            (mean(&self.seconds) * ended + mean(tail) * rest_s) / (ended + rest_s) / 1024.0
        };
        ReclaimOutcome {
            rss_kib: whole(|second| second.rss),
            memory_used_kib: whole(|second| second.used) + wrapper_kib,
            runtime_s: ended + rest_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

    fn inputs() -> Inputs {
        Inputs {
            rss: 0.1 * GIB,
            memory_used: 0.15 * GIB,
            runtime_s: 30.0,
            huge_waste: 0.5,
            huge_gain: 0.1,
            saved: 0.3,
        }
    }

    fn configuration(thp: bool) -> ReclaimConfiguration {
        ReclaimConfiguration {
            name: "",
            title: "",
            thp,
            watched: None,
            schemes: Vec::new(),
            rules: Rules::KernelDamon,
            knowledge: Knowledge::Nothing,
        }
    }

    #[track_caller]
    fn check(name: &str, is: f64, expected: f64, within: f64) {
        let off = (is / expected - 1.0).abs();
        assert!(off < within, "{name}: {is}, expected {expected}");
    }

    #[test]
    fn what_is_put_in_comes_out() {
        let program = Program::new(&inputs(), Knowledge::Nothing);
        let orig = run(&program, &configuration(false));
        check("RSS", orig.rss_kib, inputs().rss / 1024.0, 0.02);
        let used = inputs().memory_used / 1024.0;
        check("memory used", orig.memory_used_kib, used, 0.02);
        check("run time", orig.runtime_s, inputs().runtime_s, 0.01);
        let thp = run(&program, &configuration(true));
        check("RSS, thp", thp.rss_kib, 1.5 * orig.rss_kib, 0.05);
        check("run time, thp", thp.runtime_s, 0.9 * orig.runtime_s, 0.02);
    }

    #[test]
    fn longer_runs_go_on_as_they_did() {
        let long = Inputs {
            runtime_s: 300.0,
            ..inputs()
        };
        let program = Program::new(&long, Knowledge::Nothing);
        let orig = run(&program, &configuration(false));
        check("RSS", orig.rss_kib, long.rss / 1024.0, 0.02);
        check("run time", orig.runtime_s, 300.0, 0.01);
    }

    #[test]
    fn what_idles_is_half_or_what_prcl_saved() {
        let blind = Program::new(&inputs(), Knowledge::Nothing);
        check("blind", blind.idle, 0.5, 0.001);
        let given = Program::new(&inputs(), Knowledge::Prcl);
        // 5 s to be idle, 1 s to be noticed, 1.5 s to be filled: a quarter of the run.
        assert!(given.idle > 0.3 / 0.75 && given.idle < 0.9, "{given:?}");
    }
}
