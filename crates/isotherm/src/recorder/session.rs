//! A recording session: starts what was asked for, and yields items until it is over.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use isotherm_engine::{AddressRange, Cost, Nanos, TargetId};
use isotherm_linux::clock::Clock;
use isotherm_linux::probe::PageTableProbe;
use isotherm_linux::process::Process;
use isotherm_linux::{cgroup, host, node};
use isotherm_record::{Header, Item, TargetExit};

use super::meters::Meters;
use super::options::{CommandOutput, Method, MonitorArgs, TargetArgs};
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
    knows_every_page: bool,
}

impl Session {
    /// Starts the command, if one was given, and takes hold of the targets.
    pub(crate) fn start(targets: &TargetArgs, how: &MonitorArgs) -> anyhow::Result<Self> {
        targets.validate()?;
        let clock = Clock::start();
        let signals = Signals::watch()?;
        // Everything that can be refused is refused before the command starts.
        let (mut monitor, child) = if targets.simulated {
            let simulated: Box<dyn Monitor> = Box::new(Simulated::new(how.attributes()?)?);
            (simulated, None)
        } else if targets.physical {
            (physical(targets, how)?, None)
        } else {
            virtual_memory(targets, how, clock.now())?
        };
        let now = clock.now();
        let header = header(targets, how, monitor.as_mut(), now);
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
            knows_every_page: !targets.physical
                && !targets.simulated
                && matches!(how.method(), Ok(Method::Tables(_))),
        })
    }

    /// What to write first.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// The time by the session's clock.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Whether an accessed bit that is set says that the page was accessed lately.
    pub(crate) fn knows_every_page(&self) -> bool {
        self.knows_every_page
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
            self.tell_child_end(&mut items[first_new..]);
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
            // It ended just now, and nobody has noticed yet.
            let mut exit = [Item::TargetExit(TargetExit {
                time: now,
                target: COMMAND,
                ..TargetExit::default()
            })];
            self.tell_child_end(&mut exit);
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

    /// Adds to the command's exit among `items` what only its parent knows.
    fn tell_child_end(&mut self, items: &mut [Item]) {
        use std::os::unix::process::ExitStatusExt;
        let Some(child) = &mut self.child else { return };
        for item in items {
            if let Item::TargetExit(exit) = item
                && exit.target == COMMAND
                && let Ok(Some(status)) = child.try_wait()
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

fn physical(targets: &TargetArgs, how: &MonitorArgs) -> anyhow::Result<Box<dyn Monitor>> {
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
    Ok(Box::new(Physical::new(ranges, attributes)?))
}

fn virtual_memory(
    targets: &TargetArgs,
    how: &MonitorArgs,
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
            let started = command.spawn();
            let started =
                started.with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
            child = Some(started);
        }
        Wanted::Processes {
            pids: targets.pid.clone(),
            command: child.as_ref().map(Child::id),
            children: targets.children,
        }
    };
    let set = TargetSet::new(wanted, targets.range.clone());
    let monitor: Box<dyn Monitor> = match method {
        Method::Tables(attributes) => Box::new(Tables::new(probe, set, attributes, now)),
        Method::Regions(attributes) => Box::new(Regions::new(probe, set, attributes)?),
        Method::Pages { interval } => Box::new(Pages::new(probe, set, interval, how)),
    };
    Ok((monitor, child))
}

fn header(
    targets: &TargetArgs,
    how: &MonitorArgs,
    monitor: &mut dyn Monitor,
    now: Nanos,
) -> Header {
    let intervals = monitor.intervals();
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
    let mut settings = std::collections::BTreeMap::from([
        ("method".to_owned(), method.to_owned()),
        ("seed".to_owned(), how.seed.to_string()),
        ("faithful".to_owned(), how.faithful.to_string()),
    ]);
    if how.pages {
        settings.insert("granularity".to_owned(), "page".to_owned());
    }
    let budget = how.cpu_budget.unwrap_or(0.01);
    let has_budget = !how.pages
        && !how.faithful
        && how.sample_interval.is_none()
        && how.aggregation_interval.is_none();
    if has_budget {
        settings.insert("cpu_budget".to_owned(), format!("{budget}"));
    }
    Header {
        writer: format!("isotherm {}", env!("CARGO_PKG_VERSION")),
        host: host::hostname(),
        kernel: host::kernel_release(),
        command: std::env::args().collect(),
        started: now,
        operations: if targets.physical { "paddr" } else { "vaddr" }.to_owned(),
        sample_interval: intervals.sample,
        aggregation_interval: intervals.aggregation,
        update_interval: intervals.update,
        settings,
    }
}
