//! What is checked on which kernel. Each scenario is a file here; [`all`] is the list.

mod act;
mod act_psi;
mod act_tier;
mod acting;
mod boot;
mod compact;
mod doctor;
mod kernel_damon;
mod kernel_damon_actions;
mod kernel_damon_daemon;
mod kernel_damon_damo;
mod kernel_damon_killed;
mod kernel_damon_quotas;
mod kernel_damon_truth;
mod page_cache;
mod record;
mod side_by_side;
mod stacks;
mod tiering;
mod workload;

use std::fmt;

use crate::error::VmError;
use crate::kernel::Kernel;

/// A named check that boots one kernel (or the same one several times).
pub struct Scenario {
    /// What to call it on the command line.
    pub name: &'static str,
    /// What it shows, in a line.
    pub about: &'static str,
    /// The kernels it makes sense on.
    pub kernels: &'static [Kernel],
    /// Whether it is too long for every test run.
    pub long: bool,
    /// Runs it; wrong answers are [`VmError::Wrong`].
    pub run: fn(Kernel) -> Result<Report, VmError>,
}

/// What a scenario measured, for people to read.
#[derive(Clone, Debug, Default)]
pub struct Report {
    lines: Vec<String>,
}

impl Report {
    /// Adds a line.
    pub fn say(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines
            .iter()
            .try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// Every scenario, quick ones first.
pub fn all() -> Vec<Scenario> {
    vec![
        record::first(),
        boot::kernel(),
        boot::five_levels(),
        boot::two_nodes(),
        doctor::scenario(),
        compact::scenario(),
        record::scattered(),
        record::five_levels(),
        record::node(),
        page_cache::scenario(),
        stacks::scenario(),
        side_by_side::scenario(),
        kernel_damon::records(),
        kernel_damon::acts(),
        kernel_damon_daemon::scenario(),
        kernel_damon_daemon::compares(),
        kernel_damon_actions::migrate(),
        kernel_damon_actions::lru(),
        kernel_damon_actions::huge(),
        kernel_damon_quotas::quotas(),
        kernel_damon_quotas::goals(),
        kernel_damon_killed::scenario(),
        kernel_damon_damo::scenario(),
        act::swap_full(),
        act_tier::physical(),
        act_psi::scenario(),
        act::scenario(),
        act_tier::migrate(),
        record::stairs(),
        kernel_damon_truth::scenario(),
        tiering::scenario(),
    ]
}

/// How often a scenario is tried: an emulated machine has no pace that could be known where its host
/// has other things to do, and what is measured in it is worth no more than that.
const TRIES: usize = 3;

/// What a test function does: runs the scenario called `name` on `kernel`, prints its report (or
/// `SKIP` with the reason), and panics if it fails each time it is tried. Every failure is printed.
pub fn test(name: &str, kernel: Kernel) {
    let scenario = all()
        .into_iter()
        .find(|s| s.name == name)
        .unwrap_or_else(|| panic!("no scenario is called `{name}`"));
    let title = format!("{name} on {}", kernel.series());
    for tried in 1..=TRIES {
        match (scenario.run)(kernel) {
            Ok(report) => return eprintln!("{title}\n{report}"),
            Err(e @ VmError::Unavailable { .. }) => return eprintln!("SKIP {title}: {e}"),
            Err(e) if tried == TRIES => panic!("{title}: {e}"),
            // `AGAIN` is what the test runner counts and lists.
            Err(e) => eprintln!("AGAIN {title}: failed, try {tried} of {TRIES}: {e}"),
        }
    }
}

/// `Ok` if `holds`, else what was wrong.
pub(crate) fn ensure(holds: bool, wrong: impl FnOnce() -> String) -> Result<(), VmError> {
    if holds {
        Ok(())
    } else {
        Err(VmError::Wrong(wrong()))
    }
}
