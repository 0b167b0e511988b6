//! A recording session: starts what was asked for, and yields items until it is over.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use isotherm_engine::{AddressRange, Cost, Nanos, TargetId};
use isotherm_linux::clock::Clock;
use isotherm_linux::privileges::{self, Work};
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::{Process, raise_file_limit};
use isotherm_linux::{cgroup, delays, host, node};
use isotherm_record::{Header, Item, TargetExit};

use super::contexts::Contexts;
use super::meters::Meters;
use super::options::{CPU_BUDGET, CommandOutput, Context, Method, MonitorArgs, TargetArgs};
use super::pages::Pages;
use super::physical::Physical;
use super::regions::Regions;
use super::signals::Signals;
use super::simulated::Simulated;
use super::tables::Tables;
use super::targets::{TargetSet, Wanted};
use super::{Ended, Monitor};

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Go on.
    Going,
    /// Over, by itself.
    Ended,
    /// A signal asked for the end.
    Stopped,
}

/// The command is the first target of its session.
const COMMAND: TargetId = TargetId(0);
/// A process gives up its memory before it can be waited for: it is waited for this long.
const ENDING: Duration = Duration::from_millis(200);

/// A running session.
pub(crate) struct Session {
    clock: Clock,
    monitor: Box<dyn Monitor>,
    meters: Meters,
    child: Option<Child>,
    /// The record says how the command ended.
    child_end_told: bool,
    signals: Signals,
    /// What else ends a sleep, when it is readable.
    wakes: Option<OwnedFd>,
    wake_at: Nanos,
    /// All targets are gone.
    is_over: bool,
    header: Header,
    first_cost: Option<Cost>,
    /// For each context.
    knows_every_page: Vec<bool>,
    clears_refs: bool,
}

impl Session {
    /// Starts the command, if one was given, and takes hold of the targets of all `contexts`.
    pub(crate) fn start(contexts: &[Context]) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let signals = Signals::watch()?;
        let (monitor, child) = match contexts {
            [Context { targets, how, .. }] => monitor(targets, how, 1, clock.now())?,
            _ => (several(contexts, clock.now())?, None),
        };
        let now = clock.now();
        let header = header(contexts, monitor.as_ref(), now);
        Ok(Self {
            clock,
            monitor,
            meters: Meters::default(),
            child,
            child_end_told: false,
            signals,
            wakes: None,
            wake_at: now,
            is_over: false,
            header,
            first_cost: None,
            knows_every_page: contexts.iter().map(knows_every_page).collect(),
            clears_refs: contexts.iter().any(clears_refs),
        })
    }

    /// Gives up the capabilities that watching, and acting if it `acts`, needs no longer. All files and
    /// sockets are open, and the command, which keeps the caller's, runs.
    pub(crate) fn give_up_privileges(&self, acts: bool) -> anyhow::Result<()> {
        privileges::keep_only(Work {
            acts,
            clears_refs: self.clears_refs,
            reads_delays: acts && delays::is_on(),
            ends_command: self.child.is_some(),
        })?;
        Ok(())
    }

    /// What to write first.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// The intervals at present.
    pub(crate) fn intervals(&self) -> isotherm_engine::Intervals {
        self.monitor.intervals()
    }

    /// The time by the session's clock.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Whether an accessed bit that is set says, in a context, that the page was accessed lately.
    pub(crate) fn knows_every_page(&self, context: usize) -> bool {
        self.knows_every_page[context]
    }

    /// The place of the context that a target belongs to.
    pub(crate) fn context_of(&self, target: TargetId) -> usize {
        self.monitor.context_of(target)
    }

    /// The live targets.
    pub(crate) fn live(&self) -> Vec<(TargetId, &Process)> {
        self.monitor.live()
    }

    /// Another hold of a live target.
    pub(crate) fn process(&self, target: TargetId) -> Option<std::io::Result<Process>> {
        let live = self.monitor.live();
        let (_, process) = live.iter().find(|(id, _)| *id == target)?;
        Some(process.try_clone())
    }

    /// `cpu` was spent on something else than watching.
    pub(crate) fn leave_out(&mut self, cpu: Nanos) {
        self.monitor.leave_out(cpu);
    }

    /// Memory was acted on: its age counts anew.
    pub(crate) fn reset_age(&mut self, target: TargetId, range: AddressRange) {
        self.monitor.reset_age(target, range, self.clock.now());
    }

    /// Asks for the end, as a signal does.
    pub(crate) fn is_stopped(&self) -> bool {
        self.signals.is_stopped()
    }

    /// From now on SIGHUP is no end, but asked for by [`Session::take_hang_up`].
    pub(crate) fn outlive_hang_up(&mut self) {
        self.signals.outlive_hang_up();
    }

    /// Whether SIGHUP has come since this was last asked.
    pub(crate) fn take_hang_up(&self) -> bool {
        self.signals.take_hang_up()
    }

    /// From now on a step ends early when `wakes` is readable.
    pub(crate) fn wake_by(&mut self, wakes: OwnedFd) {
        self.wakes = Some(wakes);
    }

    /// Sleeps until something is due, at most until `until`, does it, and appends what there is to
    /// tell.
    pub(crate) fn step(&mut self, until: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Step> {
        if self.is_over {
            return Ok(Step::Ended);
        }
        let mut wakes = vec![self.signals.wakes()];
        wakes.extend(self.wakes.as_ref().map(AsFd::as_fd));
        self.clock.sleep_until(self.wake_at.min(until), &wakes);
        if self.is_stopped() {
            return Ok(Step::Stopped);
        }
        let now = self.clock.now();
        if self.signals.take_child_end() {
            self.monitor.look_for_ends(now);
            self.wake_at = now;
        }
        if now >= self.wake_at {
            let first_new = items.len();
            let next = self.monitor.step(now, items)?;
            self.tell_child_end(&mut items[first_new..], ENDING);
            match next {
                Ok(wake_at) => self.wake_at = wake_at,
                Err(Ended::TargetsGone) => self.is_over = true,
            }
            if self.is_over {
                return Ok(Step::Ended);
            }
            self.first_cost.get_or_insert_with(|| self.monitor.cost());
        }
        self.meters.read(self.monitor.as_ref(), now, false, items);
        Ok(Step::Going)
    }

    /// Last words: the cost so far and, where the command was ours and has ended, how.
    pub(crate) fn finish(&mut self, items: &mut Vec<Item>) {
        let now = self.clock.now();
        self.meters.read(self.monitor.as_ref(), now, true, items);
        if !self.child_end_told {
            // It ended just now, or before it could be looked at.
            let mut exit = [Item::TargetExit(TargetExit {
                time: now,
                target: COMMAND,
                ..TargetExit::default()
            })];
            let patience = if self.is_over { ENDING } else { Duration::ZERO };
            self.tell_child_end(&mut exit, patience);
            if self.child_end_told {
                items.extend(exit);
            }
        }
        items.extend(
            self.monitor
                .summary()
                .map(|text| Item::Note { time: now, text }),
        );
    }

    /// Adds to the command's exit among `items` what only its parent knows, if that is known within `patience`.
    fn tell_child_end(&mut self, items: &mut [Item], patience: Duration) {
        use std::os::unix::process::ExitStatusExt;
        let Some(child) = &mut self.child else { return };
        for item in items {
            if let Item::TargetExit(exit) = item
                && exit.target == COMMAND
                && let Some(status) = wait_for(child, patience)
            {
                exit.exit_code = status.code();
                exit.signal = status.signal();
                self.child_end_told = true;
            }
        }
    }

    /// The command that was started, to wait for.
    pub(crate) fn take_child(&mut self) -> Option<Child> {
        self.child.take()
    }

    /// Cost since the first step (loading the program is not counted), and peak memory.
    pub(crate) fn cost(&self) -> (Cost, u64) {
        let total = self.monitor.cost();
        let first = self.first_cost.unwrap_or(total);
        let cost = Cost {
            monitor_cpu: total.monitor_cpu.since(first.monitor_cpu),
            induced_cpu: total.induced_cpu.since(first.induced_cpu),
            ..total
        };
        (cost, self.meters.peak_rss())
    }

    /// The method's own remark.
    pub(crate) fn summary(&self) -> Option<String> {
        self.monitor.summary()
    }
}

fn knows_every_page(context: &Context) -> bool {
    let Context { targets, how, .. } = context;
    !targets.physical && !targets.simulated && matches!(how.method(), Ok(Method::Tables(_)))
}

/// How the command ended, if it does within `patience`.
fn wait_for(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if started.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(1));
            }
            status => return status.ok().flatten(),
        }
    }
}

/// The monitors of several contexts, as one.
fn several(contexts: &[Context], now: Nanos) -> anyhow::Result<Box<dyn Monitor>> {
    let mut monitors = Vec::new();
    for (at, Context { name, targets, how }) in contexts.iter().enumerate() {
        let name = name.clone().unwrap_or_else(|| format!("context {at}"));
        assert!(
            targets.command.is_empty(),
            "a command is its session's only target"
        );
        let started = monitor(targets, how, contexts.len(), now);
        let (monitor, _) = started.with_context(|| format!("{name} cannot be started"))?;
        monitors.push((name, monitor));
    }
    Ok(Box::new(Contexts::new(monitors)))
}

/// The monitor of one of `nr` contexts. Everything that can be refused is refused before a command
/// starts.
fn monitor(
    targets: &TargetArgs,
    how: &MonitorArgs,
    nr: usize,
    now: Nanos,
) -> anyhow::Result<(Box<dyn Monitor>, Option<Child>)> {
    targets.validate()?;
    if targets.simulated {
        return Ok((Box::new(Simulated::new(how.attributes()?)?), None));
    }
    if targets.physical {
        return Ok((physical(targets, how, nr)?, None));
    }
    virtual_memory(targets, how, nr, now)
}

fn physical(
    targets: &TargetArgs,
    how: &MonitorArgs,
    nr: usize,
) -> anyhow::Result<Box<dyn Monitor>> {
    if how.pages {
        bail!("--pages reads a process's page tables; for physical memory leave it out");
    }
    let mut ranges = node::ram(targets.node)?;
    if !targets.range.is_empty() {
        let limits = &targets.range;
        ranges = ranges
            .iter()
            .flat_map(|ram| limits.iter().filter_map(|l| ram.intersection(*l)))
            .collect();
        ranges.sort_unstable();
        if ranges.is_empty() {
            bail!("there is no RAM within the ranges given; see /proc/iomem");
        }
    }
    let mut attributes = how.attributes()?;
    // Neighbouring frames belong to different processes: a range of them cannot be cleared at once.
    attributes.strategy.cluster_pages = 1;
    attributes.strategy.populated_only = false;
    Ok(Box::new(Physical::new(ranges, attributes, nr)?))
}

fn virtual_memory(
    targets: &TargetArgs,
    how: &MonitorArgs,
    nr: usize,
    now: Nanos,
) -> anyhow::Result<(Box<dyn Monitor>, Option<Child>)> {
    let method = how.method()?;
    let cgroup = targets.cgroup.as_deref().map(cgroup::find).transpose()?;
    let probe = PageTableProbe::new().map_err(host::explain)?;
    let mut child = None;
    let wanted = if let Some(directory) = cgroup {
        Wanted::Cgroup(directory)
    } else {
        if let Some((program, arguments)) = targets.command.split_first() {
            let mut command = Command::new(program);
            command.args(arguments);
            if targets.command_output == CommandOutput::Discarded {
                command
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
            }
            if targets.children {
                // Those whose parents end become our children, and so are found.
                nix::sys::prctl::set_child_subreaper(true)
                    .context("cannot become the parent of the command's orphans")?;
            }
            let started = command.spawn();
            let started =
                started.with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
            child = Some(started);
        }
        Wanted::Processes {
            pids: targets.pids()?,
            command: child.as_ref().map(Child::id),
            children: targets.children,
        }
    };
    // After the command was started, which is to have the limit that it would have without us.
    let files = raise_file_limit() / nr.max(1) as u64;
    let set = TargetSet::new(wanted, targets.range.clone(), files);
    let monitor: Box<dyn Monitor> = match method {
        Method::Tables(attributes) => Box::new(Tables::new(probe, set, attributes, now)),
        Method::Regions(attributes) => Box::new(Regions::new(probe, set, attributes)?),
        Method::Pages { interval } => Box::new(Pages::new(probe, set, interval, how)),
    };
    Ok((monitor, child))
}

/// Whether accessed bits may be cleared by `/proc/PID/clear_refs`, too.
fn clears_refs(context: &Context) -> bool {
    let is_by_regions = matches!(context.how.method(), Ok(Method::Regions(_)));
    !context.targets.physical && !context.targets.simulated && !is_by_regions
}

fn header(contexts: &[Context], monitor: &dyn Monitor, now: Nanos) -> Header {
    let intervals = monitor.intervals();
    let mut settings = std::collections::BTreeMap::new();
    let mut operations: Vec<&str> = Vec::new();
    for Context { name, targets, how } in contexts {
        // One alone is not named, so that records of one look as they always did.
        let prefix = name.as_ref().map_or_else(String::new, |n| format!("{n}: "));
        settings
            .extend(settings_of(targets, how).map(|(key, value)| (prefix.clone() + key, value)));
        operations.push(if targets.physical { "paddr" } else { "vaddr" });
    }
    if contexts.iter().any(|context| context.how.pages) {
        settings.insert("granularity".to_owned(), "page".to_owned());
    }
    operations.sort_unstable();
    operations.dedup();
    Header {
        writer: format!("isotherm {}", env!("CARGO_PKG_VERSION")),
        host: host::hostname(),
        kernel: host::kernel_release(),
        command: crate::out::command_line(),
        started: now,
        operations: operations.join("+"),
        sample_interval: intervals.sample,
        aggregation_interval: intervals.aggregation,
        update_interval: intervals.update,
        settings,
    }
}

fn settings_of(
    targets: &TargetArgs,
    how: &MonitorArgs,
) -> impl Iterator<Item = (&'static str, String)> {
    let method = if targets.simulated {
        "simulated"
    } else if targets.physical {
        "regions"
    } else {
        match how.method() {
            Ok(Method::Tables(_)) => "tables",
            Ok(Method::Pages { .. }) => "pages",
            _ => "regions",
        }
    };
    let budget = how.has_budget().then(|| {
        (
            "cpu_budget",
            how.cpu_budget.unwrap_or(CPU_BUDGET).to_string(),
        )
    });
    [
        ("method", method.to_owned()),
        ("seed", how.seed.to_string()),
        ("faithful", how.faithful.to_string()),
    ]
    .into_iter()
    .chain(budget)
}
