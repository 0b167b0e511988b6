//! The book's tutorial and how-tos: runs their commands as they are, one after the other in one shell, with the
//! programs that they use. Each must succeed; the chapter shows its output at the time of writing.

#[path = "../../examples/extract.rs"]
#[expect(dead_code, reason = "help texts are looked at elsewhere")]
mod extract;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{isotherm, run, scratch, skip, without_swap};

/// A time limit longer than any chapter.
const SECONDS_MAX: &str = "420";

/// Commands that may fail, by their exit code, on a machine without their requirements.
const MAY_SAY_NO: &[&str] = &[
    // These need a second node.
    "isotherm tier plan -m 0 1 -g -o tier.yaml",
    "isotherm check tier.yaml",
    "isotherm run -c tier.yaml --dry-run",
];

/// Ends processes that the chapter started and has not ended itself.
const PRELUDE: &str = "\
end() {
    kill $(jobs -p) || true
    [ ! -e pg/data/postmaster.pid ] || kill -INT \"$(head -1 pg/data/postmaster.pid)\" || true
    wait
} 2> /dev/null
trap end EXIT
set -x
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Removes a chapter's swap if the chapter has not done so.
struct SwapOff;

impl Drop for SwapOff {
    fn drop(&mut self) {
        if Path::new("/run/isotherm/zram-swap").exists() {
            run(&mut isotherm(["swap", "off"]));
        }
    }
}

/// Returns the folders of programs: the usual ones, that of the `isotherm` under test, and PostgreSQL's.
fn search_path() -> String {
    let ours = Path::new(env!("CARGO_BIN_EXE_isotherm")).parent();
    let mut folders = vec![ours.expect("a folder").display().to_string()];
    folders.extend(std::env::var("PATH"));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let bins = versions.flatten().map(|version| version.path().join("bin"));
    folders.extend(bins.map(|bin| bin.display().to_string()));
    folders.join(":")
}

fn has(program: &str, path: &str) -> bool {
    let mut folders = path.split(':');
    folders.any(|folder| Path::new(folder).join(program).exists())
}

/// Runs the commands of `chapter`.
fn follow(chapter: &str, needs: &[&str]) {
    let Some(_turn) = without_swap() else { return };
    let path = search_path();
    if let Some(program) = needs.iter().find(|program| !has(program, &path)) {
        return skip(&format!("there is no {program}"));
    }
    let folder = scratch();
    // PostgreSQL runs as another user.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    for name in ["docs", "experiments"] {
        symlink(root().join(name), folder.path().join(name)).expect("a link");
    }
    let text = fs::read_to_string(root().join("docs").join(chapter)).expect("a chapter");
    let lines = extract::of_document(chapter, &text);
    assert!(lines.len() > 5, "too few commands in {chapter}");
    let mut script = PRELUDE.to_owned();
    for line in lines {
        let may_say_no = MAY_SAY_NO.contains(&line.text.as_str());
        let end = if may_say_no { " || test $? -le 2" } else { "" };
        script.extend([line.text.as_str(), end, "\n"]);
    }
    let _swap = SwapOff;
    let mut command = Command::new("timeout");
    command.args(["--kill-after=20", SECONDS_MAX, "bash", "-euo", "pipefail"]);
    command.args(["-c", &script]).stdin(Stdio::null());
    command.current_dir(folder.path()).env("PATH", path);
    let output = command.output().expect("bash");
    let (status, reported) = (output.status, String::from_utf8_lossy(&output.stderr));
    assert!(status.success(), "{chapter}: {status}: {reported}");
}

#[test]
#[ignore = "long: records and acts for two minutes"]
fn the_tutorial_can_be_followed() {
    follow("getting-started/tutorial.md", &[]);
}

#[test]
#[ignore = "long: records and acts for a minute and a half"]
fn the_how_to_for_redis_can_be_followed() {
    let needs = &["redis-server", "redis-cli", "redis-benchmark"];
    follow("how-to/redis.md", needs);
}

#[test]
#[ignore = "long: records and acts for two and a half minutes"]
fn the_how_to_for_postgresql_can_be_followed() {
    let needs = &["initdb", "pg_ctl", "pgbench", "psql", "runuser"];
    follow("how-to/postgresql.md", needs);
}

#[test]
#[ignore = "long: records and acts for two minutes"]
fn the_how_to_for_a_jvm_can_be_followed() {
    let needs = &["javac", "java", "jcmd"];
    follow("how-to/jvm.md", needs);
}

#[test]
#[ignore = "long: records for half a minute"]
fn the_how_to_for_cxl_memory_can_be_followed() {
    follow("how-to/cxl.md", &[]);
}
