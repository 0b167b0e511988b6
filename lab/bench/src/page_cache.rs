//! Does monitoring the page cache slow a program that reads cached files, and are its results true?
//!
//! A thread of the bench reads known parts of cached files again and again. It reads other parts once, and others
//! never. The recorder is stopped and continued every second, as in `toggle`. Then the result of `report machine` for
//! each file is compared with what was read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use isotherm_engine::page_cache::CachedBytes;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::child::Guarded;
use super::table::Table;
use super::toggle::mean_and_error;
use super::{BenchContext, BenchOutcome};

const MIB: u64 = 1 << 20;
/// Bytes of one read.
const PIECE: usize = 1 << 20;
/// Time until the recorder has seen all of memory several times.
const LEARN: Duration = Duration::from_mins(1);
const TURN: Duration = Duration::from_secs(1);
/// Share of each file that is read again and again, from its beginning.
const PARTS: [(&str, f64); 4] = [("all", 1.0), ("half", 0.5), ("tenth", 0.1), ("none", 0.0)];

pub(super) fn run(context: &BenchContext) -> anyhow::Result<BenchOutcome> {
    if !context.named {
        return Ok(BenchOutcome::Skip(
            "runs only when named, as it watches all of the machine".into(),
        ));
    }
    let size = if context.quick { 32 * MIB } else { 256 * MIB };
    // The files are beside the build: the directory for temporary files may be in memory.
    let directory = tempfile::tempdir_in(context.root.join("target")).context("no folder")?;
    let files: Vec<PathBuf> = { PARTS.iter() }
        .map(|(name, _)| directory.path().join(name))
        .collect();
    for path in &files {
        make(path, size)?;
    }
    let reader = Reader::start(&files, size)?;
    let path = context.scratch("record.isotherm");
    let turns = (context.duration.as_secs() * u64::from(context.repeats)).max(4) as u32;
    let time = LEARN * 2 + TURN * (turns + 2);
    let mut command = Command::new(&context.isotherm);
    command.args([
        "record",
        "--all",
        "--duration",
        &format!("{}s", time.as_secs()),
    ]);
    for mode in context.modes.iter().take(1) {
        command.args(&mode.flags);
    }
    let mut recorder = Guarded::spawn(context, command.arg("-o").arg(&path).stdout(Stdio::null()))?;
    context.sleep(LEARN)?;
    let mut rates = Vec::new();
    for turn in 0..=turns {
        recorder.check_running()?;
        let signal = if turn % 2 == 0 {
            Signal::SIGSTOP
        } else {
            Signal::SIGCONT
        };
        kill(Pid::from_raw(recorder.id() as i32), signal)?;
        let before = reader.pieces();
        context.sleep(TURN)?;
        rates.push((reader.pieces() - before) as f64);
    }
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGCONT)?;
    recorder.finish(context, time + LEARN)?;
    let percents: Vec<f64> = (1..rates.len().saturating_sub(1))
        .step_by(2)
        .map(|at| 100.0 * (1.0 - rates[at] / f64::midpoint(rates[at - 1], rates[at + 1])))
        .collect();
    let (mean, error) = mean_and_error(&percents);
    let mut speed = Table::new(
        "speed of reading cached files, with the recorder against before and after",
        &["pairs", "loss %", "standard error"],
    );
    let pairs = percents.len().to_string();
    speed.row(vec![pairs, format!("{mean:.2}"), format!("{error:.2}")]);
    let (accuracy, files) = compare(context, &path, &files, size)?;
    Ok(BenchOutcome::Done {
        tables: vec![speed, accuracy],
        data: json!({ "pairs": percents.len(), "mean_percent": mean, "error_percent": error, "files": files }),
    })
}

/// Compares the record's bytes of the files with those that were read.
fn compare(
    context: &BenchContext,
    record: &Path,
    files: &[PathBuf],
    size: u64,
) -> anyhow::Result<(Table, Vec<Value>)> {
    let mut command = Command::new(&context.isotherm);
    let done = command
        .args(["report", "machine", "--json"])
        .arg(record)
        .output()?;
    ensure!(done.status.success(), "report machine failed");
    let report: Value = serde_json::from_slice(&done.stdout)?;
    let told = report["page_cache"]["files"]
        .as_array()
        .context("the record has no page cache; `isotherm doctor` says why")?;
    let mut table = Table::new(
        "MiB of each file in the last look, by what was read again and again",
        &["file", "read", "reported as touched", "idle", "unknown"],
    );
    let mut data = Vec::new();
    for ((name, part), path) in PARTS.iter().zip(files) {
        let name_of = path.to_string_lossy();
        let file = told.iter().find(|file| file["path"] == name_of.as_ref());
        let file =
            file.context("a file is not among the largest that are cached; free some memory")?;
        let bytes: CachedBytes = serde_json::from_value(file["bytes"].clone())?;
        let ages = bytes.ages;
        let read = part * size as f64 / MIB as f64;
        let idle = ages.total() - ages.touched - ages.unknown;
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB as f64);
        let row = [mib(ages.touched), mib(idle), mib(ages.unknown)];
        table.row([vec![(*name).to_owned(), format!("{read:.1}")], row.to_vec()].concat());
        data.push(json!({ "file": name, "read_mib": read, "bytes": bytes }));
    }
    Ok((table, data))
}

/// Makes a file that is on the disk and in memory.
fn make(path: &Path, size: u64) -> anyhow::Result<()> {
    let file = File::create(path)?;
    let piece = vec![7; PIECE];
    for at in (0..size).step_by(PIECE) {
        file.write_all_at(&piece, at)
            .context("no room for the files")?;
    }
    file.sync_all()?;
    Ok(())
}

/// A thread that reads the files, and ends when it is dropped.
struct Reader {
    stop: Arc<AtomicBool>,
    pieces: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Reader {
    fn start(files: &[PathBuf], size: u64) -> anyhow::Result<Self> {
        let files: Result<Vec<File>, _> = files.iter().map(File::open).collect();
        let (files, stop) = (files?, Arc::new(AtomicBool::new(false)));
        let pieces = Arc::new(AtomicU64::new(0));
        let (stopped, read) = (Arc::clone(&stop), Arc::clone(&pieces));
        let thread = std::thread::spawn(move || {
            let mut piece = vec![0; PIECE];
            while !stopped.load(Ordering::Relaxed) {
                for (file, (_, part)) in files.iter().zip(PARTS) {
                    let end = (part * size as f64) as u64;
                    for at in (0..end).step_by(PIECE) {
                        let nr = (end - at).min(PIECE as u64) as usize;
                        if file.read_exact_at(&mut piece[..nr], at).is_err() {
                            return;
                        }
                        read.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        Ok(Self {
            stop,
            pieces,
            thread: Some(thread),
        })
    }

    fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
