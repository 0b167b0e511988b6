//! Pages of files that nobody maps.

use std::path::PathBuf;
use std::process::Command;

use isotherm_engine::page_cache::CachedBytes;

use crate::common::{Running, alone, isotherm, python, python_path, run, skip};
use crate::groups::{Group, hierarchies};

const MIB: u64 = 1 << 20;

/// Makes two files of 64 MiB, reads both, and from then on half of the first again and again.
const READER: &str = "import os, sys, time\n\
    directory, piece = sys.argv[1], 1 << 20\n\
    files = [os.path.join(directory, name) for name in ('used', 'idle')]\n\
    for name in files:\n\
    \twith open(name, 'wb') as file:\n\
    \t\tfor at in range(64): file.write(os.urandom(1024) * 1024)\n\
    \t\tfile.flush(); os.fsync(file.fileno())\n\
    \twith open(name, 'rb', buffering=0) as file:\n\
    \t\twhile file.read(piece): pass\n\
    print('ready', flush=True)\n\
    with open(files[0], 'rb', buffering=0) as file:\n\
    \twhile True:\n\
    \t\tfile.seek(0)\n\
    \t\tfor at in range(32): file.read(piece)\n\
    \t\ttime.sleep(0.2)\n";

/// Beside the binary: the usual place for temporary files may be in memory.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// What is read again and again is in use, what is not is idle, and which files these are is told.
#[test]
fn files_that_are_read_are_told_from_those_that_are_not() {
    let test = "files_that_are_read_are_told_from_those_that_are_not";
    let Some(_turn) = alone(test) else { return };
    let directory = on_disk();
    let mut reader = Running::start(python(READER).arg(directory.path()));
    reader.line("ready");
    let path = directory.path().join("record");
    let flags = ["record", "--all", "--cpu-budget", "100%"];
    run(isotherm(flags).args(["--duration", "24s", "-o"]).arg(&path)).success();
    let done = run(isotherm(["report", "machine", "--json"]).arg(&path)).success();
    let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let files = report["page_cache"]["files"].as_array().expect("files");
    let bytes_of = |name: &str| -> CachedBytes {
        let path = directory.path().join(name);
        let is_it = |file: &&serde_json::Value| file["path"] == path.to_string_lossy().as_ref();
        let file = files.iter().find(is_it).expect("one of the largest files");
        serde_json::from_value(file["bytes"].clone()).expect("as documented")
    };
    let (used, idle) = (bytes_of("used"), bytes_of("idle"));
    // The kernel's own answer, as others (a service's DAMON) may take pages that are idle; some tens a processor are on
    // their way between its lists.
    for (name, told) in [("used", used.total()), ("idle", idle.total())] {
        let now = cached(&directory.path().join(name));
        assert!(told <= 64 * MIB, "{name}: {told}");
        assert!(told + MIB / 2 >= now, "{name}: {told} of {now}");
    }
    assert!(used.ages.touched >= 30 * MIB, "{used:?}");
    assert!(
        used.ages.idle_from(1) >= 30 * MIB,
        "the other half: {used:?}"
    );
    assert!(used.used_again >= 30 * MIB, "{used:?}");
    assert!(idle.ages.idle_from(1) + 2 * MIB >= idle.total(), "{idle:?}");
    let known_age = report["known_age"].as_f64().expect("a share");
    assert!(known_age > 0.5, "{known_age}");
    let text = run(isotherm(["report", "machine"]).arg(&path)).success();
    assert!(
        text.stdout.contains("files that no process maps"),
        "{}",
        text.stdout
    );
}

/// Idle memory of whom the test is about, and nobody else's pages.
fn schemes(group: &str) -> String {
    format!(
        "kdamonds:\n\
         - contexts:\n\
         \x20 - ops: vaddr\n\
         \x20   targets: []\n\
         \x20   schemes:\n\
         \x20   - action: pageout\n\
         \x20     access_pattern:\n\
         \x20       sz_bytes: {{min: 4 KiB, max: max}}\n\
         \x20       nr_accesses: {{min: 0 %, max: 0 %}}\n\
         \x20       age: {{min: 5 s, max: max}}\n\
         \x20     filters:\n\
         \x20     - {{filter_type: memcg, memcg_path: {group}, matching: false, allow: false}}\n\
         \x20     - {{filter_type: unmapped, matching: true, allow: true}}\n"
    )
}

/// How many bytes of a file are in memory, by the kernel.
fn cached(path: &std::path::Path) -> u64 {
    let program = "import mmap, os, sys, ctypes\n\
        file = open(sys.argv[1], 'r+b')\n\
        pages = os.fstat(file.fileno()).st_size // 4096\n\
        memory = mmap.mmap(file.fileno(), 0)\n\
        there = (ctypes.c_ubyte * pages)()\n\
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n\
        libc = ctypes.CDLL(None)\n\
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]\n\
        assert libc.mincore(start, pages * 4096, there) == 0\n\
        print(sum(page & 1 for page in there) * 4096)\n";
    let done = run(python(program).arg(path)).success();
    done.stdout.trim().parse().expect("a number")
}

/// Idle clean pages of files go, those in use stay, and what was done is what is seen.
#[test]
fn idle_pages_of_files_are_dropped() {
    let test = "idle_pages_of_files_are_dropped";
    let Some(_turn) = alone(test) else { return };
    let charges = |point: &PathBuf| point.join("memory.stat").is_file();
    let hierarchies = hierarchies();
    let mut charging = hierarchies.iter().filter(|point| charges(point));
    let made = charging.find_map(|point| Group::create(point, "page-cache"));
    let Some(group) = made else {
        return skip(test, "no hierarchy of control groups with memory");
    };
    let directory = on_disk();
    let mut reader = Command::new("sh");
    let script = "echo $$ > \"$PROCS\"; exec \"$@\"";
    reader.args(["-c", script, "sh"]).arg(python_path());
    reader.args(["-c", READER]).arg(directory.path());
    let mut reader = Running::start(reader.env("PROCS", group.procs()));
    reader.line("ready");
    let name = group.directory.file_name().expect("a name");
    let config = directory.path().join("schemes.yaml");
    std::fs::write(&config, schemes(&format!("/{}", name.display()))).expect("a file");
    let flags = [
        "run",
        "--all",
        "--cpu-budget",
        "100%",
        "--no-guard",
        "--json",
    ];
    let mut command = isotherm(flags);
    let done = run(command.args(["--duration", "40s", "-c"]).arg(&config)).success();
    let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let applied = summary["schemes"][0]["sz_applied"].as_u64().expect("bytes");
    let (used, idle) = ["used", "idle"]
        .map(|name| cached(&directory.path().join(name)) / MIB)
        .into();
    assert!(idle <= 2, "{idle} MiB of what is idle: {summary}");
    assert!(
        (31..=34).contains(&used),
        "{used} MiB of what is half in use: {summary}"
    );
    let out = (128 - used - idle) * MIB;
    assert!(
        applied.abs_diff(out) <= 4 * MIB,
        "{applied} of {out}: {summary}"
    );
}
