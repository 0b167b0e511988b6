//! Pages of files that no process maps.

use std::path::Path;

use isotherm_engine::page_cache::CachedBytes;
use isotherm_record::CachedFile;

use crate::common::{
    MIB, Running, alone, isotherm, pause, python, python_path, record_until, report, run, until_so,
    watching,
};
use crate::watch::groups::memory_group;

/// Makes two files of 64 MiB, reads both, and then reads half of the first again and again.
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

/// Returns a directory beside the binary: the usual place for temporary files may be in memory.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// Returns whether half of a file was read just now and several times before, and the other half has been idle for 5 s.
fn is_half_used(of: Option<&CachedBytes>) -> bool {
    let least = 30 * MIB;
    of.is_some_and(|of| {
        of.ages.touched >= least && of.ages.idle_from(1) >= least && of.used_again >= least
    })
}

/// Returns whether all of a file has been idle for 5 s.
fn is_idle(of: Option<&CachedBytes>) -> bool {
    of.is_some_and(|of| of.total() > 0 && of.ages.idle_from(1) + 2 * MIB >= of.total())
}

/// Pages that are read again and again are in use, others are idle, and the report names the files.
#[test]
fn files_that_are_read_are_told_from_those_that_are_not() {
    let Some(_turn) = watching() else { return };
    let directory = on_disk();
    let _reader = Running::ready(python(READER).arg(directory.path()));
    let path = directory.path().join("record");
    let mut command = isotherm(["record", "--all", "--cpu-budget", "100%"]);
    let what = "half of a file to be used again, the rest to be idle";
    record_until(what, &mut command, &path, |record| {
        let samples = record.machine();
        let mut latest = samples.iter().rev();
        let last = latest.find_map(|sample| sample.page_cache.as_ref());
        let of = |name: &str| {
            let path = directory.path().join(name);
            let is_it = |file: &&CachedFile| file.path.as_deref() == path.to_str();
            Some(last?.files.iter().find(is_it)?.bytes)
        };
        let (used, idle) = (of("used"), of("idle"));
        is_half_used(used.as_ref()) && is_idle(idle.as_ref())
    });
    let report = report("machine", &path);
    let files = report["page_cache"]["files"].as_array().expect("files");
    let bytes_of = |name: &str| -> CachedBytes {
        let path = directory.path().join(name);
        let is_it = |file: &&serde_json::Value| file["path"] == path.to_string_lossy().as_ref();
        let file = files.iter().find(is_it).expect("one of the largest files");
        serde_json::from_value(file["bytes"].clone()).expect("as documented")
    };
    let (used, idle) = (bytes_of("used"), bytes_of("idle"));
    // The comparison is with the kernel's own count, as other monitors (a service's DAMON) may reclaim idle pages. Some
    // ten pages for each processor are moving between the kernel's lists.
    for (name, reported) in [("used", used.total()), ("idle", idle.total())] {
        let now = cached(&directory.path().join(name));
        assert!(reported <= 64 * MIB, "{name}: {reported}");
        assert!(reported + MIB / 2 >= now, "{name}: {reported} of {now}");
    }
    assert!(is_half_used(Some(&used)), "{used:?}");
    assert!(is_idle(Some(&idle)), "{idle:?}");
    let known_age = report["known_age"].as_f64().expect("a share");
    assert!(known_age > 0.5, "{known_age}");
    let text = run(isotherm(["report", "machine"]).arg(&path)).success();
    text.prints("files that no process maps");
}

/// Returns schemes for idle memory of the test's group, and not for others' pages.
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

/// Returns the bytes of a file that are in memory, by the kernel.
fn cached(path: &Path) -> u64 {
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

/// Idle clean pages of files are dropped, those in use stay, and the report equals the kernel's count.
#[test]
fn idle_pages_of_files_are_dropped() {
    let Some(_turn) = alone() else { return };
    let Some(group) = memory_group("page-cache") else {
        return;
    };
    let directory = on_disk();
    let mut reader = group.shell("exec \"$@\"");
    reader.arg(python_path()).args(["-c", READER]);
    let _reader = Running::ready(reader.arg(directory.path()));
    let config = directory.path().join("schemes.yaml");
    std::fs::write(&config, schemes(&format!("/{}", group.name()))).expect("a file");
    let mut command = isotherm(["run", "--json", "--all", "--no-guard"]);
    command.args(["--cpu-budget", "100%", "-c"]);
    let runner = Running::start(command.arg(&config));
    let cached = |name: &str| cached(&directory.path().join(name)) / MIB;
    until_so("what is idle to be dropped", || {
        cached("idle") <= 2 && cached("used") <= 34
    });
    // Pages in use would become old enough, too, if their accesses were not seen.
    pause(6.0);
    let summary = runner.interrupt().json();
    let applied = summary["schemes"][0]["sz_applied"].as_u64().expect("bytes");
    let (used, idle) = (cached("used"), cached("idle"));
    assert!(idle <= 2, "{idle} MiB of what is idle: {summary}");
    assert!((31..=34).contains(&used), "{used} MiB: {summary}");
    let out = (128 - used - idle) * MIB;
    let differ = applied.abs_diff(out);
    assert!(differ <= 4 * MIB, "{applied} of {out}: {summary}");
}
