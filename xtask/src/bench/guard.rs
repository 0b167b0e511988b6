//! Does the guard keep its promise? Programs that are hard for it, with and without `prcl`.
//!
//! Each program works for a fixed time and says how far it got; runs alone and runs with schemes
//! alternate. The slowdown is by that progress; its interval is the bootstrap's (95 %) over pairs. What
//! was saved is what the target has in swap at the end, of which zram's growth is subtracted.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::json;

use super::child::Guarded;
use super::table::Table;
use super::{Context, Outcome};

/// What all programs begin with: `hold` fills memory with what halves when compressed; the last line
/// says how far a program got.
const COMMON: &str = r"
import mmap, os, sys, threading, time
seconds = float(sys.argv[1])
def hold(mib):
    memory = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block = b''.join(os.urandom(2048) + bytes(2048) for _ in range(256))
    for i in range(mib):
        memory[i << 20:(i + 1) << 20] = block
    return memory
def touch(memory, start, end):
    for page in range(start << 8, end << 8):
        memory[page << 12] = 1
def ready():
    print('ready', flush=True)
    return time.monotonic() + seconds
";

/// Does nothing but touch 200 MiB now and then; how far it gets is what that leaves of the time.
const BURSTY: &str = r"
memory, period, lost = hold(400), float(sys.argv[2]), 0.0
end = ready()
while time.monotonic() + period < end:
    time.sleep(period)
    began = time.monotonic()
    touch(memory, 0, 200)
    lost += time.monotonic() - began
print('progress', seconds - lost)
";

/// Works on 100 MiB of 600, on others every 10 s.
const SHIFTING: &str = r"
memory, rounds = hold(600), 0
end = ready()
while time.monotonic() < end:
    at = int((end - time.monotonic()) / 10) % 6
    touch(memory, at * 100, at * 100 + 100)
    rounds += 1
print('progress', rounds)
";

/// Two threads that need the same lock (and the interpreter's) beside 700 MiB that nobody touches.
const LOCKS: &str = r"
memory, lock, done = hold(700), threading.Lock(), [0, 0]
end = ready()
def work(me):
    while time.monotonic() < end:
        with lock:
            done[me] += sum(range(200)) > 0
threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print('progress', sum(done))
";

/// A redis of 300,000 values of 1,000 bytes, of which a tenth is read.
const REDIS: &str = r"
import socket, subprocess, tempfile
path = tempfile.mkdtemp() + '/redis.sock'
server = subprocess.Popen(['redis-server', '--port', '0', '--unixsocket', path, '--save', ''],
                          stdout=subprocess.DEVNULL)
client = socket.socket(socket.AF_UNIX)
while client.connect_ex(path):
    time.sleep(0.1)
def ask(requests, size):
    client.sendall(requests)
    while size > 0:
        size -= len(client.recv(min(size, 1 << 20)))
for i in range(0, 300000, 100):
    ask(b''.join(b'SET k%06d %s\r\n' % (j, os.urandom(500).hex().encode()) for j in range(i, i + 100)), 500)
end, asked = ready(), 0
while time.monotonic() < end:
    ask(b''.join(b'GET k%06d\r\n' % ((asked + j) * 7919 % 30000) for j in range(20)), 20 * 1009)
    asked += 20
print('progress', asked)
server.kill()
";

/// A heap of 600 MiB of which little is used, beside garbage that is made all the time.
const JVM: &str = r#"
public class Guard {
    public static void main(String[] arguments) {
        byte[][] old = new byte[600][];
        var random = new java.util.Random(1);
        for (int i = 0; i < old.length; i++) {
            old[i] = new byte[1 << 20];
            random.nextBytes(old[i]);
        }
        System.out.println("ready");
        long end = System.nanoTime() + (long) (Double.parseDouble(arguments[0]) * 1e9);
        long rounds = 0, sum = 0;
        while (System.nanoTime() < end) {
            byte[] young = new byte[64 << 10];
            for (int i = 0; i < young.length; i += 64) young[i] = (byte) i;
            sum += young[(int) (rounds % young.length)] + old[(int) (rounds % 20)][5];
            rounds++;
        }
        System.out.println("progress " + rounds + (sum == 42 ? " " : ""));
    }
}
"#;

/// Name, program and what it is told besides the seconds.
const CASES: [(&str, &str, &[&str]); 9] = [
    ("bursty_6s", BURSTY, &["6"]),
    ("bursty_15s", BURSTY, &["15"]),
    ("bursty_30s", BURSTY, &["30"]),
    ("bursty_60s", BURSTY, &["60"]),
    ("bursty_120s", BURSTY, &["120"]),
    ("shifting_10s", SHIFTING, &[]),
    ("locks", LOCKS, &[]),
    ("redis", REDIS, &[]),
    ("jvm_gc", JVM, &[]),
];
/// Guarded, and not.
const ARMS: [(&str, &[&str]); 2] = [("guard 1%", &[]), ("no guard", &["--no-guard"])];
const START_LIMIT: Duration = Duration::from_mins(1);
const RESAMPLES: usize = 2000;

/// A run of a program.
#[derive(Clone, Copy, Serialize)]
struct Run {
    progress: f64,
    /// With schemes: CPU seconds of acting, and times that the guard stopped.
    acting_cpu_s: f64,
    stops: u64,
    /// Bytes of it in swap at the end, but for what zram takes.
    saved: i64,
}

#[derive(Serialize)]
struct Row {
    case: &'static str,
    arm: &'static str,
    alone: Vec<Run>,
    with: Vec<Run>,
    slowdown_percent: f64,
    interval: (f64, f64),
}

pub(super) fn run(context: &Context) -> anyhow::Result<Outcome> {
    if !has_swap() {
        return Ok(Outcome::Skip(
            "there is no swap; `isotherm swap zram --size 2G`, or swapon a disk, and run it again"
                .into(),
        ));
    }
    let mut table = Table::new(
        "slowdown by progress under prcl, interleaved pairs",
        &[
            "case",
            "arm",
            "pairs",
            "slowdown %",
            "95 %",
            "saved MiB",
            "acting s",
            "stops",
        ],
    );
    let mut rows = Vec::new();
    for (case, program, arguments) in CASES {
        if !context.only.is_empty() && !context.only.iter().any(|only| only == case) {
            continue;
        }
        if let Some(missing) = missing(case) {
            println!("{case}: left out, as {missing} cannot be started");
            continue;
        }
        for (arm, flags) in ARMS {
            let row = compare(context, (case, program, arguments), (arm, flags))?;
            let mean = |of: fn(&Run) -> f64| {
                row.with.iter().map(of).sum::<f64>() / row.with.len().max(1) as f64
            };
            table.row(vec![
                case.into(),
                arm.into(),
                row.with.len().to_string(),
                format!("{:.2}", row.slowdown_percent),
                format!("{:.2}..{:.2}", row.interval.0, row.interval.1),
                format!("{:.0}", mean(|run| run.saved as f64) / f64::from(1 << 20)),
                format!("{:.2}", mean(|run| run.acting_cpu_s)),
                format!("{:.1}", mean(|run| run.stops as f64)),
            ]);
            rows.push(row);
        }
    }
    Ok(Outcome::Done {
        tables: vec![table],
        data: json!({ "rows": rows }),
    })
}

fn compare(
    context: &Context,
    (case, program, arguments): (&'static str, &str, &[&str]),
    (arm, flags): (&'static str, &[&str]),
) -> anyhow::Result<Row> {
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for pair in 0..context.repeats {
        // Which comes first alternates, too.
        for turn in 0..2 {
            if (pair + turn) % 2 == 0 {
                alone.push(once(context, program, arguments, None)?);
            } else {
                with.push(once(context, program, arguments, Some(flags))?);
            }
        }
    }
    let pairs: Vec<(f64, f64)> = alone
        .iter()
        .zip(&with)
        .map(|(alone, with)| (alone.progress, with.progress))
        .collect();
    Ok(Row {
        case,
        arm,
        slowdown_percent: slowdown(&pairs),
        interval: bootstrap(&pairs),
        alone,
        with,
    })
}

/// Runs a program, with schemes by `flags` beside it if there are any.
fn once(
    context: &Context,
    program: &str,
    arguments: &[&str],
    flags: Option<&[&str]>,
) -> anyhow::Result<Run> {
    // A burst comes once in its period; three should fit.
    let period: u64 = arguments
        .first()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let seconds = context.duration.as_secs().max(3 * period + 5);
    let mut command = if program == JVM {
        let path = context.scratch("Guard.java");
        std::fs::write(&path, program)?;
        let mut command = Command::new("java");
        command.args(["-Xms900m", "-Xmx900m"]).arg(path);
        command
    } else {
        let mut command = Command::new("python3");
        command.args(["-c", &format!("{COMMON}{program}")]);
        command
    };
    command
        .arg(seconds.to_string())
        .args(arguments)
        .stdout(Stdio::piped());
    let mut target = Guarded::spawn(context, &mut command)?;
    let output = target.stdout().context("its output is piped")?;
    let mut output = BufReader::new(output);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line.trim() == "ready", "the program said `{}`", line.trim());
    let pool = zram_pool();
    let summary = context.scratch("guard.json");
    let isotherm = match flags {
        None => None,
        Some(flags) => {
            let mut command = Command::new(&context.isotherm);
            command
                .args(["run", "--json", "--preset", "prcl", "--children"])
                .args(flags)
                .args(["--duration", &format!("{}s", seconds - 1)])
                .args(["--pid", &target.id().to_string()])
                .stdout(std::fs::File::create(&summary)?);
            Some(Guarded::spawn(context, &mut command)?)
        }
    };
    std::thread::sleep(Duration::from_millis(1000 * seconds - 500));
    let saved = swapped(target.id()) as i64 - (zram_pool() as i64 - pool as i64);
    let mut rest = String::new();
    output.read_to_string(&mut rest)?;
    target.finish(context, START_LIMIT)?;
    let progress = rest.trim().strip_prefix("progress ");
    let progress = progress.and_then(|number| number.parse().ok());
    let progress = progress.with_context(|| format!("the program said `{}`", rest.trim()))?;
    let mut run = Run {
        progress,
        acting_cpu_s: 0.0,
        stops: 0,
        saved,
    };
    if let Some(mut isotherm) = isotherm {
        isotherm.finish(context, START_LIMIT)?;
        let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(summary)?)?;
        run.acting_cpu_s = summary["acting_cpu_seconds"].as_f64().unwrap_or(0.0);
        run.stops = summary["guard_stops"].as_u64().unwrap_or(0);
    }
    Ok(run)
}

/// In percent, of the sums.
fn slowdown(pairs: &[(f64, f64)]) -> f64 {
    let alone: f64 = pairs.iter().map(|pair| pair.0).sum();
    let with: f64 = pairs.iter().map(|pair| pair.1).sum();
    100.0 * (1.0 - with / alone.max(f64::MIN_POSITIVE))
}

/// The interval in which 95 % of the slowdowns lie that pairs drawn from these have.
fn bootstrap(pairs: &[(f64, f64)]) -> (f64, f64) {
    // A sequence without structure is all that is needed, and the same each time.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pairs[(state % pairs.len() as u64) as usize]
    };
    let mut slowdowns: Vec<f64> = (0..RESAMPLES)
        .map(|_| slowdown(&pairs.iter().map(|_| draw()).collect::<Vec<_>>()))
        .collect();
    slowdowns.sort_by(f64::total_cmp);
    (
        slowdowns[RESAMPLES / 40],
        slowdowns[RESAMPLES - RESAMPLES / 40],
    )
}

/// What a case needs and is not there.
fn missing(case: &str) -> Option<&'static str> {
    let program = match case {
        "redis" => "redis-server",
        "jvm_gc" => "java",
        _ => "python3",
    };
    let mut version = Command::new(program);
    let version = version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    version.status().is_err().then_some(program)
}

fn has_swap() -> bool {
    super::machine::meminfo("SwapTotal:").is_some_and(|bytes| bytes > 0)
}

/// Bytes of a process and its children in swap.
fn swapped(pid: u32) -> u64 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    children.chain([pid]).map(swapped_of).sum()
}

fn swapped_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Bytes that zram devices take.
fn zram_pool() -> u64 {
    let used = |stat: String| stat.split_whitespace().nth(2)?.parse::<u64>().ok();
    let devices = std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten();
    devices
        .filter(|device| device.file_name().to_string_lossy().starts_with("zram"))
        .filter_map(|device| used(std::fs::read_to_string(device.path().join("mm_stat")).ok()?))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdowns_and_their_intervals() {
        let same = [(100.0, 99.0); 10];
        assert!((slowdown(&same) - 1.0).abs() < 1e-9);
        let (low, high) = bootstrap(&same);
        assert!((low - 1.0).abs() < 1e-9 && (high - 1.0).abs() < 1e-9);
        let mixed: Vec<(f64, f64)> = (0..10).map(|i| (100.0, 90.0 + f64::from(i))).collect();
        let (low, high) = bootstrap(&mixed);
        assert!(low < slowdown(&mixed) && slowdown(&mixed) < high && high - low < 6.0);
    }
}
