//! `vm-tests`: runs scenarios from the command line, with their reports.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use isotherm_vm_tests::scenario::{self, Test, VmScenario};
use isotherm_vm_tests::{Kernel, VmError};

/// Boot Debian kernels in QEMU and run the product inside.
#[derive(Parser)]
#[command(
    name = "vm-tests",
    after_help = "Examples:\n  cargo run --bin vm-tests -- --list\n  \
                  cargo run --bin vm-tests -- boot --kernel 6.1"
)]
struct Args {
    /// Run these scenarios; all but the long ones if none is named.
    names: Vec<String>,
    /// List the scenarios with their kernels and exit; a star marks a long one.
    #[arg(long)]
    list: bool,
    /// Run on this kernel only: 6.1, 6.12, 6.1-arm64, 6.12-arm64 or newest (Debian's, of unstable or experimental).
    #[arg(long, value_parser = kernel)]
    kernel: Option<Kernel>,
    /// Run the long ones too.
    #[arg(long)]
    long: bool,
    /// Fetch the newest packages of the kernels first.
    #[arg(long)]
    update_kernels: bool,
}

fn kernel(series: &str) -> Result<Kernel, String> {
    Kernel::EVERY
        .into_iter()
        .find(|k| k.series() == series)
        .ok_or_else(|| "6.1, 6.12, 6.1-arm64, 6.12-arm64 and newest are known".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    let scenarios = scenario::all();
    if args.list {
        for s in &scenarios {
            let kernels: Vec<_> = s.tests.iter().copied().map(label).collect();
            println!("{:<21} {:<21} {}", s.name, kernels.join(","), s.about);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(unknown) = args
        .names
        .iter()
        .find(|n| scenarios.iter().all(|s| s.name != **n))
    {
        eprintln!("vm-tests: no scenario is called `{unknown}`; --list lists them");
        return ExitCode::from(2);
    }
    if args.update_kernels {
        let is_stable = |kernel: &Kernel| *kernel != Kernel::DebianNewest;
        for kernel in Kernel::EVERY.into_iter().filter(is_stable) {
            match kernel.fetch_newest() {
                Ok(image) => println!("{}: {}", kernel.series(), image.release),
                Err(e) => eprintln!("vm-tests: {e}"),
            }
        }
    }

    run(&args, &scenarios)
}

/// Formats the kernel of a test, with a star if the test is long.
fn label(test: Test) -> String {
    let star = if test.is_long { "*" } else { "" };
    format!("{}{star}", test.kernel.series())
}

fn run(args: &Args, scenarios: &[VmScenario]) -> ExitCode {
    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    let is_wanted = |s: &VmScenario, test: &&Test| {
        let is_named = if args.names.is_empty() {
            args.long || !test.is_long
        } else {
            args.names.contains(&s.name)
        };
        is_named && args.kernel.is_none_or(|only| only == test.kernel)
    };
    for s in scenarios {
        for test in s.tests.iter().filter(|test| is_wanted(s, test)) {
            let kernel = test.kernel;
            let title = format!("{} on {}", s.name, kernel.series());
            let started = Instant::now();
            let result = s.run(kernel);
            let seconds = started.elapsed().as_secs_f64();
            match result {
                Ok(report) => {
                    passed += 1;
                    print!("ok   {title} ({seconds:.1} s)\n{report}");
                }
                Err(e @ VmError::Unavailable { .. }) => {
                    skipped += 1;
                    println!("SKIP {title}: {e}");
                }
                Err(e) => {
                    failed += 1;
                    println!("FAIL {title} ({seconds:.1} s): {e}");
                }
            }
        }
    }
    println!("{passed} passed, {skipped} skipped, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
