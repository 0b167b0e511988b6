//! Programs that are hard for a guard.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) struct Case {
    pub(super) name: &'static str,
    program: Program,
    /// Seconds of sleep between two bursts; 0 if the program works all the time.
    pub(super) period_s: u64,
}

enum Program {
    Python(&'static str),
    Redis(&'static str),
    Java(&'static str),
}

const fn case(name: &'static str, program: Program, period_s: u64) -> Case {
    Case {
        name,
        program,
        period_s,
    }
}

pub(super) const CASES: [Case; 10] = [
    case("bursty_6s", Program::Python(BURSTY), 6),
    case("bursty_15s", Program::Python(BURSTY), 15),
    case("bursty_30s", Program::Python(BURSTY), 30),
    case("bursty_60s", Program::Python(BURSTY), 60),
    case("bursty_120s", Program::Python(BURSTY), 120),
    case("shifting_10s", Program::Python(SHIFTING), 0),
    case("locks", Program::Python(LOCKS), 0),
    case("redis", Program::Redis(TENTH), 0),
    case("redis_zipf", Program::Redis(ZIPF), 0),
    case("jvm_gc", Program::Java(JVM), 0),
];

impl Case {
    /// Returns the run's seconds, `at_least` these: three bursts should fit.
    pub(super) fn seconds(&self, at_least: Duration) -> u64 {
        at_least.as_secs().max(3 * self.period_s + 5)
    }

    /// Returns the program's command, and writes the files that it needs to `scratch`.
    pub(super) fn command(&self, seconds: u64, scratch: &Path) -> anyhow::Result<Command> {
        let mut command = match self.program {
            Program::Java(text) => {
                let path = scratch.join("Guard.java");
                std::fs::write(&path, text)?;
                let mut command = Command::new("java");
                command.args(["-Xms900m", "-Xmx900m"]).arg(path);
                command
            }
            Program::Python(text) => python(text),
            Program::Redis(text) => python(&format!("{REDIS}{text}")),
        };
        command
            .arg(seconds.to_string())
            .arg(self.period_s.to_string())
            .stdout(Stdio::piped());
        Ok(command)
    }

    pub(super) fn missing(&self) -> Option<&'static str> {
        let program = match &self.program {
            Program::Redis(_) => "redis-server",
            Program::Java(_) => "java",
            Program::Python(_) => "python3",
        };
        let mut version = Command::new(program);
        let version = version
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        version.status().is_err().then_some(program)
    }
}

fn python(text: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{COMMON}{text}")]);
    command
}

/// The beginning of all programs. `hold` fills memory with content that halves when compressed; the last line prints a
/// program's progress.
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

/// Touches 200 MiB periodically and does nothing else; its progress is the time that is left.
const BURSTY: &str = r"
memory, period, lost = hold(400), float(sys.argv[2]), 0.0
end = ready()
while time.monotonic() + period < end:
    time.sleep(period)
    began = time.monotonic()
    touch(memory, 0, 200)
    lost += time.monotonic() - began
time.sleep(max(0, end - time.monotonic()))
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

/// Two threads that need the same lock (and the interpreter's) beside 700 MiB that no thread touches.
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

/// The beginning of programs that use redis: `serve` starts it with a number of values of 1,000 bytes, which halve when
/// compressed.
const REDIS: &str = r"
import random, socket, subprocess, tempfile
path = tempfile.mkdtemp() + '/redis.sock'
server = subprocess.Popen(['redis-server', '--port', '0', '--unixsocket', path, '--save', ''],
                          stdout=subprocess.DEVNULL)
client = socket.socket(socket.AF_UNIX)
while client.connect_ex(path):
    time.sleep(0.1)
def ask(requests, size):
    client.sendall(requests)
    while size > 0:
        answer = client.recv(min(size, 1 << 20))
        assert answer, 'the server has hung up'
        size -= len(answer)
SET = b'*3\r\n$3\r\nSET\r\n$8\r\nk%07d\r\n$1000\r\n%s\r\n'
def serve(nr):
    for i in range(0, nr, 100):
        ask(b''.join(SET % (j, os.urandom(500) + bytes(500)) for j in range(i, i + 100)), 500)
def get(keys):
    ask(b''.join(b'GET k%07d\r\n' % key for key in keys), len(keys) * 1009)
";

/// Reads a tenth of 300,000 values.
const TENTH: &str = r"
serve(300000)
end, asked = ready(), 0
while time.monotonic() < end:
    get([(asked + j) * 7919 % 30000 for j in range(20)])
    asked += 20
print('progress', asked)
server.kill()
";

/// Reads 1.5 million values by Zipf's law (exponent 1); the popular ones are scattered among the others.
const ZIPF: &str = r"
nr = 1500000
serve(nr)
end, asked = ready(), 0
while time.monotonic() < end:
    get([int(nr ** random.random()) * 7919 % nr for j in range(50)])
    asked += 50
print('progress', asked)
server.kill()
";

/// A heap of 600 MiB beside continuous garbage. Each array is in one of the collector's regions, and few of them are
/// used.
const JVM: &str = r#"
public class Guard {
    public static void main(String[] arguments) {
        byte[][] old = new byte[600][];
        var random = new java.util.Random(1);
        for (int i = 0; i < old.length; i++) {
            old[i] = new byte[(1 << 20) - 32];
            byte[] half = new byte[1 << 19];
            random.nextBytes(half);
            System.arraycopy(half, 0, old[i], 0, half.length);
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
