//! The kernel's DAMON on this machine stays unchanged if another process drives it. Virtual machines test a DAMON that
//! Isotherm drives (vm-tests: `kernel-damon`).

use std::path::Path;

use crate::common::{isotherm, run, scratch, shared, skip};

const TREE: &str = "/sys/kernel/mm/damon/admin";

#[test]
fn what_somebody_runs_by_the_kernel_is_left_alone() {
    let Some(_turn) = shared() else { return };
    let directory = scratch();
    let record = || {
        let path = directory.path().join("record");
        let pid = std::process::id().to_string();
        let mut command = isotherm(["record", "--world", "kernel", "--duration", "1s", "--pid"]);
        let done = run(command.arg(&pid).arg("-o").arg(&path));
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        assert!(!path.exists());
        done.stderr
    };
    let reported = || run(&mut isotherm(["damon", "--json"])).stdout;
    if !Path::new(TREE).is_dir() {
        assert!(record().contains("no DAMON that can be driven"));
        assert!(reported().contains("\"is_there\": false"));
        return;
    }
    let before = reported();
    if !before.contains("\"pid\": ") || before.contains("\"pid\": null") {
        // A try would take it over.
        skip("the kernel's DAMON does not run on this machine");
        return;
    }
    let before_in_full = directory.path().join("before.json");
    let after_in_full = directory.path().join("after.json");
    let export = |path: &Path| run(isotherm(["damon", "--export"]).arg(path));
    assert!(export(&before_in_full).status.success());
    let said = record();
    assert!(said.contains("kernel DAMON is in use: kdamond"), "{said}");
    assert_eq!(reported(), before);
    assert!(export(&after_in_full).status.success());
    let read = |path: &Path| std::fs::read_to_string(path).expect("a configuration");
    assert_eq!(read(&after_in_full), read(&before_in_full));
}
