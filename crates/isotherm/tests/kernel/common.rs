//! Helpers of all tests: processes that never outlive their test, workloads of known truth, records read back, and the
//! reason if a test cannot run here.

use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use isotherm_engine::{AddressRange, Nanos, Snapshot, TargetId};
use isotherm_record::{
    ActionSample, Header, Item, MachineSample, Reader, TargetExit, TargetStart, Truncated,
};
use isotherm_workload::truth::{self, Episode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) use crate::turns::{
    acting_on_all, alone, measuring, owning_swap, shared, watching, with_swap, without_swap,
};

pub(crate) const MIB: u64 = 1 << 20;
/// Time limit of all waits: only a hang takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Returns the command under test.
pub(crate) fn isotherm<I: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isotherm"));
    command.args(args);
    command
}

/// Returns a command for a Python program, with its output unbuffered.
pub(crate) fn python(program: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-u", "-c", program]);
    command
}

/// Returns the interpreter's own path: `python3` may be a script that starts children of its own first.
pub(crate) fn python_path() -> String {
    let program = "import sys; print(sys.executable)";
    run(&mut python(program)).success().stdout.trim().to_owned()
}

/// Returns a directory of the test's own that is removed with it.
pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Returns the name of the running test: the harness gives it to the test's thread, and [`at_once`] to its threads.
pub(crate) fn test_name() -> String {
    let thread = std::thread::current();
    let path = thread.name().expect("a thread of a test");
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

/// Prints that the running test is skipped.
pub(crate) fn skip(reason: &str) {
    eprintln!("SKIP {}: {reason}", test_name());
}

/// Returns the path of a record in a directory of the test's own, which is removed with it.
pub(crate) fn record_file() -> (TempDir, PathBuf) {
    let directory = scratch();
    let path = directory.path().join("record");
    (directory, path)
}

/// A process that is killed and reaped when it goes out of scope, with its output.
pub(crate) struct Running {
    child: Child,
    output: TempDir,
}

/// The end of a process.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Returns the exit code, as a shell reports it.
    pub(crate) fn code(&self) -> i32 {
        let status = self.status;
        status
            .code()
            .or_else(|| status.signal().map(|n| 128 + n))
            .expect("it ended")
    }

    /// Asserts that it refused: by exit code 2, and a message that contains `words`.
    #[track_caller]
    pub(crate) fn refused(&self, words: &str) {
        let has_words = self.stderr.contains(words);
        assert!(self.code() == 2 && has_words, "no {words:?}: {self:?}");
    }

    /// Asserts that its standard output contains `words`.
    #[track_caller]
    pub(crate) fn prints(&self, words: &str) {
        assert!(self.stdout.contains(words), "no {words:?}: {self:?}");
    }

    /// Asserts that its standard error contains `words`.
    #[track_caller]
    pub(crate) fn warns(&self, words: &str) {
        assert!(self.stderr.contains(words), "no {words:?}: {self:?}");
    }

    /// Returns its standard error, without messages about a kdamond of the system: some machines have one.
    pub(crate) fn complaints(&self) -> String {
        let lines = self.stderr.lines();
        let others = lines.filter(|line| !line.contains("kdamond"));
        others.collect::<Vec<_>>().join("\n")
    }

    /// Parses its standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts success and returns itself.
    pub(crate) fn success(self) -> Self {
        assert!(self.status.success(), "{self:?}");
        self
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let output = scratch();
        let file = |name| File::create(output.path().join(name)).expect("a file for output");
        command
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        Self { child, output }
    }

    /// Starts a program, and waits until it prints `ready`.
    pub(crate) fn ready(command: &mut Command) -> Self {
        let mut running = Self::start(command);
        running.line("ready");
        running
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stdout(&self) -> String {
        fs::read_to_string(self.output.path().join("stdout")).expect("output")
    }

    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.output.path().join("stderr")).expect("output")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs, and is ours");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("our child").is_none()
    }

    /// Waits until it has printed a line that begins with `start`, and returns the rest of it.
    pub(crate) fn line(&mut self, start: &str) -> String {
        until(&format!("the line {start:?}"), || {
            let output = self.stdout();
            let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let line = whole.lines().find_map(|line| line.strip_prefix(start));
            let may_come = line.is_some() || self.is_running();
            assert!(may_come, "it ended, and printed only {output}");
            line.map(|rest| rest.trim().to_owned())
        })
    }

    /// Interrupts it, and waits for an end with success.
    pub(crate) fn interrupt(self) -> Finished {
        self.signal(Signal::SIGINT);
        self.succeed()
    }

    /// Waits for an end with success.
    pub(crate) fn succeed(self) -> Finished {
        self.finish().success()
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Finished {
        let status = until("a process to end", || {
            self.child.try_wait().expect("our child")
        });
        let read = |name| fs::read_to_string(self.output.path().join(name)).expect("output");
        Finished {
            status,
            stdout: read("stdout"),
            stderr: read("stderr"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // This fails only if it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns a free address of this machine.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").to_string()
}

/// Returns the answer of a server on this machine, with its head.
pub(crate) fn http_get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Finished {
    Running::start(command).finish()
}

/// Calls `ask` until it returns an answer. It pauses nine times as long as a call takes, at most 1 s.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        let asked = Instant::now();
        if let Some(answer) = ask() {
            return answer;
        }
        let is_late = started.elapsed() >= PATIENCE;
        assert!(!is_late, "waited {PATIENCE:?} for {what}, in vain");
        let pause = 9 * asked.elapsed();
        std::thread::sleep(pause.clamp(Duration::from_millis(20), Duration::from_secs(1)));
    }
}

/// Waits until `is_so` returns true, as [`until`] does.
pub(crate) fn until_so(what: &str, mut is_so: impl FnMut() -> bool) {
    until(what, || is_so().then_some(()));
}

/// Returns a report of a record.
pub(crate) fn report(name: &str, record: &Path) -> Value {
    let done = run(isotherm(["report", name, "--json"]).arg(record));
    done.success().json()
}

/// Returns the status of the daemon at a socket, if it answers.
pub(crate) fn daemon_status(socket: &Path) -> Option<Value> {
    let done = run(isotherm(["status", "--json", "--socket"]).arg(socket));
    serde_json::from_str(&done.stdout).ok()
}

/// Starts `command` with a record at `path` for its output, interrupts it once the record so far is `enough`, and
/// waits for its end. Returns the record, which is whole.
pub(crate) fn record_until(
    what: &str,
    command: &mut Command,
    path: &Path,
    enough: impl FnMut(&Record) -> bool,
) -> (Finished, Record) {
    let recorder = Running::start(command.arg("-o").arg(path));
    let done = stop_once(what, recorder, path, enough);
    (done, Record::whole(path))
}

/// Interrupts a recorder once its record at `path` is `enough`, and waits for its end.
pub(crate) fn stop_once(
    what: &str,
    mut recorder: Running,
    path: &Path,
    mut enough: impl FnMut(&Record) -> bool,
) -> Finished {
    until_so(what, || {
        assert!(recorder.is_running(), "it ended: {}", recorder.stderr());
        Record::try_read(path).is_some_and(|record| enough(&record))
    });
    recorder.interrupt()
}

/// Starts a recorder of process `pid` that writes to `path`.
pub(crate) fn record_pid(pid: u32, path: &Path, flags: &[&str]) -> Running {
    let mut command = isotherm(["record", "--json", "--pid", &pid.to_string(), "-o"]);
    Running::start(command.arg(path).args(flags))
}

/// Records process `pid` until the recorder ends, and returns the record.
pub(crate) fn recorded(pid: u32, flags: &[&str]) -> Record {
    let (_directory, path) = record_file();
    record_pid(pid, &path, flags).succeed();
    Record::whole(&path)
}

/// Waits until a recorder has begun to write.
pub(crate) fn until_written(path: &Path) {
    until_so("a recorder to write", || {
        fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0)
    });
}

/// Waits until a recorder has written a snapshot to `path`.
pub(crate) fn until_snapshot(path: &Path) {
    until(&format!("a snapshot in {}", path.display()), || {
        let bytes = std::fs::metadata(path).ok()?.len();
        let record = match bytes {
            ..4096 => Record::try_read(path)?,
            // It is readable at every moment.
            _ => Record::read(path),
        };
        record.snapshots().next().map(|_| ())
    });
}

/// Runs `one` on each of `all` in a thread of its own: they mostly wait.
pub(crate) fn at_once<T: Sync>(all: &[T], one: impl Fn(&T) + Sync) {
    std::thread::scope(|threads| {
        for case in all {
            let one = &one;
            let thread = std::thread::Builder::new().name(test_name());
            let started = thread.spawn_scoped(threads, move || one(case));
            started.expect("a thread");
        }
    });
}

/// Sleeps while a monitor works. It does not wait for recorders that have ended.
pub(crate) fn pause(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

/// A running `isotherm workload`.
pub(crate) struct Workload {
    pub(crate) process: Running,
    truth: PathBuf,
    _directory: TempDir,
}

impl Workload {
    /// Starts a workload, and returns when all its memory is populated and its first phase has begun.
    pub(crate) fn start(config: &str, flags: &[&str]) -> Self {
        let directory = scratch();
        let [path, truth] = ["config", "truth"].map(|name| directory.path().join(name));
        fs::write(&path, config).expect("the configuration");
        let mut command = isotherm(["workload", "--quiet", "--repeat", "0", "--truth"]);
        let mut process = Running::start(command.arg(&truth).args(flags).arg(&path));
        until_so("the workload's first phase", || {
            assert!(process.is_running(), "the workload ended");
            let text = fs::read_to_string(&truth).unwrap_or_default();
            // A line may be half written, and the first belongs to no phase.
            let episodes = truth::read(text.as_bytes()).unwrap_or_default();
            text.ends_with('\n') && !episodes.is_empty()
        });
        Self {
            process,
            truth,
            _directory: directory,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns its accesses until now.
    pub(crate) fn truth(&self) -> Vec<Episode> {
        let file = File::open(&self.truth).expect("the truth");
        truth::read(BufReader::new(file)).expect("the truth")
    }

    /// Returns the ranges that its first phase accesses.
    pub(crate) fn hot(&self) -> Vec<AddressRange> {
        let episodes = self.truth();
        let heats = episodes[0].temperature.hot.iter();
        heats.map(|heat| heat.range).collect()
    }
}

/// Returns a workload's text: `total_mib`, of which two pieces of `piece_mib` are hot.
pub(crate) fn static_workload(total_mib: u64, piece_mib: u64) -> String {
    let hot_mib = 2 * piece_mib;
    format!(
        "heap, {total_mib}MiB\n\nserve\n600000\n\
         heap, 1, 64, 1, rw, hot={hot_mib}MiB piece={piece_mib}MiB seed=5\n"
    )
}

/// Returns a workload's text as [`static_workload`] does, for a program that works for 5 ms and rests for 20 ms. It
/// touches each hot page several times in that time, and leaves the CPU to other tests.
pub(crate) fn paced_workload(total_mib: u64, piece_mib: u64) -> String {
    let busy = static_workload(total_mib, piece_mib);
    let paced = busy.replace("\n600000\n", "\n5\n");
    format!("{paced}\nrest\n20\nheap, 1, 64, 0\n")
}

/// Returns an iterator over a record's items of a kind.
macro_rules! items {
    ($record:expr, $kind:ident) => {
        $record.items.iter().filter_map(|item| match item {
            Item::$kind(of) => Some(of),
            _ => None,
        })
    };
}

/// A record, read as far as possible.
pub(crate) struct Record {
    pub(crate) header: Header,
    pub(crate) items: Vec<Item>,
    pub(crate) truncated: Option<Truncated>,
}

impl Record {
    /// Reads the record at `path`; page snapshots as regions.
    pub(crate) fn read(path: &Path) -> Self {
        Self::try_read(path).unwrap_or_else(|| panic!("no record in {}", path.display()))
    }

    /// Reads a record as [`Self::read`] does; returns `None` if it has not been started.
    pub(crate) fn try_read(path: &Path) -> Option<Self> {
        let mut reader = Reader::open(File::open(path).ok()?).ok()?.replay_pages();
        let items = reader.by_ref().collect::<Result<_, _>>().ok()?;
        Some(Self {
            header: reader.header().clone(),
            items,
            truncated: reader.truncated(),
        })
    }

    /// Reads a record that was finished and holds snapshots.
    pub(crate) fn whole(path: &Path) -> Self {
        let record = Self::read(path);
        assert_eq!(record.truncated, None);
        assert!(record.snapshots().next().is_some(), "no snapshots");
        record
    }

    pub(crate) fn snapshots(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        items!(self, Snapshot)
    }

    pub(crate) fn actions(&self) -> impl Iterator<Item = &ActionSample> {
        items!(self, Action)
    }

    pub(crate) fn starts(&self) -> Vec<&TargetStart> {
        items!(self, TargetStart).collect()
    }

    /// Returns the target of a process, if it was found.
    pub(crate) fn target(&self, pid: u32) -> Option<TargetId> {
        let starts = self.starts();
        let start = starts.iter().find(|start| start.pid == pid);
        start.map(|start| start.target)
    }

    /// Returns samples of the use of the machine's memory; none if only some processes were watched.
    pub(crate) fn machine(&self) -> Vec<&MachineSample> {
        items!(self, Machine).collect()
    }

    pub(crate) fn exits(&self) -> Vec<&TargetExit> {
        items!(self, TargetExit).collect()
    }

    /// Returns all notes, a line each.
    pub(crate) fn notes(&self) -> String {
        let text = |item: &Item| match item {
            Item::Note { text, .. } => Some(text.clone() + "\n"),
            _ => None,
        };
        self.items.iter().filter_map(text).collect()
    }

    /// Returns the monitor's peak memory by its own samples, and its unknown samples.
    pub(crate) fn peak_rss_and_unknown(&self) -> (u64, u64) {
        self.items
            .iter()
            .fold((0, 0), |(rss, unknown), item| match item {
                Item::Cost(cost) => (rss.max(cost.monitor_rss), unknown.max(cost.unknown)),
                _ => (rss, unknown),
            })
    }
}

/// Sums of a snapshot over some ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) accessed: u64,
    pub(crate) idle: u64,
    pub(crate) unknown: u64,
}

/// Sums up the bytes of `snapshot` in `ranges`.
pub(crate) fn seen(snapshot: &Snapshot, ranges: &[AddressRange]) -> Seen {
    let mut seen = Seen::default();
    for region in &snapshot.regions {
        let parts = ranges
            .iter()
            .filter_map(|range| range.intersection(region.range));
        let bytes: u64 = parts.map(AddressRange::len).sum();
        match region.nr_accesses {
            None => seen.unknown += bytes,
            Some(n) if n > 0.0 => seen.accessed += bytes,
            Some(_) => seen.idle += bytes,
        }
    }
    seen
}

/// Returns the time by the record's clock.
pub(crate) fn now() -> Nanos {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Nanos(since.expect("after 1970").as_nanos() as u64)
}

/// Parses the range `START-END`, in hexadecimal.
pub(crate) fn range(text: &str) -> AddressRange {
    let (start, end) = text.split_once('-').expect("START-END");
    let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
    AddressRange::new(number(start), number(end))
}

/// Returns a field of `/proc/PID/FILE` that is in KiB, in bytes.
pub(crate) fn proc_bytes(pid: u32, file: &str, field: &str) -> u64 {
    bytes_in(&format!("/proc/{pid}/{file}"), field)
}

/// Returns a field of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(field: &str) -> u64 {
    bytes_in("/proc/meminfo", field)
}

fn bytes_in(path: &str, field: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let rest = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = rest.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("no {field} in {path}")) << 10
}

/// Returns whether a process exists and is not only waiting to be reaped.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    { stat.rsplit_once(") ") }.is_some_and(|(_, rest)| !rest.starts_with('Z'))
}
