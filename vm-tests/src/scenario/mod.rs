//! Scenarios: checks of the product on a kernel. Each file here has one or a few of them; `list.rs` lists all, with
//! their tests.

/// Ends the calling function with [`VmError::Wrong`] and the message unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        let holds: bool = $holds;
        if !holds {
            return Err($crate::VmError::Wrong(format!($($message)+)));
        }
    };
}

mod act;
mod act_psi;
mod act_tier;
mod acting;
mod boot;
mod compact;
mod damon;
mod doctor;
mod list;
mod page_cache;
mod record;
mod size;
mod stacks;
mod tiering;
mod workload;

use damon::{
    kernel_damon, kernel_damon_actions, kernel_damon_daemon, kernel_damon_damo,
    kernel_damon_killed, kernel_damon_quotas, kernel_damon_truth,
};

use std::fmt;

use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::qemu;

/// A named check that boots one kernel (or the same one several times).
pub struct VmScenario {
    pub name: String,
    pub about: &'static str,
    checks: fn(Kernel, &mut Report) -> Result<()>,
    pub tests: Vec<Test>,
}

impl VmScenario {
    /// Runs the scenario. If the guest's answer is wrong, the error has the measurements up to it.
    pub fn run(&self, kernel: Kernel) -> Result<Report> {
        let mut report = Report::default();
        match (self.checks)(kernel, &mut report) {
            Ok(()) => Ok(report),
            Err(VmError::Wrong(why)) => Err(VmError::Wrong(format!("{why}\n{report}"))),
            Err(error) => Err(error),
        }
    }
}

/// A scenario on a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    pub kernel: Kernel,
    /// Whether only `make test-long` runs it.
    pub is_long: bool,
}

/// The measurements of a scenario, as lines of text.
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

macro_rules! listed {
    ($($scenario:ident = $module:ident::$run:ident [$($kernel:ident $(($why:literal))?),*]: $about:literal)*) => {
        vec![$(VmScenario {
            name: stringify!($scenario).replace('_', "-"),
            about: $about,
            checks: $module::$run,
            tests: vec![$(Test {
                kernel: Kernel::of_test(stringify!($kernel)),
                is_long: !concat!("", $($why)?).is_empty(),
            }),*],
        }),*]
    };
}

/// Returns every scenario, quick ones first.
pub fn all() -> Vec<VmScenario> {
    crate::scenario_tests!(listed)
}

/// Tries of a scenario, since monitors sample at random.
const TRIES: usize = 2;

/// Runs a scenario on a kernel, as the test function `SCENARIO::on_SERIES` does. Prints its report (or `SKIP` with the
/// reason) and the time it took. Panics if the scenario fails each time it is tried. Every failure is printed.
pub fn test(scenario: &str, on: &str) {
    let path = &format!("{scenario}::{on}");
    let (name, kernel) = (scenario.replace('_', "-"), Kernel::of_test(on));
    let found = all().into_iter().find(|scenario| scenario.name == name);
    let scenario = found.expect("the tests are made of the same list");
    qemu::take_spent();
    let result = try_again(path, || scenario.run(kernel));
    let spent = qemu::take_spent();
    // The test runner collects lines with `AGAIN` and `TOOK`.
    eprintln!(
        "TOOK {path}: {:.1} s, cpu {:.1} s",
        spent.wall.as_secs_f64(),
        spent.cpu.as_secs_f64()
    );
    match result {
        Ok(report) => eprintln!("{path}\n{report}"),
        Err(e @ VmError::Unavailable { .. }) => eprintln!("SKIP {path}: {e}"),
        Err(e) => panic!("{path}: {e}"),
    }
}

/// Runs a scenario at most [`TRIES`] times. Returns the first success or the last failure.
fn try_again(path: &str, run: impl Fn() -> Result<Report>) -> Result<Report> {
    for tried in 1..TRIES {
        match run() {
            Err(e) if !matches!(e, VmError::Unavailable { .. }) => {
                eprintln!("AGAIN {path}: failed, try {tried} of {TRIES}: {e}");
            }
            result => return result,
        }
    }
    run()
}
