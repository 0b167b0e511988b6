//! `isotherm park` and `isotherm wake`: does all of a program go, does it come back in order, is nothing lost?

use crate::common::{Running, isotherm, run, until, with_swap};
use crate::watch::groups::{Group, memory_group};

/// Has 64 MiB with a number in each page; each request makes it read every fourth page of the first half 2,000 times, and
/// print the sum.
const PROGRAM: &str = "
import sys, time
memory = bytearray(64 << 20)
for i in range(0, len(memory), 4096):
    memory[i:i + 8] = (i // 4096).to_bytes(8, 'little')
    memory[i + 8:i + 2048] = bytes(range(255)) * 8
print('ready', flush=True)
path = sys.argv[1]
answered = 0
while True:
    asked = len(open(path).read())
    if asked > answered:
        answered = asked
        pages = range(0, len(memory) // 2, 4 * 4096)
        for _ in range(2000):
            total = sum(int.from_bytes(memory[i:i + 8], 'little') for i in pages)
        print(f'answer {answered} {total}', flush=True)
    time.sleep(0.05)
";

const SUM: u64 = 2048 * 2047 / 2 * 4;

struct Parked {
    program: Running,
    name: String,
    requests: tempfile::NamedTempFile,
    nr_requests: usize,
    _group: Group,
}

impl Parked {
    fn start() -> Option<Self> {
        let group = memory_group("park")?;
        let requests = tempfile::NamedTempFile::new().expect("a file");
        let mut command = group.shell("exec python3 -u -c \"$PROGRAM\" \"$REQUESTS\"");
        command.env("PROGRAM", PROGRAM);
        let program = Running::ready(command.env("REQUESTS", requests.path()));
        Some(Self {
            program,
            name: group.name(),
            requests,
            nr_requests: 0,
            _group: group,
        })
    }

    fn call(&self, command: &str, flags: &[&str]) -> serde_json::Value {
        let words = [command, "--cgroup", &self.name, "--json"];
        run(isotherm(words).args(flags)).success().json()
    }

    /// Asks the program for the sum, which shows that no page was lost.
    fn ask(&mut self) {
        self.nr_requests += 1;
        std::fs::write(self.requests.path(), "x".repeat(self.nr_requests)).expect("written");
        let answer = format!("answer {} ", self.nr_requests);
        assert_eq!(self.program.line(&answer), SUM.to_string());
    }
}

#[test]
fn a_parked_program_comes_back_in_the_order_of_its_last_wake() {
    let Some(_turn) = with_swap() else { return };
    let Some(mut parked) = Parked::start() else {
        return;
    };
    let number = |of: &serde_json::Value, key: &str| of[key].as_u64().expect("a number");
    let report = parked.call("park", &[]);
    let process = &report["processes"][0];
    let (before, after) = ["before", "after"]
        .map(|when| number(process, &format!("resident_{when}_bytes")))
        .into();
    assert!(before > 64 << 20 && after < before / 5, "{report}");
    // The first wake learns what the program needs: half of half a quarter, and its interpreter.
    let wake = ["wake", "--json", "--cgroup", &parked.name];
    let waking = Running::start(isotherm(wake).args(["--watch", "4s"]));
    parked.ask();
    let learned = waking.finish().success().json();
    assert_eq!(number(&learned, "prefetched_bytes"), 0);
    let returned = number(&learned, "returned_bytes");
    assert!(returned >= 8 << 20, "{learned}");
    parked.call("park", &[]);
    let woken = parked.call("wake", &["--watch", "10ms"]);
    let ahead = number(&woken, "prefetched_bytes");
    assert!((8 << 20..before).contains(&ahead), "{woken}");
    parked.ask();
}

#[test]
fn a_group_that_was_not_parked_is_not_woken() {
    let Some(_turn) = with_swap() else { return };
    let Some(parked) = Parked::start() else {
        return;
    };
    run(&mut isotherm(["wake", "--cgroup", &parked.name])).refused("was not run on it");
}

#[test]
fn a_group_is_parked_whenever_it_idles_and_woken_when_it_runs() {
    let Some(_turn) = with_swap() else { return };
    let Some(mut parked) = Parked::start() else {
        return;
    };
    let words = ["park", "--idle", "2s", "--idle-cpu", "5%", "--json"];
    let keeping = Running::start(isotherm(words).args(["--cgroup", &parked.name]));
    let mut nr_events = 0;
    let mut next = |done: &str| -> serde_json::Value {
        let line = until("an event", || {
            let output = keeping.stdout();
            let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
            whole.lines().nth(nr_events).map(str::to_owned)
        });
        nr_events += 1;
        let event: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert!(event["done"][done].is_object(), "{done}: {event}");
        event["done"][done].clone()
    };
    let report = next("parked");
    let after = report["processes"][0]["resident_after_bytes"].as_u64();
    assert!(after.is_some_and(|after| after < 20 << 20), "{report}");
    parked.ask();
    let woken = next("woken");
    assert_eq!(woken["prefetched_bytes"], 0, "{woken}");
    // Also what came back before it was seen to run.
    let returned = woken["returned_bytes"].as_u64();
    assert!(returned.is_some_and(|bytes| bytes >= 8 << 20), "{woken}");
    next("parked");
    parked.ask();
    let woken = next("woken");
    let ahead = woken["prefetched_bytes"].as_u64();
    assert!(ahead.is_some_and(|ahead| ahead >= 8 << 20), "{woken}");
    keeping.interrupt();
}
