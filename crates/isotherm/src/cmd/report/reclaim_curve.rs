//! `isotherm reclaim-curve`: the savings and the cost of reclaiming memory after any idle time.

use std::process::ExitCode;

use isotherm_engine::Nanos;
use isotherm_engine::units::{parse_share, parse_time};
use isotherm_report::{ReclaimCurve, ReclaimCurveOptions};

use super::CommonArgs;

/// Show what reclaiming memory after any time of idleness would have saved and cost, exactly, from one
/// page-granular record.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  isotherm record --pages --duration 2m -o redis.isotherm --pid 1234
  isotherm reclaim-curve redis.isotherm
  isotherm reclaim-curve redis.isotherm --max-slowdown 1%
  isotherm reclaim-curve redis.isotherm -o curve.html")]
pub(crate) struct ReclaimCurveArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Choose the shortest idle time that slows the program by no more than this, e.g. 1% [default: none].
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    max_slowdown: Option<f64>,
    /// Charge the program this time for each page that is read back: about 7 us from zram, 100 us from a disk
    /// [default: what was measured with the record, else 7us]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    refault_cost: Option<Nanos>,
}

pub(crate) fn run(args: &ReclaimCurveArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let options = ReclaimCurveOptions {
        refault_cost: args.refault_cost,
        max_slowdown: args.max_slowdown,
    };
    common.write_curve(|header| ReclaimCurve::new(header, common.scope(), options))
}
