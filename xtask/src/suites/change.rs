//! Selects long tests for CI: one part by the commit's hash, others by the files that a change touches.
//!
//! Besides its usual tests, CI runs the long tests that a change makes doubtful ([`RULES`]). It also runs one eighth of
//! all long tests, chosen by the commit's hash. So all of them run every few landings.
//!
//! The change is all since `$ISOTHERM_CI_BASE`. Without that, before a commit, it is all that has not been pushed. In
//! CI it is all since the newest first parent that is at least four hours older than the head: a change lands within
//! three hours of its first commit. A base that is too old runs more tests than needed, never fewer. Uncommitted
//! changes count, too.

use std::path::Path;
use std::process::Command;

pub(super) const PARTS: u8 = 8;
const BASE: &str = "ISOTHERM_CI_BASE";
const OLDER_BY_S: i64 = 4 * 3600;

/// The rules, for tests that do not run otherwise: `make test` leaves out suites that are scripts and most tests on
/// this kernel, CI leaves out long tests. A rule is a line of a suite, or `SUITE FILTER` (tests of that suite whose
/// names hold the filter, long ones as well), and, behind ` = `, of the paths from the root that make these tests
/// doubtful: `*name` matches the end of a path, any other text the beginning.
const RULES: &str = "
    vm kernel_damon = crates/damon/src/ crates/session/src/kernel/ crates/session/src/acting/kernel \
        crates/linux/src/damon_trace.rs
    features = *Cargo.toml Cargo.lock
    book = docs/SUMMARY.md scripts/book xtask/src/book
    interop = crates/record/ crates/config/ tests/interop/ tests/venv.sh
    python = python/ tests/python/ tests/venv.sh
    observe = crates/isotherm/src/daemon contrib/ tests/observe/
    blame = crates/linux/src/faults/ crates/linux/src/areas.rs crates/session/src/stacks/ crates/report/src/blame \
        tests/blame/
    page = crates/view/ crates/what-if/ tests/page/
    kernel acting:: = crates/linux/src/act/ crates/policy/src/guard crates/policy/src/apply/ \
        crates/engine/src/refault_rate.rs crates/session/src/acting/
    kernel compaction:: = crates/linux/src/compaction/ crates/linux/src/sys/node.rs \
        crates/policy/src/compaction.rs crates/session/src/compaction/
    kernel daemon:: = crates/isotherm/src/daemon crates/session/src/protocol
    kernel parking:: = crates/park/
    kernel size:: = crates/size/ crates/isotherm/src/cmd/report/size.rs crates/session/src/monitor/once.rs
    kernel page_cache:: = crates/linux/src/cache/ crates/engine/src/monitor/page_cache/
    kernel physical:: = crates/engine/src/monitor/frames crates/session/src/monitor/machine.rs
    kernel stacks:: = crates/linux/src/faults/ crates/linux/src/areas.rs crates/session/src/stacks/
";

/// Returns the rules: the suite, or suite and filter, and the paths.
pub(super) fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rules = RULES.trim().lines();
    rules.map(|rule| rule.trim().split_once(" = ").expect("a suite and paths"))
}

fn are_about(paths: &str, path: &str) -> bool {
    paths.split(' ').any(|rule| match rule.strip_prefix('*') {
        Some(end) => path.ends_with(end),
        None => path.starts_with(rule),
    })
}

pub(super) struct Change {
    /// The part of the long tests that runs.
    pub(super) part: u8,
    /// The head's hash, for people.
    pub(super) head: String,
    /// The suite, or suite and filter, of each rule that the change matches.
    pub(super) runs: Vec<&'static str>,
    pub(super) nr_files: usize,
    pub(super) base: String,
}

impl Change {
    /// Reads the change from git. Outside of a checkout the first part is due, and no file counts as touched.
    pub(super) fn of(root: &Path, is_ci: bool) -> Self {
        let head = git(root, &["rev-parse", "HEAD"]).unwrap_or_else(|| "0".to_owned());
        let pushed = || git(root, &["merge-base", "HEAD", "@{upstream}"]);
        let guess = || if is_ci { base(root) } else { pushed() };
        let base = std::env::var(BASE).ok().or_else(guess);
        let base = base.unwrap_or_else(|| head.clone());
        let files = git(root, &["diff", "--name-only", &base]).unwrap_or_default();
        let touched: Vec<&str> = files.lines().collect();
        let rules = rules().filter(|(_, paths)| touched.iter().any(|path| are_about(paths, path)));
        Self {
            part: part_of_hash(&head),
            runs: rules.map(|(runs, _)| runs).collect(),
            nr_files: touched.len(),
            head,
            base,
        }
    }

    /// Returns the filters by which the change selects tests of a suite.
    pub(super) fn touched(&self, suite: &str) -> Vec<&'static str> {
        let runs = self.runs.iter().filter_map(|runs| runs.split_once(' '));
        runs.filter(|(of, _)| *of == suite)
            .map(|(_, filter)| filter)
            .collect()
    }

    /// Returns whether a long test of this name belongs to the part that is due.
    pub(super) fn is_due(&self, name: &str) -> bool {
        part_of_name(name) == self.part
    }
}

/// Returns the newest first parent that is old enough; the root commit if none is.
fn base(root: &Path) -> Option<String> {
    let log = git(root, &["log", "--first-parent", "--format=%H %ct"])?;
    let commits: Vec<(&str, i64)> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(hash, time)| Some((hash, time.parse().ok()?)))
        .collect();
    let (_, newest) = *commits.first()?;
    let old = commits.iter().find(|(_, time)| newest - time >= OLDER_BY_S);
    Some(old.or(commits.last())?.0.to_owned())
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .current_dir(root)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn part_of_hash(hash: &str) -> u8 {
    let start = hash.get(..8).unwrap_or(hash);
    (u32::from_str_radix(start, 16).unwrap_or(0) % u32::from(PARTS)) as u8
}

/// Returns the part of a name by FNV-1a, 32 bits: the same on every machine.
fn part_of_name(name: &str) -> u8 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    // The low bits of FNV are its weakest.
    ((hash >> 16) % u32::from(PARTS)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_long_tests_and_commits() {
        let parts: std::collections::BTreeSet<u8> = (0..64)
            .map(|i| part_of_name(&format!("kernel_damon_{i}_on_6_12")))
            .collect();
        assert_eq!(parts.len(), usize::from(PARTS));
        let hashes = (0..PARTS).map(|i| part_of_hash(&format!("d49b632{i}ffff")));
        assert_eq!(hashes.collect::<Vec<_>>(), (0..PARTS).collect::<Vec<_>>());
    }

    #[test]
    fn a_change_below_damon_runs_all_of_its_scenarios() {
        let runs = |path: &str| {
            let rules = rules().filter(|(_, paths)| are_about(paths, path));
            rules.map(|(runs, _)| runs).collect::<Vec<_>>()
        };
        assert_eq!(runs("crates/damon/src/sysfs.rs"), ["vm kernel_damon"]);
        assert_eq!(runs("crates/view/Cargo.toml"), ["features", "page"]);
        assert_eq!(runs("crates/policy/src/guard.rs"), ["kernel acting::"]);
        assert_eq!(runs("crates/engine/src/units.rs"), [""; 0]);
    }

    #[test]
    fn the_rules_name_files_that_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let paths = rules().flat_map(|(_, paths)| paths.split(' '));
        for path in paths.filter(|path| !path.starts_with('*')) {
            let (folder, start) = path.rsplit_once('/').unwrap_or(("", path));
            let entries = std::fs::read_dir(root.join(folder)).expect(path);
            let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            assert!(names.any(|name| name.starts_with(start)), "{path}");
        }
    }
}
