//! Measures the additional cost of a page fault while faults are counted, and while they are sampled:
//!
//!     cc -O2 -o faults experiments/workloads/faults.c
//!     cargo run --release -p isotherm-linux --example fault_cost -- 60 ./faults map
//!
//! The program touches new memory all the time. Faults are counted, sampled or neither, in turns of a tenth of a
//! second, for the given number of seconds. Each turn is compared with the idle turn before it.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use isotherm_linux::faults::{FaultSampler, SampledTargets};

const TURN: Duration = Duration::from_millis(100);
/// Seconds at the start of a turn that are ignored: work of the previous turn may continue.
const SETTLE: f64 = 0.01;
/// Faults in a round of `faults map`.
const FAULTS_A_ROUND: f64 = 8192.0;
/// Sampling period in faults, and samples per second on each processor.
const PERIOD: u64 = 17;
const RATE: u64 = 3000;

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [seconds, program, rest @ ..] = &arguments[..] else {
        return Err("fault_cost SECONDS PROGRAM [ARGUMENT...]".into());
    };
    let seconds: u64 = seconds.parse()?;
    let whose = SampledTargets::default();
    let mut sampler = FaultSampler::attach(whose, PERIOD, 1)?;
    let mut child = Command::new(program);
    let mut child = child.args(rest).stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let reader = std::thread::spawn(move || -> Vec<(f64, f64)> {
        let lines = lines.map_while(Result::ok);
        let numbers = lines.filter_map(|line| {
            let (at, took) = line.split_once(' ')?;
            let cpu_s: f64 = took.parse().ok()?;
            Some((at.parse().ok()?, cpu_s * 1e9 / FAULTS_A_ROUND))
        });
        numbers.collect()
    });
    sampler.add(child.id())?;
    let (mut turns, mut faults) = (Vec::new(), Vec::new());
    let mut calls = [0; 2];
    for turn in 0..seconds * 10 {
        let what = turn % 4;
        let before = sampler.totals();
        sampler.set_rate(if what == 3 { RATE } else { 1 })?;
        sampler.set_counting(what % 2 == 1)?;
        let from = now();
        sleep(TURN);
        turns.push((from + SETTLE, now()));
        sampler.take(&mut faults)?;
        if what == 3 {
            calls[0] += faults.len() as u64;
            calls[1] += sampler.totals().took.since(before.took).0;
        }
        faults.clear();
    }
    child.kill()?;
    child.wait()?;
    let rounds = reader.join().map_err(|_| "the reader failed")?;
    let in_turn = |(from, to): (f64, f64)| {
        let inside = rounds.iter().filter(|(at, _)| from < *at && *at < to);
        median(inside.map(|(_, took)| *took).collect())
    };
    let ns: Vec<f64> = turns.into_iter().map(in_turn).collect();
    let more = |what: usize| {
        let pairs = ns.chunks_exact(4);
        median(pairs.map(|turns| turns[what] - turns[what - 1]).collect())
    };
    println!(
        "a fault: {:.0} ns",
        median(ns.iter().step_by(2).copied().collect())
    );
    println!("counted, every {PERIOD}th looked at: {:+.1} ns", more(1));
    println!(
        "and {} samples a second: {:+.1} ns",
        calls[0] * 40 / (seconds * 10).max(1),
        more(3)
    );
    println!("a sample: {} ns in the kernel", calls[1] / calls[0].max(1));
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
