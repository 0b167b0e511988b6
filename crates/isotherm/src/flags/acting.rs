//! Schemes, and the guard that bounds what targets lose by them.

use std::path::PathBuf;

use anyhow::ensure;
use isotherm_config::{ActingRequest, MemoryGoal};
use isotherm_engine::Nanos;
use isotherm_engine::units::{parse_bytes, parse_share, parse_time, parse_time_span};
use isotherm_policy::guard::GuardLimits;

/// Options of schemes.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Schemes")]
pub(crate) struct SchemeArgs {
    /// Read schemes, limits and targets from this configuration: damo's or HMSDK's kdamonds (JSON or YAML), memtierd's
    /// policy, or a .damos file of one-line schemes
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Apply this scheme: least and most size, access frequency and age (time since the frequency changed), and the
    /// action, e.g. '4K max 0 0 5s max pageout'
    #[arg(long, value_name = "LINE")]
    pub(crate) scheme: Vec<String>,

    /// Page out memory idle for at least this time: short for --scheme '4K max 0 0 TIME max pageout'
    #[arg(long, value_name = "TIME", value_parser = parse_time_span)]
    pub(crate) idle: Option<Nanos>,

    /// Apply the schemes of this name: ethp, prcl, pprcl, damon_reclaim, lru_sort
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Vec<String>,

    /// Let huge pages that schemes make waste at most this share of the targets' memory: what the program has not
    /// written. The blocks that save most translations for it come first [default: 10%; any with --no-guard]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub(crate) max_waste: Option<f64>,

    /// Page out until this much of the targets is out of memory, e.g. 4G, and again after refaults [default: all that
    /// schemes are about]
    #[arg(long, value_name = "SIZE", value_parser = parse_goal_bytes, conflicts_with = "keep_free")]
    pub(crate) save: Option<u64>,

    /// Page out only while less than this share is free, e.g. 15%: of the machine, of the --node, or of the --cgroup's
    /// limit [default: always]
    #[arg(long, value_name = "SHARE", value_parser = parse_goal_share)]
    pub(crate) keep_free: Option<f64>,

    /// Act on nothing; say and record what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Limits of the slowdown of targets.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Guard")]
pub(crate) struct GuardArgs {
    /// Let targets lose at most this share of their time, in any period of this length. A target that has run for one
    /// may lose at once what the period allows, up to five times the share in a second; for huge pages that pay back, 20
    /// times [default: 1% over 10m]
    #[arg(long, value_name = "SHARE[ over TIME]", value_parser = parse_slowdown, conflicts_with = "no_guard")]
    pub(crate) max_slowdown: Option<(f64, Option<Nanos>)>,

    /// Let targets have at most this many refaults (major faults) a second, e.g. 100 or 100/s [default: any]
    #[arg(long, value_name = "N/s", value_parser = parse_rate, conflicts_with = "no_guard")]
    pub(crate) max_refaults: Option<f64>,

    /// Let some task wait for memory for at most this share of the time (PSI) [default: any]
    #[arg(long, value_name = "SHARE", value_parser = parse_share, conflicts_with = "no_guard")]
    pub(crate) max_psi: Option<f64>,

    /// Let each target wait for memory for at most this time within a second, e.g. 50ms [default: any]
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "no_guard")]
    pub(crate) max_refault_wait: Option<Nanos>,

    /// Spend at most this share of one CPU on acting where no CPU is idle [default: 5%; any with --no-guard]
    #[arg(long, value_name = "SHARE", value_parser = parse_budget)]
    pub(crate) act_budget: Option<f64>,

    /// Measure the targets' speed by this command, which prints how far they have got: a number that counts up. It
    /// is then part of the slowdown
    #[arg(long, value_name = "COMMAND", conflicts_with = "no_guard")]
    pub(crate) progress_cmd: Option<String>,

    /// Act whatever it costs the targets
    #[arg(long)]
    pub(crate) no_guard: bool,
}

fn parse_slowdown(text: &str) -> anyhow::Result<(f64, Option<Nanos>)> {
    let Some((share, over)) = text.split_once(" over ") else {
        return Ok((parse_share(text)?, None));
    };
    let over = parse_time_span(over.trim())?;
    ensure!(over.0 > 0, "'{text}': a period of no time allows no loss");
    Ok((parse_share(share.trim())?, Some(over)))
}

fn parse_budget(text: &str) -> anyhow::Result<f64> {
    let share = parse_share(text)?;
    ensure!(
        share > 0.0,
        "'{text}' is nothing; schemes could not act at all"
    );
    Ok(share)
}

fn parse_goal_bytes(text: &str) -> anyhow::Result<u64> {
    let bytes = parse_bytes(text)?;
    ensure!(
        bytes > 0,
        "'{text}' is nothing to save; name a size, e.g. 4G"
    );
    Ok(bytes)
}

fn parse_goal_share(text: &str) -> anyhow::Result<f64> {
    let share = parse_share(text)?;
    ensure!(
        share > 0.0 && share < 1.0,
        "'{text}' cannot be kept free; name a share between 0 and 100 %, e.g. 15%"
    );
    Ok(share)
}

fn parse_rate(text: &str) -> anyhow::Result<f64> {
    let number = text.strip_suffix("/s").unwrap_or(text).replace(',', "");
    let rate: f64 = number
        .trim()
        .parse()
        .map_err(|_| anyhow::anyhow!("'{text}' is not a number per second, e.g. 100/s"))?;
    ensure!(
        rate.is_finite() && rate > 0.0,
        "'{text}' is not above zero; nothing could be acted on"
    );
    Ok(rate)
}

pub(crate) fn acting(schemes: &SchemeArgs, guard: &GuardArgs) -> ActingRequest {
    let page_out = |Nanos(ns)| format!("4K max 0 0 {ns}ns max pageout");
    let lines = schemes.scheme.iter().cloned();
    ActingRequest {
        scheme_lines: lines.chain(schemes.idle.map(page_out)).collect(),
        presets: schemes.preset.clone(),
        is_dry_run: schemes.dry_run,
        no_guard: guard.no_guard,
        limits: GuardLimits {
            max_slowdown: guard.max_slowdown.map(|(share, _)| share),
            slowdown_over: guard.max_slowdown.and_then(|(_, over)| over),
            max_refaults_per_s: guard.max_refaults,
            max_psi: guard.max_psi,
            max_refault_wait: guard.max_refault_wait,
        },
        act_budget: guard.act_budget,
        max_waste: schemes.max_waste,
        progress_command: guard.progress_cmd.clone(),
        goal: (schemes.save.map(MemoryGoal::Save)).or(schemes.keep_free.map(MemoryGoal::KeepFree)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_memory_is_paged_out_as_by_its_scheme() {
        let schemes = SchemeArgs {
            idle: Some(Nanos::from_millis(120_000)),
            ..SchemeArgs::default()
        };
        let request = acting(&schemes, &GuardArgs::default());
        let wanted = isotherm_config::scheme_line("4K max 0 0 2min max pageout");
        let (schemes, _) = request.schemes().expect("a scheme");
        assert_eq!(schemes, [wanted.expect("a scheme")]);
    }

    #[test]
    fn a_slowdown_may_have_a_period() {
        let ten_minutes = Some(Nanos::from_millis(600_000));
        assert_eq!(parse_slowdown("1%").ok(), Some((0.01, None)));
        let slowdown = parse_slowdown("2% over 10m").ok();
        assert_eq!(slowdown, Some((0.02, ten_minutes)));
        for bad in [
            "over 10m",
            "1% over",
            "1% over 0s",
            "1% over x",
            "1% in 10m",
        ] {
            assert!(parse_slowdown(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rates_are_read_with_and_without_their_unit() {
        assert_eq!(parse_rate("100/s").ok(), Some(100.0));
        assert_eq!(parse_rate("1,000").ok(), Some(1000.0));
        for bad in ["", "0", "-1/s", "many", "nan"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        assert!(parse_budget("0%").is_err() && parse_budget("5%").is_ok());
    }
}
