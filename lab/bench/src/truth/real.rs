//! Real programs: the monitor's windows take turns with exact scans over equal intervals.

use std::time::Duration;

use anyhow::{Context as _, Result};
use isotherm_engine::Snapshot;
use isotherm_engine::statistics::median;
use isotherm_workload::family::verdict::settled;
use serde::Serialize;

use super::super::child::Group;
use super::super::recording::{Recorded, Recording};
use super::super::table::{Table, number};
use super::super::{BenchContext, Mode};
use super::agree::{Agreement, Exact, agree};
use super::programs::{PROGRAMS, Program};
use super::score;

/// Length of a window, and of the one that determines a monitor's own interval.
const WINDOW: Duration = Duration::from_secs(12);
const TURNS: usize = 2;
/// A scan must be finished before the next one.
const INTERVAL_MIN: f64 = 0.1;

#[derive(Serialize)]
pub(super) struct Compared {
    pub(super) program: &'static str,
    pub(super) mode: String,
    interval_seconds: f64,
    turns: Vec<Agreement>,
    /// Agreement of the exact scan in the middle with those around it: the best possible result.
    ceiling: Agreement,
    cpu_claimed_induced_percent: Option<f64>,
    cpu_measured_percent: f64,
}

/// Runs all selected programs; returns also the reasons why some did not run.
pub(super) fn run(
    context: &BenchContext,
    wanted: &[String],
    modes: &[Mode],
) -> Result<(Vec<Compared>, Vec<String>)> {
    let (mut compared, mut skipped) = (Vec::new(), Vec::new());
    for name in wanted {
        if name != "all" && !PROGRAMS.iter().any(|program| program.name == name) {
            let known: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
            anyhow::bail!(
                "there is no program `{name}`; there are all, {}",
                known.join(", ")
            );
        }
    }
    let is_wanted = |p: &&Program| wanted.iter().any(|name| name == "all" || name == p.name);
    for program in PROGRAMS.iter().filter(is_wanted) {
        let result = match program.lacks() {
            Some(reason) => Err(anyhow::anyhow!(reason)),
            None => one_program(context, program, modes),
        };
        match result {
            Ok(of_it) => {
                for one in &of_it {
                    println!("{} {}: {}", one.program, one.mode, one.line());
                }
                compared.extend(of_it);
            }
            Err(error) => {
                context.sleep(Duration::ZERO)?;
                let reason = format!("{}: {error:#}", program.name);
                println!("SKIP {reason}");
                skipped.push(reason);
            }
        }
    }
    Ok((compared, skipped))
}

fn one_program(context: &BenchContext, program: &Program, modes: &[Mode]) -> Result<Vec<Compared>> {
    let mut busy = program.start(context)?;
    let mut compared = Vec::new();
    for mode in modes {
        let one = take_turns(context, program.name, mode, &mut busy);
        compared.push(one.with_context(|| mode.name.clone())?);
    }
    Ok(compared)
}

fn take_turns(
    context: &BenchContext,
    program: &'static str,
    mode: &Mode,
    busy: &mut Group,
) -> Result<Compared> {
    let trial = window(context, mode, busy)?;
    let intervals = settled(&trial.snapshots, &[]).map(|s| s.end.since(s.start).as_secs_f64());
    let interval = median(intervals.collect())
        .context("the monitor has no snapshots after it has settled")?
        .max(INTERVAL_MIN);
    let millis = format!("{:.0}ms", interval * 1e3);
    let exact = Mode::parse(&format!(
        "exact=--pages --max-stall 1s --aggregation-interval {millis}"
    ))?;
    // The first scans find pages that were touched before.
    let scan = |busy: &mut Group| -> Result<Vec<Snapshot>> {
        let scans = window(context, &exact, busy)?.snapshots;
        Ok(scans.get(2..).unwrap_or(&[]).to_vec())
    };
    let mut scans = vec![scan(busy)?];
    let (mut turns, mut costs) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let said = window(context, mode, busy)?;
        scans.push(scan(busy)?);
        let (before, after) = (Exact::of(&scans[turn]), Exact::of(&scans[turn + 1]));
        turns.push(agree(&before, settled(&said.snapshots, &[]), &after));
        costs.push(said);
    }
    let ceiling = agree(&Exact::of(&scans[0]), &scans[1], &Exact::of(&scans[TURNS]));
    let share = |f: &dyn Fn(&Recorded) -> Option<f64>| median(costs.iter().filter_map(f).collect());
    Ok(Compared {
        program,
        mode: mode.name.clone(),
        interval_seconds: interval,
        turns,
        ceiling,
        cpu_claimed_induced_percent: share(&|r| r.cpu_claimed_induced).map(|s| s * 100.0),
        cpu_measured_percent: share(&|r| Some(r.cpu_measured)).unwrap_or(0.0) * 100.0,
    })
}

fn window(context: &BenchContext, mode: &Mode, busy: &mut Group) -> Result<Recorded> {
    busy.check_running()?;
    let duration = context.asked_duration.unwrap_or(WINDOW);
    Recording::start(context, mode, busy.pid, duration)?.finish(context)
}

impl Compared {
    fn line(&self) -> String {
        self.cells()[2..].join("  ")
    }

    fn cells(&self) -> Vec<String> {
        let of = |f: fn(&Agreement) -> Option<f64>| -> Vec<f64> {
            self.turns.iter().filter_map(f).collect()
        };
        let cell = |values: Vec<f64>, digits| super::super::table::cell(&values, digits);
        let mib =
            |values: Vec<f64>| cell(values.iter().map(|v| v / f64::from(1 << 20)).collect(), 0);
        let percent = |values: Vec<f64>| cell(values.iter().map(|v| v * 100.0).collect(), 0);
        let ceiling = &self.ceiling;
        vec![
            self.program.to_owned(),
            self.mode.clone(),
            format!("{:.0} ms", self.interval_seconds * 1e3),
            cell(of(|a| a.precision), 3),
            cell(of(|a| a.recall), 3),
            mib(of(|a| a.exact_bytes)),
            mib(of(|a| a.said_bytes)),
            cell(of(|a| a.working_set), 2),
            percent(of(|a| a.undecided)),
            percent(of(|a| a.unknown)),
            format!(
                "{}, {}, {}",
                number(ceiling.precision, 3),
                number(ceiling.recall, 3),
                number(ceiling.working_set, 3)
            ),
            score::cpu_cell(self.cpu_claimed_induced_percent, self.cpu_measured_percent),
        ]
    }
}

pub(super) fn table(compared: &[Compared]) -> Table {
    let mut table = Table::new(
        "Real programs: against exact scans before and after, over equal intervals",
        "program | mode | interval | P | R | exact MiB | said MiB | WSS ratio | undecided % | unknown % | \
         scan against scans: P, R, WSS | CPU %: claimed, measured",
    );
    for one in compared {
        table.row(one.cells());
    }
    table
}
