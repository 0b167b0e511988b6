//! `isotherm compact`: compacts memory ahead of demand, so that huge pages are there when they are
//! asked for.
//!
//! The engine's controller decides, this machine's kernel compacts; here they are joined, for each
//! node in turn.

mod journal;
mod node;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use isotherm_engine::Nanos;
use isotherm_engine::compaction::{
    CompactionAttributes, CompactionDecision, CompactionState, NodeFacts,
};
use isotherm_linux::clock::{self, Clock};
use isotherm_linux::compaction::{Fragmentation, kernel_proactiveness};

use isotherm_engine::units::{format_time, parse_time};
use isotherm_session::Signals;

use journal::Journal;
use node::{Node, Round, Standing};
use show::{Event, NodeReport, Report, Say};

/// A check costs about a fifth of a millisecond.
const CHECK_INTERVAL_MIN: Nanos = Nanos::from_millis(10);

/// Compact memory before huge pages are asked for.
///
/// A node whose free memory lies too much in small blocks (its score, 0 to 100, exceeds 110 -
/// proactiveness) is compacted until that is better by 10 points. kswapd goes first; a round that
/// brings nothing puts the next off by half a minute. The kernel does the same by itself where
/// vm.compaction_proactiveness is not 0, for huge pages only, from Linux 5.9 on; that setting is left
/// as it is.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm compact --dry-run                          how fragmented memory is, and what would be done
  isotherm compact --proactiveness 60                 one round, if a node's score exceeds 50
  isotherm compact --daemon --order 4                 keep blocks of 64 KiB available
  isotherm compact --daemon --duration 5min -o c.isotherm; isotherm report fragmentation c.isotherm")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Args {
    /// Only this NUMA node
    #[arg(long, value_name = "N")]
    node: Option<u32>,

    /// Blocks of 2^ORDER pages are to be available; 9 is a huge page of 2 MiB
    #[arg(long, value_name = "ORDER", default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..=10))]
    order: u8,

    /// How much is to be done for it, 0 (nothing) to 100; more takes more CPU time
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100))]
    proactiveness: u32,

    /// Look once, and compact if it is time to (the default)
    #[arg(long, conflicts_with = "daemon")]
    once: bool,

    /// Keep looking, until stopped by SIGINT or SIGTERM
    #[arg(long)]
    daemon: bool,

    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_time, requires = "daemon")]
    check_interval: Nanos,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "daemon")]
    duration: Option<Nanos>,

    /// Say what would be done, and do nothing; needs no privilege
    #[arg(long)]
    dry_run: bool,

    /// Print JSON; with --daemon, a line for each event
    #[arg(long)]
    json: bool,

    /// Write scores and free blocks over time to this record, for `isotherm report fragmentation`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.check_interval >= CHECK_INTERVAL_MIN,
        "a check interval of {} is too short; at least {} is possible",
        format_time(args.check_interval),
        format_time(CHECK_INTERVAL_MIN)
    );
    let attributes = CompactionAttributes {
        order: args.order,
        proactiveness: args.proactiveness,
        check_interval: args.check_interval,
    };
    // The record last: what fails before it must not empty an older one.
    let nodes = nodes(args, attributes)?;
    let signals = Signals::watch()?;
    let clock = Clock::start();
    let journal = args
        .output
        .as_deref()
        .map(|path| Journal::create(path, attributes, clock.now()))
        .transpose()?;
    let mut compact = Compact {
        args,
        attributes,
        nodes,
        signals,
        clock,
        journal,
        say: Say::new(args.json),
    };
    let outcome = if args.daemon {
        compact.keep_looking()
    } else {
        compact.look_once()
    };
    let finished = compact.journal.take().map_or(Ok(()), Journal::finish);
    outcome.and(finished).map(|()| ExitCode::SUCCESS)
}

/// The nodes asked for, each ready to be compacted unless nothing is to be done.
fn nodes(args: &Args, attributes: CompactionAttributes) -> anyhow::Result<Vec<Node>> {
    let fragmentation = Fragmentation::open()?;
    let numbers = match args.node {
        Some(node) => vec![fragmentation.node(node)?.node],
        None => fragmentation
            .nodes()?
            .iter()
            .map(|facts| facts.node)
            .collect(),
    };
    let nodes = numbers
        .into_iter()
        .map(|number| Node::open(number, &fragmentation, attributes, args.dry_run));
    Ok(nodes.collect::<Result<_, _>>()?)
}

struct Compact<'a> {
    args: &'a Args,
    attributes: CompactionAttributes,
    nodes: Vec<Node>,
    signals: Signals,
    clock: Clock,
    journal: Option<Journal>,
    say: Say,
}

impl Compact<'_> {
    fn look_once(&mut self) -> anyhow::Result<()> {
        let mut reports = Vec::new();
        for index in 0..self.nodes.len() {
            let before = self.nodes[index].look()?;
            let decision = self.nodes[index].check(self.clock.now(), &before);
            self.sample(index, &before)?;
            let round = match &decision {
                CompactionDecision::Compact { zones } if !self.args.dry_run => {
                    Some(self.compact(index, zones)?)
                }
                _ => None,
            };
            reports.push(NodeReport {
                before,
                decision,
                round,
            });
        }
        let report = Report {
            attributes: self.attributes,
            kernel_proactiveness: kernel_proactiveness(),
            dry_run: self.args.dry_run,
            nodes: reports,
        };
        self.say.report(&report)
    }

    fn keep_looking(&mut self) -> anyhow::Result<()> {
        let started = self.clock.now();
        let cpu_before = clock::process_cpu();
        let ends_at = self.args.duration.map_or(Nanos(u64::MAX), |d| started + d);
        self.say.event(&Event::Start {
            attributes: self.attributes,
            kernel_proactiveness: kernel_proactiveness(),
            dry_run: self.args.dry_run,
            nodes: self.nodes.iter().map(Node::number).collect(),
        })?;
        while !self.signals.is_stopped() && self.clock.now() < ends_at {
            for index in 0..self.nodes.len() {
                self.look_at(index, started)?;
            }
            let next = self.nodes.iter().map(Node::next_look).min();
            // Nothing to look at cannot be, as a machine has a node; it would be no reason to spin.
            let next = next.unwrap_or(ends_at).min(ends_at);
            self.clock.sleep_until(next, &[self.signals.wakes()]);
            // What the end of a round's process left there would end every sleep from now on.
            self.signals.take_child_end();
        }
        let now = self.clock.now();
        self.say.event(&Event::End {
            elapsed: now.since(started),
            rounds: self.nodes.iter().map(Node::totals).sum(),
            statuses: self.nodes.iter().map(Node::status).collect(),
            own_cpu: clock::process_cpu() - cpu_before,
        })
    }

    /// What is due for a node.
    fn look_at(&mut self, index: usize, started: Nanos) -> anyhow::Result<()> {
        let now = self.clock.now();
        if now < self.nodes[index].next_look() {
            return Ok(());
        }
        let was = self.nodes[index].status();
        let facts = self.nodes[index].look()?;
        let decision = self.nodes[index].check(now, &facts);
        let status = self.nodes[index].status();
        self.sample(index, &facts)?;
        // A round tells of itself, and of the deferral that it leads to.
        let is_told_by_round = match status.state {
            CompactionState::Compacting => !self.args.dry_run,
            CompactionState::Deferred { .. } => true,
            CompactionState::Idle | CompactionState::BackedOff(_) => false,
        };
        let is_news = was.score.is_none() || status.state != was.state;
        if is_news && !is_told_by_round {
            self.say.event(&Event::State {
                at: now.since(started),
                node: facts.node,
                status,
                high: self.attributes.high(),
                dry_run: self.args.dry_run,
            })?;
        }
        if let CompactionDecision::Compact { zones } = decision
            && !self.args.dry_run
        {
            let round = self.compact(index, &zones)?;
            self.say.event(&Event::Round {
                at: self.clock.now().since(started),
                node: facts.node,
                round: &round,
            })?;
        }
        Ok(())
    }

    fn compact(&mut self, index: usize, zones: &[usize]) -> anyhow::Result<Round> {
        let (clock, journal) = (self.clock, &mut self.journal);
        let mut written = Ok(());
        let mut show = |standing: Standing, facts: &NodeFacts| {
            if let Some(journal) = journal
                && written.is_ok()
            {
                written = journal.sample(clock.now(), standing, facts);
            }
        };
        let round = self.nodes[index].compact(zones, clock, &self.signals, &mut show)?;
        written?;
        if let Some(journal) = &mut self.journal {
            journal.round(self.clock.now(), &self.nodes[index], &round)?;
        }
        Ok(round)
    }

    fn sample(&mut self, index: usize, facts: &NodeFacts) -> anyhow::Result<()> {
        let standing = self.nodes[index].standing();
        match &mut self.journal {
            Some(journal) => journal.sample(self.clock.now(), standing, facts),
            None => Ok(()),
        }
    }
}
