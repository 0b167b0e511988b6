//! Large targets: the monitor stays within its CPU and its memory.

use std::fs;

use crate::common::{
    Record, Running, Workload, measuring, paced_workload, python, record_file, record_pid,
    recorded, shared, skip,
};

const MONITOR_RSS_MAX: u64 = 32 << 20;

/// Maps 10,000 mappings of 528 KiB, every other one writable with one page of it in use.
const MANY_MAPPINGS: &str = r#"
import mmap, time
size, maps = 132 * 4096, []
for i in range(10000):
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if i % 2 else 0)
    maps.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection))
def touch():
    for i in range(1, 10000, 2):
        maps[i][4096 * (i % 132)] = 1
touch()
print("ready", flush=True)
while True:
    touch()
    time.sleep(0.01)
"#;

#[test]
fn five_gib_in_ten_thousand_mappings() {
    let Some(_turn) = measuring() else { return };
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let limit = limit.trim().parse::<u64>();
    if limit.is_ok_and(|limit| limit < 12_000) {
        return skip("vm.max_map_count is below 12,000");
    }
    let (_directory, path) = record_file();
    let mut target = Running::ready(&mut python(MANY_MAPPINGS));
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("it runs");
    assert!(maps.lines().count() >= 10_000, "the mappings were merged");
    let recorder = record_pid(target.pid(), &path, &["--duration", "12s"]);
    let summary = recorder.succeed().json();
    let record = Record::whole(&path);
    let (rss, _) = record.peak_rss_and_unknown();
    let cpu = summary["monitor_cpu_percent"].as_f64().expect("a number");
    assert!(cpu < 5.0, "{cpu} % of a CPU");
    assert!(rss <= MONITOR_RSS_MAX, "the monitor took {rss} bytes");
    let mut regions = record.snapshots().flat_map(|s| &s.regions);
    let accessed = regions.any(|region| region.nr_accesses > Some(0.0));
    assert!(accessed, "nothing was seen to be accessed");
    assert!(target.is_running());
}

#[test]
fn a_thousand_regions_fit_in_32_mib() {
    let Some(_turn) = shared() else { return };
    let workload = Workload::start(&paced_workload(512, 16), &[]);
    let flags = ["--faithful", "--regions", "1000-2000", "--duration", "6s"];
    let record = recorded(workload.pid(), &flags);
    let most = record.snapshots().map(|s| s.regions.len()).max();
    assert!(most >= Some(1000), "only {most:?} regions");
    let (rss, _) = record.peak_rss_and_unknown();
    assert!(rss <= MONITOR_RSS_MAX, "the monitor took {rss} bytes");
}
