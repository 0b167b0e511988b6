//! How much memory is in use and idle, how that went, and what watching costs.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline};

use super::state::{IDLE, State, Sums, Target, sums};
use super::style::{bold, dim, heat};
use isotherm_engine::units::{format_bytes, format_share, format_time};

/// Lines that the panels take with their borders.
pub(super) const HEIGHT: u16 = 6;
/// From here on the panels stand side by side.
const SIDE_BY_SIDE: u16 = 110;
/// The numbers of the four kinds of memory need this much to stand in a line.
const ONE_LINE_OF_NUMBERS: usize = 86;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, target: &Target) {
    if area.width < SIDE_BY_SIDE {
        let block = Block::bordered().title(" memory and cost ");
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let (bar, mut lines) = memory(state, target, usize::from(inner.width));
        // Resident memory is missed less than what watching costs, and the bar least of all.
        lines.insert(lines.len() - 1, Line::raw(cost(state).join(", ")));
        if usize::from(inner.height) > lines.len() - 1 {
            lines.insert(0, bar);
        }
        frame.render_widget(Paragraph::new(lines), inner);
        return;
    }
    let [left, middle, right] = Layout::horizontal([
        Constraint::Fill(5),
        Constraint::Fill(2),
        Constraint::Length(38),
    ])
    .areas(area);

    let block = Block::bordered().title(" memory ");
    let inner = block.inner(left);
    frame.render_widget(block, left);
    let (bar, mut lines) = memory(state, target, usize::from(inner.width));
    lines.insert(0, bar);
    frame.render_widget(Paragraph::new(lines), inner);

    history(frame, middle, target);

    let lines: Vec<Line<'_>> = cost(state).into_iter().map(Line::raw).collect();
    let block = Block::bordered().title(" cost of watching ");
    frame.render_widget(Paragraph::new(lines).block(block), right);
}

/// A bar of what is accessed, cooling, idle and unknown, and the numbers to it.
fn memory(state: &State, target: &Target, width: usize) -> (Line<'static>, Vec<Line<'static>>) {
    let sums = sums(&target.snapshot);
    let mut bar = Vec::new();
    let mut numbers = Vec::new();
    let (mut bytes, mut drawn) = (0, 0);
    for (rate, name, part) in parts(sums) {
        bytes += part;
        let until = (bytes as f64 / sums.total.max(1) as f64 * width as f64).round() as usize;
        let symbol = heat(state.palette, rate);
        bar.extend(std::iter::repeat_n(symbol.clone(), until - drawn));
        drawn = until;
        numbers.push(vec![
            symbol,
            Span::raw(format!(" {name} ")),
            Span::styled(format_bytes(part), bold()),
            Span::raw("  "),
        ]);
    }
    let per_line = if width < ONE_LINE_OF_NUMBERS { 2 } else { 4 };
    let mut lines: Vec<Line<'static>> = numbers
        .chunks(per_line)
        .map(|chunk| Line::from(chunk.concat()))
        .collect();
    lines.push(Line::raw(resident(sums, target)));
    (Line::from(bar), lines)
}

fn parts(sums: Sums) -> [(Option<f32>, String, u64); 4] {
    let idle = format!("idle over {}", format_time(IDLE));
    [
        (Some(0.8), "working set".to_owned(), sums.accessed),
        (Some(0.1), "cooling".to_owned(), sums.cooling()),
        (Some(0.0), idle, sums.idle),
        (None, "unknown".to_owned(), sums.unknown),
    ]
}

fn resident(sums: Sums, target: &Target) -> String {
    let watched = format!("watched {}", format_bytes(sums.addresses));
    let by_monitor = sums.is_exact.then_some(sums.total);
    let Some(rss) = by_monitor.or(target.rss).filter(|rss| *rss > 0) else {
        return watched;
    };
    let swap = match target.swap {
        Some(swap) if swap > 0 => format!(", swapped out {}", format_bytes(swap)),
        _ => String::new(),
    };
    format!(
        "working set is {} of {} resident{swap}; {watched}",
        format_share(sums.accessed as f64 / rss as f64),
        format_bytes(rss),
    )
}

fn history(frame: &mut Frame<'_>, area: Rect, target: &Target) {
    let most = target.working_sets.iter().copied().max().unwrap_or(0);
    let block = Block::bordered().title(" working set ").title_bottom(
        Line::styled(format!(" up to {} ", format_bytes(most)), dim()).right_aligned(),
    );
    let inner = block.inner(area);
    let sets: Vec<u64> = target.working_sets.iter().copied().collect();
    let skip = sets.len().saturating_sub(usize::from(inner.width));
    frame.render_widget(block, area);
    frame.render_widget(Sparkline::default().data(&sets[skip..]).max(most), inner);
}

/// What watching costs, a line for each aspect.
fn cost(state: &State) -> Vec<String> {
    let (Some(cost), Some((own, induced))) = (&state.cost, state.cpu_percent) else {
        return vec!["measuring ...".to_owned()];
    };
    vec![
        format!("{own:.2} % of a CPU, {induced:.2} % induced"),
        format!(
            "{:.0} clears/s, {:.0} checks/s",
            state.clears_per_second, state.checks_per_second
        ),
        format!(
            "{} sampling, {} aggregation",
            format_time(cost.sample_interval),
            format_time(cost.aggregation_interval),
        ),
        format!("{} of memory", format_bytes(cost.monitor_rss)),
    ]
}
