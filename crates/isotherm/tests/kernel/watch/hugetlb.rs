//! Huge pages of hugetlbfs: their accessed bits cannot be cleared, so they are unknown, never idle.

use std::fs;

use serde_json::Value;

use crate::common::{MIB, Running, python, record_file, record_pid, report, shared, skip};

const SETTING: &str = "/proc/sys/vm/nr_hugepages";

/// Maps 16 MiB of hugetlbfs and 16 MiB of usual memory, and never touches either again.
const PROGRAM: &str = r#"
import mmap, os, time
kinds = []
for flag in (0x40000, 0):
    m = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flag)
    for at in range(0, 16 << 20, 4096):
        m[at:at + 8] = os.urandom(8)
    kinds.append(m)
print("ready", flush=True)
time.sleep(600)
"#;

/// Huge pages reserved for a test; the earlier number is restored at the end.
struct Reserved(u64);

impl Reserved {
    /// Reserves `nr` more huge pages; returns `None` if the kernel does not find them.
    fn new(nr: u64) -> Option<Self> {
        let number = || fs::read_to_string(SETTING).ok()?.trim().parse().ok();
        let before: u64 = number()?;
        fs::write(SETTING, (before + nr).to_string()).ok()?;
        let reserved = Self(before);
        (number()? >= before + nr).then_some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        fs::write(SETTING, self.0.to_string()).expect("the setting can be written");
    }
}

#[test]
fn huge_pages_of_hugetlbfs_are_unknown_and_never_idle() {
    let Some(_turn) = shared() else { return };
    let Some(_reserved) = Reserved::new(8) else {
        return skip("the kernel finds no 8 huge pages");
    };
    let target = Running::ready(&mut python(PROGRAM));
    let (_folder, path) = record_file();
    record_pid(target.pid(), &path, &["--duration", "9s"]).succeed();
    let summary = report("summary", &path);
    let target = &summary["targets"][0];
    let mib = |of: &Value| of.as_u64().expect("bytes") / MIB;
    let mut idle = target["idle"].as_array().expect("idle times").iter();
    let idle = idle.find(|idle| idle["at_least_ns"] == 5_000_000_000_u64);
    let idle = mib(&idle.expect("5 s")["bytes"]);
    assert!((15..32).contains(&idle), "{summary}");
    let unknown = mib(&target["unknown_bytes"]);
    assert!((16..24).contains(&unknown), "{summary}");
    assert!(mib(&target["resident_bytes"]) >= 32, "{summary}");
}
