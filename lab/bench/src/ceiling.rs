//! Is the budget a ceiling? The address spaces are expensive to monitor: many occupied blocks of 2 MiB, up to all of a
//! TiB; many mappings; many processes. The bench reports the recorder's CPU time after its start (by the kernel's count),
//! its peak memory, and the remaining interval.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::json;

use super::child::{Guarded, process_cpu};
use super::table::Table;
use super::{BenchContext, BenchOutcome};

/// Writes one byte in some of many blocks of 2 MiB, or all of their bytes. A hundredth of these blocks is touched all the
/// time.
const BLOCKS: &str = r#"
import mmap, os, time
nr, every, whole, advice = (int(word) for word in os.environ["BLOCKS"].split())
m = mmap.mmap(-1, nr << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
m.madvise(advice)
ones = b"1" * (2 << 20 if whole else 1)
for block in range(0, nr, every): m[block << 21:(block << 21) + len(ones)] = ones
print("ready", flush=True)
while True:
    for block in range(0, nr, 100 * every): m[block << 21] = 2
    time.sleep(0.1)
"#;

/// 60,000 mappings of four pages each, with alternating protections: nearly as many as a process may have by default.
const MAPPINGS: &str = r#"
import ctypes, mmap, time
N, SIZE = 60_000, 4 << 12
libc = ctypes.CDLL(None, use_errno=True)
m = mmap.mmap(-1, N * SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for piece in range(N): m[piece * SIZE] = 1
start = ctypes.addressof(ctypes.c_char.from_buffer(m))
for piece in range(1, N, 2):
    address = ctypes.c_void_p(start + piece * SIZE)
    assert libc.mprotect(address, ctypes.c_size_t(SIZE), 1) == 0
print("ready", flush=True)
while True:
    for piece in range(0, N, 100): m[piece * SIZE] = 2
    time.sleep(0.1)
"#;

/// A thousand children with 8 MiB each; each child touches one page a second.
const PROCESSES: &str = r#"
import os, signal, time
children = []
for _ in range(1000):
    child = os.fork()
    if child == 0:
        memory = bytearray(os.urandom(1 << 16)) * 128
        while os.getppid() != 1:
            memory[0] ^= 1
            time.sleep(1)
        os._exit(0)
    children.append(child)
def end(*_):
    for child in children: os.kill(child, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
time.sleep(20)
print("ready", flush=True)
while True: time.sleep(1)
"#;

/// Name, program, and the arguments of [`BLOCKS`]: number of blocks, step from one that is written to the next, whether a
/// whole block is written, and advice (14: MADV_HUGEPAGE, 15: MADV_NOHUGEPAGE).
const CASES: [(&str, &str, &str); 6] = [
    ("100,000 blocks", BLOCKS, "100000 1 0 15"),
    ("60,000 mappings", MAPPINGS, ""),
    ("1,000 processes", PROCESSES, ""),
    ("1 TiB, a page in each block", BLOCKS, "524288 1 0 15"),
    ("1 TiB, 16 GiB in small pages", BLOCKS, "524288 64 1 15"),
    ("1 TiB, 16 GiB in huge pages", BLOCKS, "524288 64 1 14"),
];
/// Time until the recorder knows its targets, and the first intervals are over.
const SETTLED: Duration = Duration::from_secs(20);
/// Time for several intervals of a thousand processes.
const MEASURED: Duration = Duration::from_mins(2);

#[derive(Serialize)]
struct Row {
    case: &'static str,
    cpu_percent: f64,
    start_cpu_s: f64,
    peak_rss_mib: f64,
    interval_s: f64,
}

pub(super) fn run(context: &BenchContext) -> Result<BenchOutcome> {
    let mut table = Table::new(
        "the default monitor at 1 % of a CPU",
        "case | CPU % | CPU s until then | peak RSS MiB | interval s",
    );
    let mut rows = Vec::new();
    for (case, program, blocks) in CASES {
        if !context.is_selected(case) {
            continue;
        }
        for _ in 0..context.repeats {
            let row = measure(context, case, program, blocks)?;
            table.row(vec![
                case.into(),
                format!("{:.2}", row.cpu_percent),
                format!("{:.2}", row.start_cpu_s),
                format!("{:.1}", row.peak_rss_mib),
                format!("{:.1}", row.interval_s),
            ]);
            rows.push(row);
        }
    }
    Ok(BenchOutcome::Done(vec![table], json!({ "rows": rows })))
}

fn measure(context: &BenchContext, case: &'static str, program: &str, blocks: &str) -> Result<Row> {
    let mut command = Command::new("python3");
    command
        .args(["-c", program])
        .env("BLOCKS", blocks)
        .stdout(Stdio::piped());
    let mut target = Guarded::spawn(context, &mut command)?;
    target.ready()?;
    let mut command = Command::new(&context.isotherm);
    let seconds = (SETTLED + MEASURED).as_secs() + 2;
    command
        .args(["record", "--json", "--children"])
        .args(["--pid", &target.id().to_string()])
        .args(["--duration", &format!("{seconds}s"), "-o"])
        .arg(context.scratch("ceiling.isotherm"));
    let mut recorder = Guarded::spawn_json(context, &mut command)?;
    context.sleep(SETTLED)?;
    let (before, since) = (process_cpu(recorder.id())?, Instant::now());
    context.sleep(MEASURED)?;
    let spent = process_cpu(recorder.id())?.saturating_sub(before);
    let elapsed = since.elapsed();
    let summary = recorder.finish_json(context, Duration::from_secs(seconds + 30))?;
    let number = |name: &str| summary[name].as_f64().with_context(|| format!("no {name}"));
    Ok(Row {
        case,
        cpu_percent: 100.0 * spent.as_secs_f64() / elapsed.as_secs_f64(),
        start_cpu_s: before.as_secs_f64(),
        peak_rss_mib: number("monitor_peak_rss_bytes")? / f64::from(1 << 20),
        interval_s: number("interval_seconds")?,
    })
}
