//! Pools of memory that known functions touch first, in Rust: generic functions, methods of types and collections.
//!
//! When all are built, one line of JSON says them; from then on `serve_requests` touches the hot ones every 50 ms and
//! nobody the idle ones. Four threads build them, one after the other.
//!
//! `bytes` is counted, not measured: of a large block its whole pages, of a small one what glibc takes for it
//! (`malloc_usable_size` and 8 bytes). A `HashMap` has a power of two of buckets, with one byte beside each.
//! `touched` is measured: by how much anonymous resident memory has grown while the pool was built.
//!
//! --recycle: each thread first allocates and frees as many bytes as its pools have, by `churn_open` and
//! `churn_close`: half in blocks of 1 to 2 MiB, which go back to the kernel, half in blocks of 16 B to 64 KiB, which
//! its arena keeps and pools are built in. One block of 1024 stays. `churn_steadily` goes on to replace small blocks.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::io::Write;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

const PAGE: usize = 4096;
/// Shares of the pools are of this.
const WHOLE: usize = 256;

unsafe extern "C" {
    fn malloc_usable_size(pointer: *const u8) -> usize;
}

/// What glibc takes for the allocation at `pointer`.
fn block_of<T: ?Sized>(pointer: *const T) -> usize {
    // SAFETY: all callers pass what the default allocator, which is malloc, gave.
    unsafe { malloc_usable_size(pointer.cast()) + 8 }
}

fn pages_of(length: usize) -> usize {
    length.next_multiple_of(PAGE)
}

/// The next of a xorshift generator.
fn next_random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize
}

/// What stays allocated, and how to touch all of it.
struct Built {
    bytes: usize,
    memory: Box<dyn Memory>,
}

trait Memory: Any + Send {
    fn touch(&mut self);
}

fn built(bytes: usize, memory: impl Memory) -> Built {
    let memory = Box::new(memory);
    Built { bytes, memory }
}

impl Memory for Vec<u64> {
    fn touch(&mut self) {
        for value in self.iter_mut().step_by(PAGE / 8) {
            *value += 1;
        }
    }
}

/// A vector, filled at once.
#[inline(never)]
fn index_build<Key>(bytes: usize, key: Key) -> Built
where
    Key: Copy,
    Vec<Key>: Memory,
{
    let index = vec![key; bytes / size_of::<Key>()];
    built(pages_of(bytes + 16), index)
}

struct SessionCache {
    sessions: HashMap<u64, Box<[u64]>>,
}

impl SessionCache {
    /// A hash table of boxed slices of several sizes.
    #[inline(never)]
    fn fill(bytes: usize) -> Built {
        let mut seed = 1;
        let mut sessions: HashMap<u64, Box<[u64]>> = HashMap::with_capacity(bytes / 256);
        let table = pages_of(
            (sessions.capacity() * 8 / 7).next_power_of_two()
                * (size_of::<(u64, Box<[u64]>)>() + 1),
        );
        let mut filled = table;
        for at in 0.. {
            if filled >= bytes || sessions.len() == sessions.capacity() {
                break;
            }
            let session = vec![at; 1 + next_random(&mut seed) % 48].into_boxed_slice();
            filled += block_of(session.as_ptr());
            sessions.insert(at, session);
        }
        built(filled, SessionCache { sessions })
    }
}

impl Memory for SessionCache {
    fn touch(&mut self) {
        let first = self.sessions.values().map(|session| session[0]);
        black_box(first.sum::<u64>());
    }
}

struct Image(Vec<Vec<u8>>);

/// Rows of their own.
#[inline(never)]
fn image_decode(bytes: usize) -> Built {
    const ROW: usize = 16 << 10;
    let rows: Vec<Vec<u8>> = (0..bytes / ROW)
        .map(|row| {
            (0..ROW)
                .map(|column| (column * row >> 3) as u8 | 1)
                .collect()
        })
        .collect();
    let bytes = rows.iter().map(|row| block_of(row.as_ptr())).sum();
    built(bytes, Image(rows))
}

impl Memory for Image {
    fn touch(&mut self) {
        for row in &mut self.0 {
            row.iter_mut()
                .step_by(PAGE / 2)
                .for_each(|pixel| *pixel = pixel.wrapping_add(1));
        }
    }
}

/// A vector with spare capacity: three quarters of it are pushed.
#[inline(never)]
fn log_ring_open(bytes: usize) -> Built {
    let mut ring = Vec::with_capacity(bytes / 6);
    for at in 0..bytes as u64 / 8 {
        ring.push(at);
    }
    built(pages_of(bytes + 16), ring)
}

struct Metrics(BTreeMap<u32, String>);

/// An ordered map of strings. Its nodes are not counted: a hundredth of the strings.
#[inline(never)]
fn metrics_table_load(bytes: usize) -> Built {
    let mut table = BTreeMap::new();
    let mut filled = 0;
    while filled < bytes {
        let name = "m".repeat(1500);
        filled += block_of(name.as_ptr());
        table.insert(table.len() as u32, name);
    }
    built(filled, Metrics(table))
}

impl Memory for Metrics {
    fn touch(&mut self) {
        let names = self.0.values().map(String::as_bytes);
        let ends = names.map(|name| usize::from(name[0]) + usize::from(name[1499]));
        black_box(ends.sum::<usize>());
    }
}

struct Step {
    before: Option<Box<Step>>,
    state: [u64; 12],
}

struct Journal(Option<Box<Step>>);

/// A linked list of boxes.
#[inline(never)]
fn undo_journal_reserve(bytes: usize) -> Built {
    let mut last: Option<Box<Step>> = None;
    let mut filled = 0;
    while filled < bytes {
        let step = Box::new(Step {
            before: last.take(),
            state: [filled as u64; 12],
        });
        filled += block_of(&raw const *step);
        last = Some(step);
    }
    built(filled, Journal(last))
}

impl Memory for Journal {
    fn touch(&mut self) {
        let mut next = &self.0;
        while let Some(step) = next {
            black_box(step.state[0]);
            next = &step.before;
        }
    }
}

struct Pool {
    function: &'static str,
    build: fn(usize) -> Built,
    share: usize,
    is_idle: bool,
    thread: &'static str,
}

const fn pool(
    function: &'static str,
    build: fn(usize) -> Built,
    share: usize,
    is_idle: bool,
    thread: &'static str,
) -> Pool {
    Pool {
        function,
        build,
        share,
        is_idle,
        thread,
    }
}

const POOLS: [Pool; 6] = [
    pool(
        "index_build",
        |bytes| index_build(bytes, 7_u64),
        96,
        true,
        "main",
    ),
    pool(
        "SessionCache::fill",
        SessionCache::fill,
        40,
        true,
        "session-filler",
    ),
    pool("image_decode", image_decode, 24, false, "decoder"),
    pool("log_ring_open", log_ring_open, 56, false, "log-writer"),
    pool("metrics_table_load", metrics_table_load, 32, true, "main"),
    pool(
        "undo_journal_reserve",
        undo_journal_reserve,
        8,
        false,
        "main",
    ),
];
const THREADS: [&str; 4] = ["main", "session-filler", "decoder", "log-writer"];

/// Half of `bytes` in large blocks; of the rest as many bytes in each power of two.
#[inline(never)]
fn churn_open(bytes: usize, seed: &mut u64) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut opened = 0;
    while opened < bytes {
        let mut bits = if opened < bytes / 2 { 20 } else { 4 };
        while bits < 15 && next_random(seed) % 2 == 1 {
            bits += 1;
        }
        let size = (1 << bits) + next_random(seed) % (1 << bits);
        blocks.push(vec![0x11; size]);
        opened += size;
    }
    blocks
}

/// Frees them in no order, but for one of 1024.
#[inline(never)]
fn churn_close(mut blocks: Vec<Vec<u8>>, seed: &mut u64) {
    for at in (1..blocks.len()).rev() {
        blocks.swap(at, next_random(seed) % (at + 1));
    }
    for (at, block) in blocks.into_iter().enumerate() {
        if at % 1024 == 1023 {
            std::mem::forget(block);
        }
    }
}

#[inline(never)]
fn churn_steadily() {
    let mut seed = 7;
    let mut held = vec![Vec::new(); 2048];
    loop {
        for _ in 0..512 {
            held[next_random(&mut seed) % 2048] = vec![0x22_u8; 16 + next_random(&mut seed) % 1024];
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[derive(Clone, Copy)]
struct Options {
    mib: usize,
    seconds: f64,
    is_recycled: bool,
}

impl Options {
    fn from_arguments() -> Option<Self> {
        let mut options = Self {
            mib: 256,
            seconds: 60.0,
            is_recycled: false,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--recycle" => options.is_recycled = true,
                "--mib" => options.mib = arguments.next()?.parse().ok()?,
                "--seconds" => options.seconds = arguments.next()?.parse().ok()?,
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Anonymous resident memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<usize>().ok())
        .expect("a number")
        << 10
}

/// A pool, by its place in [`POOLS`].
struct Measured {
    at: usize,
    built: Built,
    touched: usize,
}

/// The pools of one thread. `all_wait` for each other after each pool.
fn build_on(thread: &str, options: Options, all_wait: &Barrier) -> Vec<Measured> {
    let bytes_of = |share| (share * options.mib << 20) / WHOLE;
    if options.is_recycled {
        let mut seed = 3 + thread.len() as u64;
        let of_thread = POOLS.iter().filter(|pool| pool.thread == thread);
        let blocks = churn_open(bytes_of(of_thread.map(|pool| pool.share).sum()), &mut seed);
        churn_close(blocks, &mut seed);
    }
    all_wait.wait();
    let mut pools = Vec::with_capacity(POOLS.len());
    for (at, pool) in POOLS.iter().enumerate() {
        if pool.thread == thread {
            let before = resident();
            let built = (pool.build)(bytes_of(pool.share));
            let touched = resident().saturating_sub(before);
            pools.push(Measured { at, built, touched });
        }
        all_wait.wait();
    }
    pools
}

fn start(name: &str, run: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .expect("cannot start a thread");
}

fn serve_requests(pools: &mut [Measured], seconds: f64) {
    for _ in 0..(seconds / 0.05) as u64 {
        for pool in &mut *pools {
            if !POOLS[pool.at].is_idle {
                pool.built.memory.touch();
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn print_truth(pools: &[Measured]) {
    let lines: Vec<String> = pools
        .iter()
        .map(|Measured { at, built, touched }| {
            let Pool { function, is_idle, thread, .. } = &POOLS[*at];
            let bytes = built.bytes;
            format!(
                r#"{{"function":"{function}","bytes":{bytes},"touched":{touched},"idle":{is_idle},"thread":"{thread}"}}"#
            )
        })
        .collect();
    println!(r#"{{"language":"rust","pools":[{}]}}"#, lines.join(","));
    std::io::stdout().flush().expect("cannot write the truth");
}

fn main() {
    let Some(options) = Options::from_arguments() else {
        eprintln!("usage: pools [--mib N] [--seconds S] [--recycle]");
        std::process::exit(2);
    };
    let all_wait = Arc::new(Barrier::new(THREADS.len()));
    let (sender, receiver) = mpsc::channel();
    for thread in &THREADS[1..] {
        let (sender, all_wait) = (sender.clone(), all_wait.clone());
        start(thread, move || {
            sender
                .send(build_on(thread, options, &all_wait))
                .expect("main waits");
            loop {
                std::thread::park();
            }
        });
    }
    let mut pools = build_on(THREADS[0], options, &all_wait);
    for _ in &THREADS[1..] {
        pools.extend(receiver.recv().expect("each thread sends"));
    }
    pools.sort_by_key(|pool| pool.at);
    if options.is_recycled {
        start("churn", churn_steadily);
    }
    print_truth(&pools);
    serve_requests(&mut pools, options.seconds);
    std::process::exit(0);
}
