//! `isotherm report temperature`.

use std::process::ExitCode;

use isotherm_engine::Nanos;
use isotherm_engine::units::parse_time;
use isotherm_report::temperature::{TemperatureByTarget, TemperatureOptions};

use super::CommonArgs;

/// Show memory by temperature, one number of access rate and age, as `damo report access --style temperature-sz-hist`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: count a second of age like ten percent of access rate\n  isotherm report temperature --age-weight 10"
)]
pub(super) struct TemperatureArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Count at this time since the beginning [default: the end].
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at: Option<Nanos>,
    /// Add this for each percent of access rate.
    #[arg(long, value_name = "POINTS", value_parser = weight, default_value = "1")]
    rate_weight: f64,
    /// Add this for each second of age; of idle memory, subtract it.
    #[arg(long, value_name = "POINTS", value_parser = weight, default_value = "1")]
    age_weight: f64,
}

fn weight(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let weight = number.filter(|weight| weight.is_finite() && *weight >= 0.0);
    weight.ok_or_else(|| format!("{text:?} is not a number of 0 or more"))
}

pub(super) fn run(args: &TemperatureArgs) -> anyhow::Result<ExitCode> {
    let common = &args.common;
    let options = TemperatureOptions {
        at: args.at,
        rate_weight: args.rate_weight,
        age_weight: args.age_weight,
    };
    let make = |header: &_| TemperatureByTarget::new(header, common.scope(), options);
    common.write_report(common.open()?, (args.at, false), make)
}
