//! Worlds compared on this kernel: Isotherm's monitor and a replay, between exact scans. If another process uses the
//! kernel's DAMON here, the comparison reports it as failed. Virtual machines compare a DAMON that is free (vm-tests:
//! `kernel-damon-compare`).

use crate::common::{Workload, isotherm, measuring, run, scratch, static_workload};

#[test]
fn worlds_are_compared_between_exact_scans() {
    let Some(_turn) = measuring() else { return };
    let directory = scratch();
    let workload = Workload::start(&static_workload(64, 4), &[]);
    let reported = run(&mut isotherm(["damon", "--json"])).json();
    let kdamonds = reported["kdamonds"].as_array().expect("a list");
    // The kernel's DAMON is compared only if it is in use, and so refused: otherwise the test would take it over.
    let is_in_use = kdamonds.iter().any(|kdamond| kdamond["pid"].is_u64());
    let kernel = if is_in_use { ",kernel" } else { "" };
    let worlds = format!("linux,simulated{kernel}");
    let page = directory.path().join("compared.html");
    let mut command = isotherm(["compare", "--json", "--turns", "1", "--window", "7s"]);
    command.args(["--scheme", "4K max 0 0 2s max pageout", "--worlds", &worlds]);
    command.args(["--scan-stall", "1s", "--pid", &workload.pid().to_string()]);
    let done = run(command.arg("-o").arg(&page));
    assert_eq!(done.status.code(), Some(i32::from(is_in_use)), "{done:?}");
    let compared = done.json();
    for world in &compared["worlds"].as_array().expect("a list")[..2] {
        let turn = &world["turns"][0];
        for share in ["accessed_recall", "idle_precision", "idle_recall"] {
            let found = turn[share].as_f64();
            assert!(found.is_some_and(|found| found >= 0.9), "{share}: {world}");
        }
        let of_scheme = &turn["schemes"][0];
        let bytes = of_scheme["bytes"].as_u64().expect("a number");
        assert!((50 << 20..=80 << 20).contains(&bytes), "{world}");
        let in_use = of_scheme["accessed_bytes"].as_u64().expect("a number");
        assert!(in_use < 1 << 20, "{world}");
    }
    if is_in_use {
        let error = compared["worlds"][2]["error"].as_str().expect("an error");
        assert!(error.contains("kernel DAMON is in use"), "{error}");
    }
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("Worlds compared"), "{page}");
}
