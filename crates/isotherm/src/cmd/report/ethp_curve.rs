//! `isotherm ethp-curve`: the coverage and the cost of any bound on the waste of huge pages.

use std::process::ExitCode;

use isotherm_engine::Nanos;
use isotherm_engine::units::{parse_share, parse_time};
use isotherm_report::{EthpCurve, EthpCurveOptions};

use super::CommonArgs;

/// Show what huge pages would have wasted and covered under any bound, from one page-granular record of a
/// program without huge pages.
#[derive(clap::Args)]
#[command(after_help = "\
Coverage is the share of touched translations that huge pages would have covered: not time.

Examples:
  isotherm record --pages --thp never --duration 1m -o grid.isotherm -- ./solver
  isotherm ethp-curve grid.isotherm
  isotherm ethp-curve grid.isotherm --max-waste 5%
  isotherm ethp-curve grid.isotherm -o huge.html")]
pub(crate) struct EthpCurveArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Mark this bound: the most that huge pages may waste, as a share of resident memory
    #[arg(long, value_name = "SHARE", value_parser = parse_share, default_value = "10%")]
    max_waste: f64,
    /// Take the waste of a huge page back once it was idle for at least this time
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "7s")]
    idle: Nanos,
}

pub(crate) fn run(args: &EthpCurveArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let options = EthpCurveOptions {
        max_waste: args.max_waste,
        idle: args.idle,
    };
    common.write_curve(|header| EthpCurve::new(header, common.scope(), options))
}
