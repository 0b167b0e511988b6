//! What to do, and what targets may lose by it.

use std::path::PathBuf;

use anyhow::ensure;
use isotherm_config::{ActingRequest, MemoryGoal};
use isotherm_engine::Nanos;
use isotherm_engine::guard::GuardLimits;
use isotherm_engine::units::{parse_bytes, parse_share, parse_time};

/// What to do.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "What to do")]
pub(crate) struct SchemeArgs {
    /// A configuration: damo's or HMSDK's kdamonds (JSON or YAML), or a .damos file of one-line
    /// schemes
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// A scheme in a line: least and most size, access frequency and age, and the action, e.g.
    /// '4K max 0 0 5s max pageout'
    #[arg(long, value_name = "LINE")]
    pub(crate) scheme: Vec<String>,

    /// Schemes by name: ethp, prcl, pprcl, damon_reclaim, lru_sort
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Vec<String>,

    /// Share of the targets' memory that huge pages made by schemes may waste: memory that the program has
    /// not written. The blocks that save most translations for it come first [default: 10%; any with --no-guard]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub(crate) max_waste: Option<f64>,

    /// Page out until so much of the targets is out of memory, e.g. 4G, and again where some came back
    #[arg(long, value_name = "SIZE", value_parser = parse_goal_bytes, conflicts_with = "keep_free")]
    pub(crate) save: Option<u64>,

    /// Page out only while less than this share is free: of the machine, of the --node, or of the --cgroup's
    /// limit; e.g. 15%
    #[arg(long, value_name = "SHARE", value_parser = parse_goal_share)]
    pub(crate) keep_free: Option<f64>,

    /// Do nothing; say and record what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What targets may lose by being acted on.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "The guard")]
pub(crate) struct GuardArgs {
    /// Share of their time that targets may lose [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = parse_share, conflicts_with = "no_guard")]
    pub(crate) max_slowdown: Option<f64>,

    /// Refaults (major faults) per second that targets may have, e.g. 100 or 100/s
    #[arg(long, value_name = "N/s", value_parser = parse_rate, conflicts_with = "no_guard")]
    pub(crate) max_refaults: Option<f64>,

    /// Share of time in which some task may wait for memory (PSI)
    #[arg(long, value_name = "SHARE", value_parser = parse_share, conflicts_with = "no_guard")]
    pub(crate) max_psi: Option<f64>,

    /// Time that one target may wait for memory within a second, e.g. 50ms
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "no_guard")]
    pub(crate) max_refault_wait: Option<Nanos>,

    /// Share of one CPU that acting may take where no CPU is idle [default: 5%; none with --no-guard]
    #[arg(long, value_name = "SHARE", value_parser = parse_budget)]
    pub(crate) act_budget: Option<f64>,

    /// A command that prints how far the targets have got: a number that counts up. Their speed is
    /// then part of the slowdown
    #[arg(long, value_name = "COMMAND", conflicts_with = "no_guard")]
    pub(crate) progress_cmd: Option<String>,

    /// Act whatever it costs the targets
    #[arg(long)]
    pub(crate) no_guard: bool,
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

/// What the flags say.
pub(crate) fn acting(schemes: &SchemeArgs, guard: &GuardArgs) -> ActingRequest {
    ActingRequest {
        scheme_lines: schemes.scheme.clone(),
        presets: schemes.preset.clone(),
        is_dry_run: schemes.dry_run,
        no_guard: guard.no_guard,
        limits: GuardLimits {
            max_slowdown: guard.max_slowdown,
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
    fn rates_are_read_with_and_without_their_unit() {
        assert_eq!(parse_rate("100/s").ok(), Some(100.0));
        assert_eq!(parse_rate("1,000").ok(), Some(1000.0));
        for bad in ["", "0", "-1/s", "many", "nan"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        assert!(parse_budget("0%").is_err() && parse_budget("5%").is_ok());
    }
}
