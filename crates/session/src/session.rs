//! A recording session: it starts the command and the monitors, and returns items until it ends.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use isotherm_config::{ContextSpec, MonitorSpec, SessionSpec, TargetSpec};
use isotherm_engine::{AddressRange, Cost, CpuAccount, CpuLedger, Nanos, TargetId};
use isotherm_linux::clock::{Clock, process_cpu};
use isotherm_linux::delays;
use isotherm_linux::privileges::{self, Work};
use isotherm_linux::process::Process;
use isotherm_record::{Header, Item, TargetExit};

use crate::meters::Meters;
use crate::monitor::Monitor;
use crate::signals::Signals;
use crate::stacks::Stacks;
use crate::start::parts::{Started, group_of};
use crate::start::{header, start};

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The session goes on.
    Going,
    /// All targets have ended.
    Ended,
    /// A signal has asked for the end.
    Stopped,
}

/// Target id of the command, the first target of its session.
const COMMAND: TargetId = TargetId(0);
/// Time to wait for the exit of a process: its memory is gone before it can be waited for.
const ENDING: Duration = Duration::from_millis(200);

/// A running session.
#[expect(
    clippy::struct_excessive_bools,
    reason = "none follows from the others"
)]
pub struct Session {
    clock: Clock,
    pub(crate) monitor: Box<dyn Monitor>,
    cpu: CpuLedger,
    stacks: Option<Stacks>,
    meters: Meters,
    child: Option<Child>,
    /// Set once the record holds the command's exit status.
    child_end_told: bool,
    signals: Signals,
    /// Further file descriptor that ends a sleep when it is readable.
    wakes: Option<OwnedFd>,
    wake_at: Nanos,
    /// Set while nothing is watched; all other work of the session goes on.
    pub(crate) is_resting: bool,
    /// Set when all targets have ended.
    is_over: bool,
    header: Header,
    first_cost: Option<Cost>,
    /// Notes to report with the first step.
    notes: Vec<String>,
    cpu_budget: Option<f64>,
    clears_refs: bool,
    opens_files: bool,
}

impl Session {
    /// Starts the command, if one is given, and attaches to the targets of all contexts. `command_line` goes into the
    /// record's header.
    ///
    /// # Errors
    /// Fails if this machine refuses something; the error names a remedy.
    pub fn start(spec: &SessionSpec, command_line: Vec<String>) -> anyhow::Result<Self> {
        Self::start_within(spec, command_line, Signals::watch()?)
    }

    /// Starts a session that is ended by `signals` of [another thread](Signals::of_another).
    pub(crate) fn start_within(
        spec: &SessionSpec,
        command_line: Vec<String>,
        signals: Signals,
    ) -> anyhow::Result<Self> {
        let clock = Clock::start();
        // Sampling starts first, so that no fault of the command is missed.
        let stacks = Stacks::start(spec, clock)?;
        let Started {
            monitor,
            child,
            notes,
        } = start(spec, clock.now())?;
        let now = clock.now();
        let cpu = CpuLedger::default();
        let mut header = header(spec, command_line, monitor.status(cpu).intervals, now);
        header
            .settings
            .extend(stacks.as_ref().map(Stacks::huge_pages_setting));
        Ok(Self {
            clock,
            monitor,
            cpu,
            stacks,
            meters: Meters::of_group(match &spec.contexts[..] {
                [one] => group_of(&one.targets)?,
                _ => None,
            }),
            child,
            child_end_told: false,
            signals,
            wakes: None,
            wake_at: now,
            is_resting: false,
            is_over: false,
            header,
            first_cost: None,
            notes,
            cpu_budget: spec.cpu_budget(),
            clears_refs: spec.contexts.iter().any(clears_refs),
            opens_files: spec.contexts.iter().any(watches_page_cache) || spec.stacks.is_some(),
        })
    }

    /// Drops the capabilities that watching no longer needs, nor acting if it `acts`. All files and sockets are open by
    /// now, and the command runs with the caller's capabilities.
    pub fn give_up_privileges(&self, acts: bool) -> anyhow::Result<()> {
        privileges::keep_only(Work {
            acts,
            clears_refs: self.clears_refs,
            opens_files: self.opens_files,
            reads_delays: acts && delays::is_on(),
            ends_command: self.child.is_some(),
        })?;
        Ok(())
    }

    /// Header of the record, to be written first.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// CPU budget of watching in all contexts, as a share of one CPU; `None` without a budget.
    pub fn cpu_budget(&self) -> Option<f64> {
        self.cpu_budget
    }

    /// Present intervals.
    pub fn intervals(&self) -> isotherm_engine::Intervals {
        self.monitor.status(self.cpu).intervals
    }

    /// Present time by the session's clock.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Live targets.
    pub fn live(&self) -> Vec<(TargetId, &Process)> {
        self.monitor.live()
    }

    /// Returns another handle of a live target's process.
    pub fn process(&self, target: TargetId) -> Option<std::io::Result<Process>> {
        let live = self.monitor.live();
        let (_, process) = live.iter().find(|(id, _)| *id == target)?;
        Some(process.try_clone())
    }

    /// Charges CPU time of this process outside the monitor's steps.
    pub fn charge(&mut self, account: CpuAccount, cpu: Nanos) {
        self.cpu.charge(account, cpu);
    }

    /// Resets the age of memory that was acted on.
    pub fn reset_age(&mut self, target: TargetId, range: AddressRange) {
        self.monitor.reset_age(target, range, self.clock.now());
    }

    /// Whether a signal has asked for the end.
    pub fn is_stopped(&self) -> bool {
        self.signals.is_stopped()
    }

    /// Makes SIGHUP no longer end the session; [`Session::take_hang_up`] reports it instead.
    pub fn outlive_hang_up(&mut self) {
        self.signals.outlive_hang_up();
    }

    /// Whether SIGHUP has come since the last call.
    pub fn take_hang_up(&self) -> bool {
        self.signals.take_hang_up()
    }

    /// Makes a step end early when `wakes` is readable.
    pub fn wake_by(&mut self, wakes: OwnedFd) {
        self.wakes = Some(wakes);
    }

    /// Sleeps until the next work is due, at most until `until`, does the work, and appends the new items.
    pub fn step(&mut self, until: Nanos, items: &mut Vec<Item>) -> anyhow::Result<Step> {
        if self.is_over {
            return Ok(Step::Ended);
        }
        let mut wakes = vec![self.signals.wakes()];
        wakes.extend(self.wakes.as_ref().map(AsFd::as_fd));
        wakes.extend(self.stacks.as_ref().map(Stacks::wakes));
        let wake_at = if self.is_resting {
            until
        } else {
            self.wake_at.min(until)
        };
        let wake_at = self
            .stacks
            .as_ref()
            .map_or(wake_at, |stacks| wake_at.min(stacks.next_drain));
        self.clock.sleep_until(wake_at, &wakes);
        if self.is_stopped() {
            return Ok(Step::Stopped);
        }
        let now = self.clock.now();
        let notes = self.notes.drain(..);
        items.extend(notes.map(|text| Item::Note { time: now, text }));
        if self.signals.take_child_end() {
            self.monitor.look_for_ends(now);
            self.wake_at = now;
        }
        let first_new = items.len();
        if now >= self.wake_at && !self.is_resting {
            let next = self.monitor.step(now, self.cpu, items)?;
            self.tell_child_end(&mut items[first_new..], ENDING);
            match next {
                Some(wake_at) => self.wake_at = wake_at,
                None => self.is_over = true,
            }
            if self.is_over {
                return Ok(Step::Ended);
            }
            self.first_cost
                .get_or_insert_with(|| self.monitor.status(self.cpu).cost);
        }
        // A step that wakes early means that the buffer fills. Faults in mappings that are gone must precede the
        // change.
        let is_of_mappings = |item: &Item| matches!(item, Item::Mappings(_));
        let at_once = now < wake_at || items[first_new..].iter().any(is_of_mappings);
        let mut stacks = Vec::new();
        self.collect_stacks(now, at_once, &mut stacks)?;
        items.splice(first_new..first_new, stacks);
        let before = process_cpu();
        self.meters
            .read(self.monitor.as_ref(), self.cpu, now, false, items);
        self.charge(CpuAccount::Watching, process_cpu().since(before));
        Ok(Step::Going)
    }

    /// Collects the code that has touched memory since the last call. It has a budget of its own.
    fn collect_stacks(
        &mut self,
        now: Nanos,
        at_once: bool,
        items: &mut Vec<Item>,
    ) -> anyhow::Result<()> {
        let Some(stacks) = &mut self.stacks else {
            return Ok(());
        };
        if now < stacks.next_drain && !at_once {
            return Ok(());
        }
        let before = stacks.cpu();
        stacks.step(now, self.monitor.as_mut(), items)?;
        let spent = stacks.cpu().since(before);
        self.charge(CpuAccount::Stacks, spent);
        Ok(())
    }

    /// Ends the session: appends all pending items and the last summary. If the session started the command and it has
    /// ended, its exit is among them.
    pub fn finish(&mut self, items: &mut Vec<Item>) {
        let now = self.clock.now();
        let first_new = items.len();
        let has_begun = self.first_cost.is_some() && !self.is_resting;
        if has_begun && let Err(error) = self.monitor.last_look(now, items) {
            let text = format!("the last look has failed: {error:#}");
            items.push(Item::Note { time: now, text });
        }
        let mut stacks = Vec::new();
        if let Err(error) = self.collect_stacks(now, true, &mut stacks) {
            let text = format!("the last stacks are not known: {error:#}");
            items.push(Item::Note { time: now, text });
        }
        items.splice(first_new..first_new, stacks);
        if let Some(stacks) = &mut self.stacks {
            let before = stacks.cpu();
            stacks.finish(now, self.monitor.as_mut(), items);
            let spent = stacks.cpu().since(before);
            self.cpu.charge(CpuAccount::Stacks, spent);
        }
        self.meters
            .read(self.monitor.as_ref(), self.cpu, now, true, items);
        if !self.child_end_told {
            // The command ended just now, or before the first scan.
            let mut exit = [Item::TargetExit(TargetExit {
                time: now,
                target: COMMAND,
                ..TargetExit::default()
            })];
            let timeout = if self.is_over { ENDING } else { Duration::ZERO };
            self.tell_child_end(&mut exit, timeout);
            if self.child_end_told {
                items.extend(exit);
            }
        }
        items.extend(self.summary().map(|text| Item::Note { time: now, text }));
    }

    /// Adds the exit status, which only the parent gets, to the command's exit among `items`. It waits for at most
    /// `timeout`.
    fn tell_child_end(&mut self, items: &mut [Item], timeout: Duration) {
        use std::os::unix::process::ExitStatusExt;
        let Some(child) = &mut self.child else { return };
        for item in items {
            if let Item::TargetExit(exit) = item
                && exit.target == COMMAND
                && let Some(status) = wait_for(child, timeout)
            {
                exit.exit_code = status.code();
                exit.signal = status.signal();
                self.child_end_told = true;
            }
        }
    }

    /// Takes the command that was started, to wait for it.
    pub fn take_child(&mut self) -> Option<Child> {
        self.child.take()
    }

    /// Cost since the first step (loading the program is not counted), and peak memory.
    pub fn cost(&self) -> (Cost, u64) {
        let total = self.monitor.status(self.cpu).cost;
        let first = self.first_cost.unwrap_or(total);
        let cost = Cost {
            monitor_cpu: total.monitor_cpu.since(first.monitor_cpu),
            induced_cpu: total.induced_cpu.since(first.induced_cpu),
            ..total
        };
        (cost, self.meters.peak_rss)
    }

    /// Remark of the monitoring method.
    pub fn summary(&self) -> Option<String> {
        self.monitor.summary(self.cpu)
    }
}

fn watches_page_cache(context: &ContextSpec) -> bool {
    match &context.monitor {
        MonitorSpec::Tables(_) => context.targets.is_machine(),
        MonitorSpec::Pages(attributes) => {
            attributes.counts_once && matches!(context.targets, TargetSpec::Cgroup(_))
        }
        MonitorSpec::Regions(_) => false,
    }
}

/// Whether accessed bits may be cleared by `/proc/PID/clear_refs`, too.
fn clears_refs(context: &ContextSpec) -> bool {
    let is_by_regions = matches!(context.monitor, MonitorSpec::Regions(_));
    !matches!(context.targets, TargetSpec::Simulated) && !is_by_regions
}

/// Returns the exit status of the command if it ends within `timeout`.
fn wait_for(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if started.elapsed() < timeout => {
                std::thread::sleep(Duration::from_millis(1));
            }
            status => return status.ok().flatten(),
        }
    }
}
