//! Quotas and goals of the kernel's DAMON: their limits and their changes, as the kernel's own counters and the places
//! of memory show them.
//!
//! The laws are those of `mm/damon/core.c` (`damos_set_effective_quota`, `damon_feed_loop_next_input`).

use serde_json::{Value, json};

use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::scenario::Report;
use crate::scenario::acting::{self, mib, pages, pattern};
use crate::scenario::kernel_damon::{FUNCTIONS, says};
use crate::scenario::kernel_damon_actions::{Counters, configuration, counters};
use crate::scenario::workload::Workload;
use crate::vm::VmOutput;

/// A workload with more memory than quotas let out during a check: a sixth is hot, the rest is never touched. It holds
/// text, so that compression frees memory.
const LARGE: Workload = Workload::Exercise(
    "heap, 96MiB, /tmp/text\n\nserve\n600000\nheap, 1, 64, 1, ro, hot=16MiB piece=4MiB seed=1\n",
);
const LIMIT: u64 = 4 << 20;
/// The quota of time, in milliseconds per second; and the kernel's quota in bytes before it has measured its speed.
/// Until then the kernel assumes 4 MiB a millisecond.
const LIMIT_MS: u64 = 5;
const FIRST_GUESS: u64 = LIMIT_MS * (4 << 20);

/// Shell functions. `heap` prints the range of the workload's heap, so that all tried memory is populated. `used_up`
/// checks the number of windows that have used up their quotas. `fell` checks whether a quota has grown and then
/// fallen.
const HEAP: &str = "\
    yes 'Some of this memory is hot, most is cold.' | head -c 1048576 >/tmp/text\n\
    used_up() { [ \"$(tail -n 1 /out/$1.txt 2>/dev/null | cut -d' ' -f7)\" -ge $2 ] 2>/dev/null; }\n\
    fell() { awk '{ last = $8 } last > most { most = last } END { exit !(most >= 1048576 && last < most / 2) }' \
    /out/pressure.txt 2>/dev/null; }\n\
    heap() { printf '0x%x-0x%x' $(sed -n 's/.*\"heap\",\"start\":\\([0-9]*\\),\"end\":\\([0-9]*\\).*/\\1 \\2/p' \
    /out/truth.jsonl); }\n";

/// Returns a scheme that pages out cold memory, within a quota.
fn page_out(quotas: &Value) -> Value {
    json!({
        "action": "pageout",
        "access_pattern": pattern(["0 %", "0 %"], ["1 s", "max"]),
        "quotas": quotas,
    })
}

pub(crate) fn limited(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "{FUNCTIONS}{HEAP}isotherm swap zram --size 256M || exit 1\n\
         {start}taskset 1 vm-guest wake &\n\
         look start\n\
         kernel_until bytes 'used_up bytes 8' -c /bytes.json --pid $target --range $(heap)\n\
         look bytes\n\
         kernel_until time 'up_for 10' -c /time.json --pid $target --range $(heap)\n\
         look time\n",
        start = LARGE.start(1),
    );
    let bytes = json!({"time_ms": 0, "sz_bytes": LIMIT.to_string(), "reset_interval_ms": "1 s"});
    let time = json!({"time_ms": LIMIT_MS.to_string(), "sz_bytes": 0, "reset_interval_ms": "1 s"});
    let output = acting::vm(&LARGE, kernel, &script)?
        .text("/bytes.json", &configuration("vaddr", &[page_out(&bytes)]))
        .text("/time.json", &configuration("vaddr", &[page_out(&time)]))
        .run_ok()?;
    by_bytes(report, &output)?;
    by_time(report, &output)
}

/// Returns the seconds from the first reading of the counters to `now`.
fn since(first: &Counters, now: &Counters) -> f64 {
    now.seconds - first.seconds
}

fn by_bytes(report: &mut Report, output: &VmOutput) -> Result<()> {
    let all = counters(output, "bytes", 0)?;
    // Schemes are held until the quota is in force: memory that they try until then is not applied, and does not count.
    let is_held = |now: &Counters| now.effective == 0 && now.applied == 0;
    let first = all[all.iter().rposition(is_held).unwrap_or(0)];
    let last = all[all.len() - 1];
    let swapped = pages(output, "bytes")?;
    let swapped = swapped.cold.swapped + swapped.hot.swapped;
    report.say(format!(
        "{} a second: {} tried, {} applied in {:.1} s, {} windows used up; effective {}; in swap {}",
        mib(LIMIT),
        mib(last.tried),
        mib(last.applied),
        since(&first, &last),
        last.exceeds,
        mib(last.effective),
        mib(swapped),
    ));
    for now in all.iter().filter(|now| now.seconds >= first.seconds) {
        // The windows that have begun since, and the first one.
        let windows = since(&first, now) as u64 + 2;
        let is_within = now.tried - first.tried <= windows * LIMIT;
        ensure!(is_within, "more than the quota: {now:?} after {first:?}");
        // Between a commit and the kernel's answer the tree contains 0.
        let is_ours = matches!(now.effective, 0 | LIMIT);
        ensure!(is_ours, "another quota is in force: {now:?}");
    }
    ensure!(last.exceeds >= 5, "the quota was not used up");
    ensure!(last.tried >= 5 * LIMIT, "too little was done");
    // Paging out continues while the last counters are read.
    let is_told = swapped <= last.applied + 2 * LIMIT;
    ensure!(is_told, "more is in swap than was applied");
    let is_out = swapped >= last.applied / 2;
    ensure!(is_out, "what was applied is not in swap");
    Ok(())
}

fn by_time(report: &mut Report, output: &VmOutput) -> Result<()> {
    let all = counters(output, "time", 0)?;
    let last = all[all.len() - 1];
    let quotas = all.iter().map(|now| now.effective);
    let quotas: Vec<u64> = quotas.filter(|quota| *quota > 0).collect();
    let least = quotas.iter().copied().min().unwrap_or(0);
    let most = quotas.iter().copied().max().unwrap_or(0);
    report.say(format!(
        "{LIMIT_MS} ms a second: effective {} to {} of a first guess of {}; {} tried, {} windows used up",
        mib(least),
        mib(most),
        mib(FIRST_GUESS),
        mib(last.tried),
        last.exceeds,
    ));
    let is_first = quotas.first() == Some(&FIRST_GUESS);
    ensure!(is_first, "another quota is in force");
    let is_less = least < FIRST_GUESS;
    ensure!(is_less, "the kernel's speed in emulation is not measured");
    for pair in all.windows(2) {
        let windows = since(&pair[0], &pair[1]) as u64 + 2;
        let quota = pair[0].effective.max(pair[1].effective).max(1);
        let tried = pair[1].tried - pair[0].tried;
        let is_within = tried <= windows * quota || pair[0].effective == 0;
        ensure!(is_within, "more than the quota was tried: {pair:?}");
    }
    Ok(())
}

/// Progress that the user reports, of 10,000: nothing, half, three quarters, all. The kernel's quota then follows
/// [`law`].
const SAID: [u64; 4] = [0, 5_000, 7_500, 10_000];
const CAP: u64 = 64 << 20;
const WINDOW_MS: u64 = 200;

/// Returns a scheme with one goal, for regions of any rate and age.
fn with_goal(action: &str, bytes: u64, tuner: Option<&str>, goal: &Value) -> Value {
    let mut quotas = json!({
        "time_ms": 0,
        "sz_bytes": bytes.to_string(),
        "reset_interval_ms": format!("{WINDOW_MS} ms"),
        "goals": [goal],
    });
    if let Some(tuner) = tuner {
        quotas["goal_tuner"] = json!(tuner);
    }
    json!({
        "action": action,
        "access_pattern": pattern(["0 %", "100 %"], ["0 s", "max"]),
        "apply_interval_us": format!("{WINDOW_MS} ms"),
        "quotas": quotas,
    })
}

fn of_user(said: u64) -> Value {
    let goal =
        json!({"metric": "user_input", "target_value": "10000", "current_value": said.to_string()});
    with_goal("stat", CAP, None, &goal)
}

/// Returns a scheme that pages out all memory, also hot memory, until that costs more waiting than 1 ms in a window.
fn of_pressure() -> Value {
    let goal = json!({"metric": "some_mem_psi_us", "target_value": "1 ms", "current_value": 0});
    with_goal("pageout", 16 << 20, None, &goal)
}

/// Returns a scheme that pages out until a share of node 0 is free. Scripts replace `FREE` by that share in
/// ten-thousandths.
fn of_free_memory(tuner: &str) -> Value {
    let goal = json!({
        "metric": "node_mem_free_bp", "nid": 0, "target_value": "FREE", "current_value": 0,
    });
    let mut scheme = with_goal("pageout", 2 << 20, Some(tuner), &goal);
    scheme["access_pattern"] = pattern(["0 %", "0 %"], ["1 s", "max"]);
    scheme
}

/// Shell functions: `free_bp` prints the free ten-thousandths of node 0, and `is_free` compares them with the goal.
const FREE: &str = "\
    free_bp() { awk '/MemTotal/ { all = $4 } /MemFree/ { free = $4 } END { print int(free * 10000 / all) }' \
    /sys/devices/system/node/node0/meminfo; }\n\
    is_free() { [ $(free_bp) -ge $goal ] && sleep 4; }\n";

/// Shell that runs a scheme whose quota follows pressure. It saves the microseconds for which some task has waited for
/// memory before and after that. Only kernels without a goal of free memory run it. On 7.3-rc7 a quota of 16 MiB is
/// applied so slowly in emulation that tasks hardly wait in a window.
const PRESSURE: &str = "\
    sed -n 's/^some .*total=//p' /proc/pressure/memory >/out/waited-before.txt\n\
    kernel_until pressure fell -c /pressure.json --pid $target --range $(heap)\n\
    sed -n 's/^some .*total=//p' /proc/pressure/memory >/out/waited-after.txt\n";

pub(crate) fn follow(kernel: Kernel, report: &mut Report) -> Result<()> {
    let has_nodes = kernel != Kernel::Debian612;
    let of_memory = if has_nodes {
        format!(
            "{FREE}free_bp >/out/free-before.txt\n\
             # 32 MiB more than now.\n\
             goal=$(($(free_bp) + 32 * 10000 / {MEMORY_MIB})); echo $goal >/out/free-goal.txt\n\
             sed s/FREE/$goal/ /free.json >/tmp/free.json\n\
             kernel_until free is_free -c /tmp/free.json --pid $target --range $(heap)\n\
             free_bp >/out/free-after.txt\n\
             look free\n"
        )
    } else {
        format!(
            "{PRESSURE}\
             sed s/FREE/5000/ /free.json >/tmp/free.json\n\
             refused nodes run --world kernel -c /tmp/free.json --pid $target --duration 1s\n\
             is_empty nodes\n"
        )
    };
    let script = format!(
        "{FUNCTIONS}{HEAP}isotherm swap zram --size 256M || exit 1\n\
         # Its lists seldom take what comes back for a working set, and then nobody waits.\n\
         echo n >/sys/kernel/mm/lru_gen/enabled\n\
         {start}taskset 1 vm-guest wake &\n\
         look start\n\
         kernel_until user 'up_for 16' -c /user.json --pid $target --range $(heap)\n\
         {of_memory}",
        start = LARGE.start(1),
    );
    let users: Vec<Value> = SAID.into_iter().map(of_user).collect();
    let output = acting::vm(&LARGE, kernel, &script)?
        .cmdline_extra("psi=1")
        .memory_mib(MEMORY_MIB)
        .text("/user.json", &configuration("vaddr", &users))
        .text("/pressure.json", &configuration("vaddr", &[of_pressure()]))
        .text(
            "/free.json",
            &configuration("vaddr", &[of_free_memory("temporal")]),
        )
        .run_ok()?;
    by_what_is_said(report, &output)?;
    if has_nodes {
        by_free_memory(report, &output)?;
    } else {
        by_pressure(report, &output)?;
        for words in ["does not take 'node_mem_free_bp'", "quota tuner `temporal`"] {
            says(report, &output, "nodes", words)?;
        }
    }
    Ok(())
}

const MEMORY_MIB: u32 = 768;

/// Returns the quota in bytes after each window, from one byte on, as `damon_feed_loop_next_input` computes it for a
/// constant score.
fn law(score: u64, windows: usize) -> Vec<u64> {
    let mut ten_thousandths: u64 = 10_000;
    let next = |_| {
        if ten_thousandths / 10_000 < CAP {
            ten_thousandths += ten_thousandths * (10_000 - score) / 10_000;
        }
        (ten_thousandths / 10_000).min(CAP)
    };
    (0..windows).map(next).collect()
}

fn by_what_is_said(report: &mut Report, output: &VmOutput) -> Result<()> {
    for (at, said) in (0..).zip(SAID) {
        let all = counters(output, "user", at)?;
        let last = all[all.len() - 1];
        let quotas: Vec<u64> = all.iter().map(|now| now.effective).collect();
        report.say(format!(
            "user_input {said} of 10000: effective {quotas:?} in {:.1} s",
            since(&all[0], &last)
        ));
        let law = law(said, 400);
        // Newer kernels tune anew at the commit with which the scheme begins.
        let (mut place, mut begun) = (0, 1);
        for now in all.iter().filter(|now| now.effective > 0) {
            let position = |from: usize| {
                let later = law[from..].iter().position(|quota| *quota == now.effective);
                later.map(|later| from + later)
            };
            place = position(place)
                .or_else(|| {
                    begun += 1;
                    position(0)
                })
                .filter(|_| begun <= 2)
                .ok_or_else(|| {
                    let effective = now.effective;
                    VmError::Wrong(format!("{effective} does not follow by the law"))
                })?;
        }
        if said == 0 {
            ensure!(last.effective == CAP, "the cap is not reached");
        }
        // A goal that is reached does not grow, and one that is not does.
        let has_grown = last.effective > 1;
        ensure!(has_grown == (said < 10_000), "for {said}: {last:?}");
    }
    Ok(())
}

fn by_pressure(report: &mut Report, output: &VmOutput) -> Result<()> {
    let all = counters(output, "pressure", 0)?;
    let quotas: Vec<u64> = all.iter().map(|now| now.effective).collect();
    let waited = output.number("waited-after")? - output.number("waited-before")?;
    report.say(format!(
        "some_mem_psi_us of 1 ms in {WINDOW_MS} ms: {waited} us were waited; effective {quotas:?}"
    ));
    let most = quotas.iter().copied().max().unwrap_or(0);
    let at = quotas.iter().position(|quota| *quota == most).unwrap_or(0);
    ensure!(most >= 1 << 20, "it does not grow");
    let least = quotas[at..].iter().copied().min().unwrap_or(most);
    let has_fallen = waited > 1_000 && least < most / 2;
    ensure!(has_fallen, "it does not fall under pressure");
    Ok(())
}

fn by_free_memory(report: &mut Report, output: &VmOutput) -> Result<()> {
    let (before, goal) = (output.number("free-before")?, output.number("free-goal")?);
    let after = output.number("free-after")?;
    let all = counters(output, "free", 0)?;
    let last = all[all.len() - 1];
    let cold = pages(output, "free")?.cold;
    report.say(format!(
        "node_mem_free_bp, temporal: {before} before, the goal {goal}, {after} after; {} in swap, {} cold in memory; \
         effective at last {}",
        mib(cold.swapped),
        mib(cold.present),
        last.effective,
    ));
    ensure!(after + 50 >= goal, "the goal is not reached");
    ensure!(cold.present >= 16 << 20, "it does not stop at the goal");
    ensure!(last.effective == 0, "at the goal a quota is left");
    Ok(())
}
