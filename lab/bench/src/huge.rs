//! Huge pages: their waste and their gain, on a grid solver, under `run --preset ethp`.
//!
//! The program (`experiments/workloads/grid.c`) does the same work under every policy, and prints its time, its memory
//! and a checksum. The arms are interleaved: no huge pages; huge pages at every first fault (as THP `always`, but of
//! this program only); the same with Isotherm; and the system's policy with Isotherm. The results of each arm are the
//! share of the waste that is gone, and the share of the speed-up that is left.
//!
//! Limits: if huge pages gain nothing on a machine, the share that is kept means nothing, and is not printed.

use std::io::BufRead as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use isotherm_engine::statistics::ValueSummary;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::child::{Guarded, compile};
use super::table::{Table, cell};
use super::{BenchContext, BenchOutcome};

/// Options of this bench.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Huge")]
#[group(id = "huge")]
#[expect(
    clippy::struct_field_names,
    reason = "they are flags of all benches together"
)]
pub(super) struct Options {
    /// huge: memory that the program writes, in MiB; huge pages make it 1.9 times that [default: 2048; 512 with
    /// --quick]
    #[arg(long, value_name = "MIB")]
    huge_mib: Option<u64>,
    /// huge: sweeps over all of it [default: 12; 4 with --quick]
    #[arg(long, value_name = "N")]
    huge_sweeps: Option<u64>,
    /// huge: what huge pages may waste of its memory, for `run --max-waste`
    #[arg(long, value_name = "SHARE", default_value = "10%")]
    huge_max_waste: String,
}

/// Share of a gain below which the gain is negligible.
const GAIN_MIN: f64 = 0.02;
const LIMIT: Duration = Duration::from_mins(20);

/// A name, the program's policy of huge pages, and whether Isotherm runs beside it.
type Arm = (&'static str, &'static str, bool);

const ARMS: [Arm; 4] = [
    ("never", "never", false),
    ("always", "always", false),
    ("always+ethp", "always", true),
    ("default+ethp", "default", true),
];

/// The programs: the percentage of their memory that is a table beside the grid.
const PROGRAMS: [(&str, u32); 3] = [("grid", 0), ("grid and table", 33), ("table", 100)];

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Outcome {
    seconds: f64,
    rss_mean: f64,
    rss_last: f64,
    checksum: u64,
    #[serde(default)]
    acting_cpu_seconds: f64,
}

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    let Some(program) = compile(context, "grid")? else {
        return Ok(BenchOutcome::Skip("cc is not installed".into()));
    };
    let (mut tables, mut data) = (Vec::new(), serde_json::Map::new());
    for (name, table_percent) in PROGRAMS {
        if !context.is_selected(name) {
            continue;
        }
        let mut outcomes: [Vec<Outcome>; ARMS.len()] = Default::default();
        for _ in 0..context.repeats {
            for (arm, outcomes) in ARMS.into_iter().zip(&mut outcomes) {
                outcomes.push(one(context, &program, arm, table_percent)?);
            }
        }
        let checksum = outcomes[0][0].checksum;
        let is_same = outcomes.iter().flatten().all(|o| o.checksum == checksum);
        ensure!(is_same, "{name} came to different results: {outcomes:?}");
        tables.push(table(name, &outcomes));
        let arms = ARMS.iter().zip(&outcomes);
        let arms = arms.map(|((name, ..), outcomes)| ((*name).to_owned(), json!(outcomes)));
        data.insert(name.to_owned(), arms.collect());
    }
    Ok(BenchOutcome::Done(tables, data.into()))
}

fn one(
    context: &BenchContext,
    program: &Path,
    (_, policy, is_managed): Arm,
    table_percent: u32,
) -> Result<Outcome> {
    let options = &context.huge;
    let usual = if context.quick { (512, 4) } else { (2048, 12) };
    let mib = options.huge_mib.unwrap_or(usual.0).to_string();
    let sweeps = options.huge_sweeps.unwrap_or(usual.1).to_string();
    let percent = table_percent.to_string();
    let mut command = Command::new(program);
    command.args([&mib, &sweeps, policy, &percent]);
    let mut solver = Guarded::spawn(context, command.stdout(Stdio::piped()))?;
    let mut output = solver.ready()?;
    let mut manager = is_managed
        .then(|| manage(context, solver.id(), &options.huge_max_waste))
        .transpose()?;
    let mut line = String::new();
    output.read_line(&mut line)?;
    solver.finish(context, LIMIT)?;
    let mut outcome: Outcome = serde_json::from_str(&line)
        .with_context(|| format!("the grid solver said `{}`", line.trim()))?;
    if let Some(isotherm) = &mut manager {
        let summary = isotherm.finish_json(context, Duration::from_secs(30))?;
        outcome.acting_cpu_seconds = summary["acting_cpu_seconds"].as_f64().unwrap_or(0.0);
    }
    Ok(outcome)
}

/// Runs Isotherm beside the program, until the program ends.
fn manage(context: &BenchContext, pid: u32, max_waste: &str) -> Result<Guarded> {
    let mut command = Command::new(&context.isotherm);
    command.args(["run", "--json", "--quiet", "--no-guard", "--preset", "ethp"]);
    command.args(["--max-waste", max_waste, "--pid", &pid.to_string()]);
    Guarded::spawn_json(context, &mut command)
}

fn table(name: &str, outcomes: &[Vec<Outcome>; ARMS.len()]) -> Table {
    let head = "arm | seconds | RSS (MiB) | waste removed | speed-up kept | acting CPU (s)";
    let mut table = Table::new(format!("{name}: huge pages"), head);
    let median = |of: fn(&Outcome) -> f64, arm: usize| {
        ValueSummary::of(outcomes[arm].iter().map(of)).map_or(f64::NAN, |all| all.median)
    };
    let seconds: fn(&Outcome) -> f64 = |o| o.seconds;
    let rss: fn(&Outcome) -> f64 = |o| o.rss_last;
    let waste = median(rss, 1) - median(rss, 0);
    let gain = median(seconds, 0) - median(seconds, 1);
    let has_gain = gain > GAIN_MIN * median(seconds, 0);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for (at, (name, ..)) in ARMS.iter().enumerate() {
        let values = |of: fn(&Outcome) -> f64| outcomes[at].iter().map(of).collect::<Vec<_>>();
        let removed = (median(rss, 1) - median(rss, at)) / waste;
        let kept = (median(seconds, 0) - median(seconds, at)) / gain;
        table.row(vec![
            (*name).to_owned(),
            cell(&values(seconds), 2),
            cell(&values(|o| o.rss_last / f64::from(1 << 20)), 0),
            percent(removed),
            if has_gain {
                percent(kept)
            } else {
                "no gain".into()
            },
            cell(&values(|o| o.acting_cpu_seconds), 2),
        ]);
    }
    table
}
