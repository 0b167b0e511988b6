//! The simulated machine beside this kernel, in a case where both agree to the page.

use std::fs;

use serde_json::json;

use crate::common::{MIB, Workload, isotherm, pause, run, scratch, shared, skip, until_so};

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// Uses one page in eight of the first half, and all of the second.
const MIXED: &str = "\
    sparse, 64MiB\n\
    dense, 64MiB\n\
    \n\
    serve\n\
    600000\n\
    sparse, 0, 32KiB, 1, rw\n\
    dense, 0, 4KiB, 1, rw\n";

/// Returns the bytes of `name` in a process's mappings of at least 64 MiB that map no file.
fn in_heap(pid: u32, name: &str) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("/proc");
    let (mut is_heap, mut sum) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |hex: &str| u64::from_str_radix(hex, 16).expect("an address");
            let is_anonymous = !line.contains('/') && !line.contains("[stack");
            is_heap = is_anonymous && number(end) - number(start) >= 64 * MIB;
        } else if is_heap && first.trim_end_matches(':') == name {
            let kib: u64 = words.next().and_then(|kib| kib.parse().ok()).expect("KiB");
            sum += kib << 10;
        }
    }
    sum
}

/// Returns resident memory and huge pages of the workload on this kernel, when no more are added.
fn live(huge: &str) -> (u64, u64) {
    let workload = Workload::start(MIXED, &["--sparse", "--hugepages", huge]);
    let mut before = None;
    until_so("all of it to be touched", || {
        let now = in_heap(workload.pid(), "Rss");
        pause(0.3);
        before.replace(now) == Some(now) && now > 64 * MIB
    });
    let pid = workload.pid();
    (in_heap(pid, "Rss"), in_heap(pid, "AnonHugePages"))
}

fn simulated(huge: &str) -> (u64, u64) {
    let folder = scratch();
    let [config, scenario] = ["mixed.cfg", "scenario"].map(|name| folder.path().join(name));
    fs::write(&config, MIXED).expect("written");
    let machine = json!({"nodes": [{"size": "2 GiB"}], "thp": huge});
    let text = json!({
        "machine": machine,
        "duration": "3s",
        "processes": [{"masim": config, "sparse": true}],
    });
    fs::write(&scenario, text.to_string()).expect("written");
    let done = run(isotherm(["simulate", "--json"]).arg(&scenario));
    let report = done.success().json();
    let of = |name: &str| report["processes"][0][name].as_u64().expect("bytes");
    (of("rss_max_bytes"), of("huge_bytes"))
}

#[test]
fn huge_pages_cost_what_is_simulated() {
    let Some(_turn) = shared() else { return };
    match fs::read_to_string(THP) {
        Ok(modes) if !modes.contains("[never]") => {}
        Ok(_) => return skip(&format!("{THP} is never")),
        Err(error) => return skip(&format!("cannot read {THP}: {error}")),
    }
    for huge in ["never", "always"] {
        let (here, there) = (live(huge), simulated(huge));
        eprintln!("huge pages {huge}: resident and huge {here:?} live, {there:?} simulated");
        let differ = |a: u64, b: u64| a.abs_diff(b) as f64 / a.max(b).max(1) as f64;
        // The part of a mapping before its first 2 MiB and after its last depends on its address.
        assert!(differ(here.0, there.0) < 0.05, "{here:?} {there:?}");
        assert!(here.1.abs_diff(there.1) <= 4 * MIB, "{here:?} {there:?}");
    }
}
