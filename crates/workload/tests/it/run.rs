//! The runner, on a small workload: phases last as long as they should, the truth is written, and the accesses are at
//! its addresses.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use isotherm_engine::{AddressRange, Nanos};
use isotherm_workload::run::{HugePages, Observer, RunError, RunOptions, WorkloadEvent, run};
use isotherm_workload::{Config, truth};

const OPTIONS: RunOptions = RunOptions {
    rounds: 1,
    threads: 1,
    seed: 1,
    huge_pages: HugePages::Default,
    populate: true,
};

/// Keeps the events that it receives; may ask to stop at the first progress.
#[derive(Default)]
struct Notes<'a> {
    truth: Vec<u8>,
    populated: u64,
    phases: Vec<(String, Duration, u64)>,
    stop: Option<&'a AtomicBool>,
    broken: bool,
}

impl Observer for Notes<'_> {
    fn event(&mut self, event: &WorkloadEvent<'_>) -> io::Result<()> {
        match *event {
            WorkloadEvent::Populating { done, .. } => self.populated = done,
            WorkloadEvent::Truth(line) => truth::write(&mut self.truth, line)?,
            WorkloadEvent::Progress { .. } if self.broken => {
                return Err(io::ErrorKind::StorageFull.into());
            }
            WorkloadEvent::Progress { .. } => {
                if let Some(stop) = self.stop {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            WorkloadEvent::Phase {
                phase,
                elapsed,
                operations,
            } => {
                self.phases.push((phase.to_owned(), elapsed, operations));
            }
        }
        Ok(())
    }
}

fn run_once(config: &Config, observer: &mut dyn Observer) -> Result<(), RunError> {
    run(config, OPTIONS, &AtomicBool::new(false), observer)
}

fn mini(name: &str) -> Config {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments/workloads");
    let path = format!("{folder}/{name}");
    let text = std::fs::read_to_string(path).expect("a shipped workload");
    Config::parse(&text).expect("a valid one")
}

#[test]
fn phases_run_their_time_and_their_truth_is_written() {
    let config = mini("mini_zigzag.cfg");
    let mut notes = Notes::default();
    run_once(&config, &mut notes).expect("it runs");
    assert_eq!(notes.populated, config.total_bytes());
    let names: Vec<&str> = notes.phases.iter().map(|phase| phase.0.as_str()).collect();
    assert_eq!(names, ["low", "high", "low", "high"]);
    let episodes = truth::read(notes.truth.as_slice()).expect("a valid truth file");
    for (phase, episode) in std::iter::zip(&notes.phases, &episodes) {
        assert!(phase.1 >= Duration::from_millis(300), "{phase:?}");
        assert!(phase.2 > 0);
        assert_eq!(phase.2, episode.operations);
        let end = episode.end.expect("it ended");
        assert!(end - episode.start >= Nanos::from_millis(300));
        let hot = episode.temperature.hot.iter().map(|heat| heat.range.len());
        assert_eq!(hot.sum::<u64>(), 16 << 20);
        let cold = episode.temperature.cold.iter().map(|range| range.len());
        assert_eq!(cold.sum::<u64>(), 16 << 20);
    }
    // The two regions take turns.
    assert_ne!(episodes[0].temperature.hot, episodes[1].temperature.hot);
    assert_eq!(episodes[0].temperature.hot, episodes[2].temperature.hot);
}

fn pages(range: AddressRange) -> impl Iterator<Item = u64> {
    (range.start..range.end).step_by(4096)
}

/// Reads this process' own memory, as soon as a phase has ended, and notes which pages hold anything.
#[derive(Default)]
struct Peek {
    truth: Vec<u8>,
    written: Vec<u64>,
}

impl Observer for Peek {
    fn event(&mut self, event: &WorkloadEvent<'_>) -> io::Result<()> {
        let WorkloadEvent::Truth(line) = event else {
            return Ok(());
        };
        truth::write(&mut self.truth, line)?;
        if !matches!(line, truth::Line::End { .. }) {
            return Ok(());
        }
        let memory = std::fs::File::open("/proc/self/mem")?;
        let episodes = truth::read(self.truth.as_slice()).map_err(io::Error::other)?;
        let laid = &episodes[0].temperature;
        let hot = laid.hot.iter().map(|heat| heat.range);
        for address in hot.chain(laid.cold.iter().copied()).flat_map(pages) {
            let mut page = [0; 4096];
            memory.read_exact_at(&mut page, address)?;
            if page.iter().any(|byte| *byte != 0) {
                self.written.push(address);
            }
        }
        Ok(())
    }
}

#[test]
fn what_the_truth_calls_hot_is_touched_and_nothing_else() {
    for pattern in [
        "a, 1, 64, 1, wo, hot=25% piece=4K seed=9",
        "a, 0, 64, 1, rw, hot=25% piece=8K seed=9",
        "a, 1, 64, 1, wo, hot=64K piece=64K seed=2",
        "a, 0, 64, 1, wo, hot=64K piece=64K seed=3",
        "a, 0, 20K, 1, wo",
        "a, 0, 6K, 1, rw, hot=50% piece=16K",
    ] {
        let config = Config::parse(&format!("a, 1MiB\n\np\n50\n{pattern}\n")).expect("valid");
        let mut peek = Peek::default();
        run_once(&config, &mut peek).expect("it runs");
        let episodes = truth::read(peek.truth.as_slice()).expect("a valid truth file");
        let hot = episodes[0].temperature.hot.iter().map(|heat| heat.range);
        let mut hot: Vec<u64> = hot.flat_map(pages).collect();
        hot.sort_unstable();
        peek.written.sort_unstable();
        assert_eq!(peek.written, hot, "{pattern}");
    }
}

#[test]
fn stop_ends_an_endless_run_and_says_so() {
    let stop = AtomicBool::new(false);
    let mut notes = Notes {
        stop: Some(&stop),
        ..Notes::default()
    };
    let mut options = OPTIONS;
    options.rounds = 0;
    options.threads = 2;
    run(&mini("mini_stairs.cfg"), options, &stop, &mut notes).expect("it runs");
    assert_eq!(notes.phases.len(), 1);
    let elapsed = notes.phases[0].1;
    assert!(elapsed < Duration::from_millis(290), "{elapsed:?}");
    let text = String::from_utf8(notes.truth).expect("JSON is text");
    assert!(text.ends_with("\"interrupted\":true}\n"), "{text}");
}

#[test]
fn an_observer_that_fails_ends_the_run_with_all_its_threads() {
    let mut notes = Notes {
        broken: true,
        ..Notes::default()
    };
    let mut options = OPTIONS;
    options.threads = 2;
    options.rounds = 0;
    let config = mini("mini_zigzag.cfg");
    let error = run(&config, options, &AtomicBool::new(false), &mut notes);
    assert!(matches!(error, Err(RunError::Output(_))), "{error:?}");
}

#[test]
fn more_memory_than_there_is_is_refused_before_any_is_taken() {
    let config = Config::parse("a, 60T\n\np\n10\na, 0, 64, 1\n").expect("valid");
    let error = run_once(&config, &mut Notes::default());
    let message = error.expect_err("no machine has it").to_string();
    let said = "the regions take 60 TiB, but only ";
    assert!(message.starts_with(said), "{message}");
}

#[test]
fn initial_data_must_be_there_and_not_empty() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("data");
    let text = format!("a, 8K, {}\n\np\n10\na, 0, 64, 1\n", path.display());
    let config = Config::parse(&text).expect("valid");
    let run = || run_once(&config, &mut Notes::default());
    assert!(matches!(run(), Err(RunError::Content { .. })));
    std::fs::write(&path, "").expect("it can be written");
    assert!(matches!(run(), Err(RunError::NoContent { .. })));
    std::fs::write(&path, "seven b").expect("it can be written");
    run().expect("it fills by repeating");
}
