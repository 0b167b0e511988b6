//! The program on which costs are measured: a child that holds pages, touches them, and works on request.
//!
//! The measuring program starts it: its own command again ([`command`]), or any other program that only calls
//! [`be_subject`]. Requests are lines on standard input, and answers are lines on standard output.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::{CalibrationError, Result};
use crate::clock::thread_cpu;
use crate::mapped::Mapping;

/// Argument that makes this command the subject.
pub const SUBJECT: &str = "calibration-subject";

/// Returns the command line that starts this command as the subject.
pub fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(SUBJECT);
    command
}

/// Pages on which a working thread works in rounds: more than a first-level TLB holds.
const WORKED_PAGES: usize = 256;
/// The stride has no factor in common with the number of pages, so each is touched once.
const STRIDE: usize = 7919;

#[derive(Debug)]
pub(super) struct Subject {
    child: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Memory that the subject holds: whole blocks.
    pub(super) memory: AddressRange,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) cpu_ns: f64,
    pub(super) units: f64,
}

impl Subject {
    /// Starts a subject whose memory holds repeated `content`.
    pub(super) fn start(mut command: Command, content: &[u8], bytes: u64) -> Result<Self> {
        let io = CalibrationError::Subject;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io)?;
        let words = child.stdin.take().expect("it is piped");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut subject = Self {
            child,
            words,
            answers,
            memory: AddressRange::new(0, bytes),
        };
        let header = format!("{bytes} {}\n", content.len());
        subject.words.write_all(header.as_bytes()).map_err(io)?;
        subject.words.write_all(content).map_err(io)?;
        let answer = subject.answer()?;
        let start: u64 = { answer.trim().parse() }.map_err(|_| CalibrationError::Answer(answer))?;
        subject.memory = AddressRange::new(start, start + bytes);
        Ok(subject)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes to all pages, or to every second of them, in an order that defeats caches.
    pub(super) fn touch(&mut self, is_every_second: bool) -> Result<Took> {
        self.ask(if is_every_second {
            "touch 2"
        } else {
            "touch 1"
        })
    }

    /// Touches new memory, in base pages or huge pages.
    pub(super) fn fresh(&mut self, is_huge: bool) -> Result<Took> {
        self.ask(if is_huge { "fresh huge" } else { "fresh small" })
    }

    pub(super) fn work(&mut self, works: bool) -> Result<()> {
        self.ask(if works { "work" } else { "rest" }).map(drop)
    }

    pub(super) fn rounds(&mut self) -> Result<f64> {
        Ok(self.ask("rounds")?.units)
    }

    fn ask(&mut self, word: &str) -> Result<Took> {
        let io = CalibrationError::Subject;
        writeln!(self.words, "{word}").map_err(io)?;
        let answer = self.answer()?;
        let mut numbers = answer.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(cpu_ns)), Some(Ok(units))) => Ok(Took { cpu_ns, units }),
            _ => Err(CalibrationError::Answer(answer)),
        }
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        match read.map_err(CalibrationError::Subject)? {
            0 => Err(CalibrationError::Answer("nothing: it has ended".into())),
            _ => Ok(line),
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // It may have exited already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs as the subject until standard input ends.
pub fn be_subject() -> std::io::Result<()> {
    // The measuring program may be killed.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    let mut input = BufReader::new(std::io::stdin().lock());
    let mut header = String::new();
    input.read_line(&mut header)?;
    let wrong = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let (bytes, content) = header.trim().split_once(' ').ok_or_else(wrong)?;
    let bytes: usize = bytes.parse().map_err(|_| wrong())?;
    let mut pages = vec![0; content.parse().map_err(|_| wrong())?];
    input.read_exact(&mut pages)?;
    let mut held = Held::new(bytes, &pages).ok_or_else(wrong)?;
    drop(pages);
    println!("{}", held.start());
    let mut worker = Worker::default();
    for word in input.lines() {
        let (before, units) = (thread_cpu(), held_or_worker(&word?, &mut held, &mut worker));
        println!(
            "{} {}",
            thread_cpu().since(before).0,
            units.ok_or_else(wrong)?
        );
    }
    Ok(())
}

fn held_or_worker(word: &str, held: &mut Held, worker: &mut Worker) -> Option<u64> {
    Some(match word {
        "touch 1" => held.touch(1),
        "touch 2" => held.touch(2),
        "fresh small" => fresh(false),
        "fresh huge" => fresh(true),
        "work" => worker.start(),
        "rest" => worker.stop(),
        "rounds" => worker.rounds.load(Ordering::Relaxed),
        _ => return None,
    })
}

struct Held {
    memory: Vec<u8>,
    first: usize,
    pages: usize,
}

impl Held {
    fn new(bytes: usize, content: &[u8]) -> Option<Self> {
        let page = PAGE_SIZE as usize;
        let memory = vec![0; bytes + BLOCK_SIZE as usize];
        let start = memory.as_ptr() as u64;
        let first = (start.next_multiple_of(BLOCK_SIZE) - start) as usize;
        advise(&memory[first..first + bytes], libc::MADV_NOHUGEPAGE);
        let mut held = Self {
            memory,
            first,
            pages: bytes / page,
        };
        let nr = content.len() / page;
        (nr > 0).then_some(())?;
        for at in 0..held.pages {
            let from = at % nr * page;
            held.memory[first + at * page..][..page].copy_from_slice(&content[from..from + page]);
        }
        // From now on the kernel and the actuator may make huge pages of it.
        advise(&held.memory[first..first + bytes], libc::MADV_HUGEPAGE);
        Some(held)
    }

    fn start(&self) -> u64 {
        self.memory[self.first..].as_ptr() as u64
    }

    /// Rewrites the existing content of one page in `step`.
    fn touch(&mut self, step: usize) -> u64 {
        let page = PAGE_SIZE as usize;
        let nr = self.pages / step;
        for at in 0..nr {
            let at = at * STRIDE % nr * step;
            let byte = &mut self.memory[self.first + at * page];
            *byte = std::hint::black_box(*byte);
        }
        nr as u64
    }
}

/// Touches 16 MiB of new memory. Returns the number of pages, or of huge pages; 0 if the memory cannot be mapped.
fn fresh(is_huge: bool) -> u64 {
    let bytes = 16 << 20;
    // Not from the allocator, which keeps freed memory.
    let Ok(memory) = Mapping::anonymous(bytes + BLOCK_SIZE as usize, 0) else {
        return 0;
    };
    let start = memory.range().start.next_multiple_of(BLOCK_SIZE) as *mut u8;
    let (advice, unit) = if is_huge {
        (libc::MADV_HUGEPAGE, BLOCK_SIZE)
    } else {
        (libc::MADV_NOHUGEPAGE, PAGE_SIZE)
    };
    memory.advise(advice).ok();
    for at in (0..bytes).step_by(unit as usize) {
        // SAFETY: all of it lies within the new mapping, to which nothing else refers.
        unsafe { start.add(at).write_volatile(1) };
    }
    bytes as u64 / unit
}

fn advise(memory: &[u8], advice: libc::c_int) {
    // SAFETY: whole pages of our own; the advice is about huge pages, which changes no content.
    unsafe { libc::madvise(memory.as_ptr().cast_mut().cast(), memory.len(), advice) };
}

/// A thread that works on a small piece of memory.
#[derive(Default)]
struct Worker {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    fn start(&mut self) -> u64 {
        let (rounds, stop) = (Arc::clone(&self.rounds), Arc::clone(&self.stop));
        stop.store(false, Ordering::Relaxed);
        self.thread = Some(std::thread::spawn(move || {
            let mut memory = vec![0_u8; WORKED_PAGES * PAGE_SIZE as usize];
            while !stop.load(Ordering::Relaxed) {
                for page in memory.chunks_mut(PAGE_SIZE as usize) {
                    page[0] = std::hint::black_box(page[0]).wrapping_add(1);
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        }));
        // Waits until the thread runs.
        let began = Instant::now();
        while self.rounds.load(Ordering::Relaxed) == 0 && began.elapsed().as_secs() < 1 {
            std::thread::yield_now();
        }
        0
    }

    fn stop(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
        0
    }
}
