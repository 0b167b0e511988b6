//! SIGKILL at random moments, and processes that come and go. Isotherm puts kernel DAMON's tree in order after itself,
//! whatever it was doing. It leaves the changes that another user has made meanwhile alone.
//!
//! Another user's configuration, which is off, is in the tree from the beginning. Each round begins a session and kills
//! it after a time that is drawn from a seed, from nothing to well past its start. The next session has to begin on
//! what is left. In the end the tree is read again, file by file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use isotherm_record::Item;
use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::error::Result;
use crate::kernel::Kernel;
use crate::scenario::Report;
use crate::scenario::kernel_damon::{FUNCTIONS, IN_USE, says};
use crate::scenario::workload::{self, SCATTERED, SLOW};
use crate::vm::VmOutput;

const SEED: u64 = 20_261_126;
const ROUNDS: usize = 24;
/// The longest that a session may live: well past its start, which takes about 2 s.
const LATEST_MS: u64 = 4_000;
/// Phases of a session that a kill can hit.
const BEFORE: &str = "before it wrote anything";
const BETWEEN: &str = "while it set up the tree or put it back";
const ON: &str = "with a kdamond on";
/// Duration of a session under which processes come and go, in seconds.
const LOAD_SECONDS: u32 = 15;
const LEAST_TOLD: usize = 10;
/// Least number of snapshots in the record of the load beside a process that stays.
const LEAST_SEEN: usize = 4;

const SESSIONS: [&str; 4] = [
    "record --pid $target",
    "run -c /tmp/two.json",
    "run --scheme '4K max 0 0 2s max cold' --pid $target",
    "record --physical",
];

/// Configuration of two kdamonds, of a process and of physical memory, whose schemes (`cold` and `stat`) keep all
/// memory in place.
const TWO: &str = r#"{"kdamonds": [
  {"contexts": [{"ops": "vaddr", "targets": [{"pid": TARGET, "regions": []}],
    "intervals": {"sample_us": "100 ms", "aggr_us": "1 s", "ops_update_us": "10 s"},
    "nr_regions": {"min": "10", "max": "500"},
    "schemes": [{"action": "cold",
      "access_pattern": {"sz_bytes": {"min": "4 KiB", "max": "max"}, "nr_accesses": {"min": "0 %", "max": "0 %"},
                         "age": {"min": "2 s", "max": "max"}},
      "quotas": {"time_ms": "10 ms", "sz_bytes": "16 MiB", "reset_interval_ms": "1 s"}}]}]},
  {"contexts": [{"ops": "paddr", "targets": [{"pid": null, "regions": []}],
    "intervals": {"sample_us": "200 ms", "aggr_us": "2 s", "ops_update_us": "20 s"},
    "schemes": [{"action": "stat",
      "access_pattern": {"sz_bytes": {"min": "4 KiB", "max": "max"}, "nr_accesses": {"min": "0 %", "max": "100 %"},
                         "age": {"min": "0 s", "max": "max"}}}]}]}
]}"#;

const SOMEBODY: &str = "\
echo 2 >$tree/nr_kdamonds\n\
echo 1 >$tree/1/contexts/nr_contexts\n\
their=$tree/1/contexts/0\n\
echo paddr >$their/operations\n\
echo 7000 >$their/monitoring_attrs/intervals/sample_us\n\
echo 1 >$their/targets/nr_targets\n\
echo 1 >$their/targets/0/regions/nr_regions\n\
echo 4096 >$their/targets/0/regions/0/start\n\
echo 1048576 >$their/targets/0/regions/0/end\n\
echo 1 >$their/schemes/nr_schemes\n\
echo lru_deprio >$their/schemes/0/action\n\
echo 33554432 >$their/schemes/0/quotas/bytes\n";

const ROUND: &str = "\
dump() { grep -r . $tree | sort; }\n\
same() {\n\
    dump >/tmp/now\n\
    cmp -s $1 /tmp/now || die \"the tree differs, $2: $(diff $1 /tmp/now | head -n 20)\"\n\
}\n\
note=/run/isotherm/kernel-damon.json\n\
state() {\n\
    nr=$(cat $tree/nr_kdamonds) on=0 note_is=same pids_are=same\n\
    for file in $tree/*/state; do [ \"$(cat $file)\" = on ] && on=$((on + 1)); done\n\
    [ \"$note_before\" = \"$(md5sum $note 2>/dev/null)\" ] || note_is=new\n\
    [ \"$pids_before\" = \"$(cat $tree/*/pid)\" ] || pids_are=new\n\
    echo \"note=$note_is kdamonds=$nr on=$on pids=$pids_are\"\n\
}\n\
killed() {\n\
    seconds=$1\n\
    shift\n\
    note_before=$(md5sum $note 2>/dev/null) pids_before=$(cat $tree/*/pid)\n\
    taskset $other_cpu isotherm \"$@\" -o /tmp/killed 2>/tmp/said >/dev/null & session=$!\n\
    sleep $seconds\n\
    kill -9 $session || die \"it had ended by itself: $(cat /tmp/said)\"\n\
    wait $session\n\
    grep 'that was killed' /tmp/said >/tmp/first\n\
    is_well killed\n\
}\n";

/// Returns for each round the index of its session, and the milliseconds after which it is killed.
fn moments() -> Vec<(usize, u64)> {
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    let moments = (0..ROUNDS).map(|round| {
        // The share is squared, since most phases are over within the first second.
        let share = f64::from(rng.next_u32()) / f64::from(u32::MAX);
        let ms = LATEST_MS as f64 * share * share;
        (round % SESSIONS.len(), ms as u64)
    });
    moments.collect()
}

fn rounds() -> String {
    let mut script =
        format!("{SOMEBODY}{ROUND}dump >/tmp/theirs\nsed -i \"s/TARGET/$target/\" /tmp/two.json\n");
    for (session, ms) in moments() {
        let (seconds, thousandths) = (ms / 1000, ms % 1000);
        let what = SESSIONS[session];
        let slow = if what.contains("-c ") { "" } else { SLOW };
        let _ = writeln!(
            script,
            "killed {seconds}.{thousandths:03} {what} {slow} --world kernel\n\
             echo \"{session} {ms} $(state) $(cat /tmp/first)\" >>/out/rounds.txt"
        );
    }
    let _ = writeln!(
        script,
        "isotherm run {SLOW} --world kernel --scheme '4K max 0 0 2s max stat' --pid $target --duration 3s \
         >/out/last.txt 2>&1 || die \"$(cat /out/last.txt)\"\n\
         same /tmp/theirs 'after all'\n\
         [ ! -e $note ] || die a note is left\n\
         echo 0 >$tree/nr_kdamonds"
    );
    script
}

/// Returns a script in which another user takes over the tree that a killed session has left.
fn taken_over() -> String {
    format!(
        "isotherm run {SLOW} --world kernel --scheme '4K max 0 0 2s max stat' --pid $target >/dev/null 2>&1 & session=$!\n\
         wait_for 0.1 200 is_on\n\
         sleep 1\n\
         kill -9 $session\n\
         wait $session\n\
         echo 64 >$tree/0/contexts/0/monitoring_attrs/nr_regions/max\n\
         echo commit >$tree/0/state || exit 1\n\
         dump >/tmp/taken\n\
         refused taken record --world kernel --pid $target --duration 1s -o /tmp/no\n\
         same /tmp/taken 'which somebody had taken over'\n\
         echo off >$tree/0/state\n\
         dump >/tmp/taken\n\
         isotherm record {SLOW} --world kernel --pid $target --duration 3s -o /tmp/beside 2>/tmp/said || die \"$(cat /tmp/said)\"\n\
         same /tmp/taken 'that somebody had taken over and turned off'\n\
         echo 0 >$tree/nr_kdamonds\n"
    )
}

/// Returns a script with processes that live for a fraction of a second, three at a time. They run alone first, then
/// beside one that stays.
fn load() -> String {
    let acted = |name: &str| {
        format!(
            "isotherm run --json {SLOW} --world kernel --scheme '4K max 0 0 2s max cold' --cgroup /load \
             --duration {LOAD_SECONDS}s -o /out/{name}.isotherm >/out/{name}.json 2>/out/{name}.txt || \
             die \"$(cat /out/{name}.txt)\"\n\
             is_empty {name}\n"
        )
    };
    format!(
        "group=/sys/fs/cgroup/load\n\
         mkdir $group\n\
         churn() {{ while [ ! -e /tmp/stop ]; do sh -c \"echo 0 >$group/cgroup.procs; exec sleep 0.$1\"; done; }}\n\
         churn 3 & churn 5 & churn 9 &\n\
         {}echo $target >$group/cgroup.procs\n\
         {}touch /tmp/stop\n\
         is_well load\n",
        acted("load"),
        acted("beside"),
    )
}

pub(crate) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = [
        FUNCTIONS.to_owned(),
        SCATTERED.start(1),
        "cp /two.json /tmp/two.json\n".to_owned(),
        rounds(),
        taken_over(),
        load(),
    ]
    .concat();
    let vm = SCATTERED.vm(kernel, &script)?.instruction_ns_log2(3);
    let output = vm.text("/two.json", TWO).run_ok()?;
    tell_rounds(report, &output)?;
    says(report, &output, "taken", IN_USE)?;
    tell_load(report, &output, "load", "they alone")?;
    let seen = tell_load(report, &output, "beside", "beside one that stays")?;
    let is_enough = seen >= LEAST_SEEN;
    ensure!(is_enough, "the one that stays was seen {seen} times");
    Ok(())
}

/// Reports how many kills hit each phase, and fails if one was never hit.
fn tell_rounds(report: &mut Report, output: &VmOutput) -> Result<()> {
    let text = output.text("rounds.txt")?;
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        let has = |word| line.contains(word);
        let phase = match (has("note=new"), has("pids=new") && !has(" on=0 ")) {
            (true, true) => ON,
            (true, false) => BETWEEN,
            (false, _) => BEFORE,
        };
        *phases.entry(phase).or_default() += 1;
    }
    let messages = text.lines().filter(|line| line.contains("that was killed"));
    let (nr, nr_restored) = (text.lines().count(), messages.count());
    let hit = phases.iter().map(|(phase, nr)| format!("{phase} {nr}"));
    let hit = hit.collect::<Vec<_>>().join(", ");
    report.say(format!(
        "seed {SEED}: {nr} rounds of up to {LATEST_MS} ms; killed {hit}; {nr_restored} reported what they restored"
    ));
    for phase in [BEFORE, BETWEEN, ON] {
        let count = phases.get(phase).copied().unwrap_or(0);
        ensure!(count > 0, "none was killed {phase}\n{text}");
    }
    Ok(())
}

/// Reports the processes that came and went according to the record. Returns the number of snapshots.
fn tell_load(report: &mut Report, output: &VmOutput, name: &str, label: &str) -> Result<usize> {
    let (mut came, mut went, mut snapshots, mut tries) = (0, 0, 0, 0);
    for item in workload::items(output, name)? {
        match item {
            Item::TargetStart(_) => came += 1,
            Item::TargetExit(_) => went += 1,
            Item::Snapshot(_) => snapshots += 1,
            Item::Note { text, .. } if text.contains("did not take") => tries += 1,
            _ => {}
        }
    }
    report.say(format!(
        "coming and going, {label}: {came} came, {went} went, {snapshots} snapshots, {tries} times not taken at once"
    ));
    let are_told = came >= LEAST_TOLD && went + 4 >= came;
    ensure!(are_told, "{name}: it lacks starts or ends of targets");
    Ok(snapshots)
}
