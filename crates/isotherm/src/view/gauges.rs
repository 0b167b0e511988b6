//! Bytes in use and idle, their trend, and the cost of monitoring.

use ratatui::text::{Line, Span};

use super::field::IDLE;
use super::state::{State, Sums, Target};
use super::style::{bold, dim, heat};
use super::text::{flow, trend};
use isotherm_engine::units::{format_bytes, format_share, format_time};

/// With at least this number of lines, a bar of shares and the trend are among them.
const WITH_BARS: usize = 4;
/// Greatest width of the text beside the trend's bars.
const BESIDE_TREND: usize = 30;

/// Returns at most `nr_lines` lines about a target.
pub(super) fn lines(
    state: &State,
    target: &Target,
    width: usize,
    nr_lines: usize,
) -> Vec<Line<'static>> {
    let mut parts = memory(state, target);
    parts.extend(cost(state));
    if nr_lines < WITH_BARS {
        return flow(parts, width, nr_lines);
    }
    let mut lines = vec![bar(state, target.sums, width)];
    lines.extend(flow(parts, width, nr_lines - 2));
    let sets = &target.working_sets;
    let most = sets.iter().copied().max().unwrap_or(0);
    lines.push(Line::from(vec![
        Span::raw("working set  "),
        Span::raw(trend(sets, width.saturating_sub(BESIDE_TREND))),
        Span::styled(format!("  up to {}", format_bytes(most)), dim()),
    ]));
    lines
}

/// Draws the shares of memory by access, over the whole width.
fn bar(state: &State, sums: Sums, width: usize) -> Line<'static> {
    let (mut bytes, mut drawn) = (0u64, 0);
    let mut bar = Vec::new();
    for (rate, _, part) in kinds(sums) {
        bytes = bytes.saturating_add(part);
        let share = bytes as f64 / sums.totals.resident.max(1) as f64;
        let until = ((share * width as f64).round() as usize).min(width);
        bar.extend(std::iter::repeat_n(
            heat(state.palette, rate),
            until - drawn,
        ));
        drawn = until;
    }
    Line::from(bar)
}

/// Returns the numbers of the bar with their names; the least important comes last.
fn memory(state: &State, target: &Target) -> Vec<Line<'static>> {
    let sums = target.sums;
    let kind = |(rate, name, bytes): (Option<f32>, String, u64)| {
        Line::from(vec![
            heat(state.palette, rate),
            Span::raw(format!(" {name} ")),
            Span::styled(format_bytes(bytes), bold()),
        ])
    };
    let mut parts: Vec<Line<'static>> = kinds(sums).map(kind).into();
    if let Some(resident) = target.resident().filter(|bytes| *bytes > 0) {
        let share = format_share(sums.totals.touched as f64 / resident as f64);
        let resident = format_bytes(resident);
        parts.push(Line::raw(format!(
            "working set is {share} of {resident} resident"
        )));
    }
    if let Some(swapped) = target.swapped().filter(|bytes| *bytes > 0) {
        parts.push(Line::raw(format!("swapped out {}", format_bytes(swapped))));
    }
    if !sums.totals.is_exact {
        let addresses = format_bytes(sums.totals.addresses);
        parts.push(Line::raw(format!("watched {addresses}")));
    }
    parts
}

fn kinds(sums: Sums) -> [(Option<f32>, String, u64); 4] {
    let idle = format!("idle {}", format_time(IDLE));
    [
        (Some(0.8), "working set".to_owned(), sums.totals.touched),
        (Some(0.1), "cooling".to_owned(), sums.cooling()),
        (Some(0.0), idle, sums.idle),
        (None, "unknown".to_owned(), sums.totals.unknown),
    ]
}

pub(super) fn cost(state: &State) -> Vec<Line<'static>> {
    let (Some(cost), Some((own, induced))) = (&state.cost, state.cpu_percent) else {
        return vec![Line::raw("measuring the cost ...")];
    };
    let parts = [
        format!("{own:.2} % of a CPU"),
        format!("{induced:.2} % induced"),
        format!("{:.0} clears/s", state.clears_per_second),
        format!("{:.0} checks/s", state.checks_per_second),
        format!("{} sampling", format_time(cost.sample_interval)),
        format!("{} aggregation", format_time(cost.aggregation_interval)),
        format!("isotherm's memory {}", format_bytes(cost.monitor_rss)),
    ];
    parts.map(Line::raw).into()
}
