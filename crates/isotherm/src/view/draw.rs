//! Draws the state: a heat bar over the address space, the hottest and coldest regions, working set
//! and cost.

use isotherm_engine::{AddressRange, Nanos, RegionSnapshot};
use isotherm_record::report::render::{colour, units};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Sparkline, Table};

use super::state::{IDLE, State, Target, sums};
use crate::units::{format_bytes, format_duration, format_share};

/// An unmapped stretch at least this large is cut out of the heat bar.
const GAP: u64 = 64 << 20;
const MIN_WIDTH: u16 = 40;
const MIN_HEIGHT: u16 = 12;

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
        let text = format!("too small: needs {MIN_WIDTH} x {MIN_HEIGHT}");
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let [head, bar, middle, memory, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Min(4),
        Constraint::Length(4),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(heading(state), head);
    if let Some((_, target)) = state.target() {
        heat_bar(frame, bar, target);
        lists(frame, middle, state);
        footprint(frame, memory, state, target);
    } else {
        frame.render_widget(Paragraph::new("waiting for the first look ..."), middle);
    }
    frame.render_widget(keys(state), foot);
    if state.help {
        help(frame, area);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn coloured(style: Style, rate: Option<f32>) -> Style {
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        return style;
    }
    let (r, g, b) = colour::of(rate);
    style.fg(Color::Rgb(r, g, b))
}

fn heading(state: &State) -> Paragraph<'_> {
    let mut spans = vec![
        Span::styled("isotherm top  ", bold()),
        Span::raw(state.title.as_str()),
    ];
    if let Some((id, target)) = state.target() {
        let nr = state.targets.len();
        let which = if nr > 1 {
            format!("target {} of {nr}: ", id.0 + 1)
        } else {
            String::new()
        };
        spans.push(Span::raw(format!(
            "  {which}{} (pid {})",
            target.name, target.pid
        )));
        if target.ended {
            spans.push(Span::styled("  ended", bold()));
        }
    }
    if state.paused {
        spans.push(Span::styled("  PAUSED", bold()));
    }
    Paragraph::new(Line::from(spans))
}

/// The stretches of the snapshot between large gaps.
fn stretches(target: &Target) -> Vec<AddressRange> {
    let mut found: Vec<AddressRange> = Vec::new();
    for region in &target.snapshot.regions {
        match found.last_mut() {
            Some(last) if region.range.start.saturating_sub(last.end) < GAP => {
                last.end = last.end.max(region.range.end);
            }
            _ => found.push(region.range),
        }
    }
    found
}

fn heat_bar(frame: &mut Frame<'_>, area: Rect, target: &Target) {
    let block = Block::bordered().title(" heat by address ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let stretches = stretches(target);
    let total: u64 = stretches.iter().map(|s| s.len()).sum();
    let gaps = stretches.len().saturating_sub(1);
    let cells = usize::from(inner.width).saturating_sub(gaps);
    if total == 0 || cells == 0 {
        return;
    }
    let mut spans = Vec::new();
    let mut labels = String::new();
    for (i, stretch) in stretches.iter().enumerate() {
        if i > 0 {
            spans.push(Span::styled("~", dim()));
            labels.push(' ');
        }
        let share = stretch.len() as f64 / total as f64;
        let width = ((share * cells as f64).round() as usize).max(1);
        for cell in 0..width {
            spans.push(heat_cell(target, *stretch, cell, width));
        }
        let label = format!("{:#x}", stretch.start);
        let label = if width > label.len() {
            label
        } else {
            String::new()
        };
        labels.push_str(&label);
        labels.push_str(&" ".repeat(width - label.chars().count()));
    }
    let lines = vec![Line::from(spans), Line::styled(labels, dim())];
    frame.render_widget(Paragraph::new(lines), inner);
}

/// One cell: the mean rate of what it covers, unknown if most of it is, blank if nothing is there.
fn heat_cell(target: &Target, stretch: AddressRange, cell: usize, width: usize) -> Span<'static> {
    let at = |i: usize| stretch.start + (stretch.len() as f64 * i as f64 / width as f64) as u64;
    let Some(range) = AddressRange::checked(at(cell), at(cell + 1)) else {
        return Span::raw(" ");
    };
    let (mut known, mut unknown, mut sum) = (0u64, 0u64, 0.0);
    let first = target
        .snapshot
        .regions
        .partition_point(|r| r.range.end <= range.start);
    for region in &target.snapshot.regions[first..] {
        let Some(part) = region.range.intersection(range) else {
            break;
        };
        match target.snapshot.access_rate(region) {
            Some(rate) => {
                known += part.len();
                sum += f64::from(rate) * part.len() as f64;
            }
            None => unknown += part.len(),
        }
    }
    if known + unknown == 0 {
        return Span::raw(" ");
    }
    if unknown > known {
        return Span::styled("?", dim());
    }
    let rate = (sum / known as f64) as f32;
    let ramp = [(0.75, "█"), (0.25, "▓"), (0.05, "▒"), (0.0, "░")];
    let symbol = ramp
        .iter()
        .find(|(from, _)| rate > *from)
        .map_or("·", |(_, symbol)| symbol);
    Span::styled(symbol, coloured(Style::new(), Some(rate)))
}

fn lists(frame: &mut Frame<'_>, area: Rect, state: &State) {
    if area.width >= 100 {
        let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
        list(frame, left, state, true);
        list(frame, right, state, false);
    } else {
        let [upper, lower] = Layout::vertical([Constraint::Fill(1); 2]).areas(area);
        list(frame, upper, state, true);
        list(frame, lower, state, false);
    }
}

fn list(frame: &mut Frame<'_>, area: Rect, state: &State, hot: bool) {
    let Some((id, target)) = state.target() else {
        return;
    };
    let what = if hot { "hottest" } else { "coldest" };
    let regions = state.regions(hot);
    let skip = usize::from(state.scroll).min(regions.len().saturating_sub(1));
    let row = |region: &RegionSnapshot| {
        let rate = target.snapshot.access_rate(region);
        let mapping = state
            .mappings
            .label(id, region.range)
            .map_or_else(String::new, |l| l.to_string());
        Row::new([
            format!("{:>14}", format!("{:#x}", region.range.start)),
            format!("{:>9}", format_bytes(region.range.len())),
            format!("{:>7}", units::rate(rate)),
            format!("{:>8}", format_duration(region.age_ns)),
            mapping,
        ])
        .style(coloured(Style::new(), rate.filter(|rate| *rate > 0.0)))
    };
    let rows: Vec<Row<'_>> = regions
        .iter()
        .skip(skip)
        .take(usize::from(area.height))
        .map(row)
        .collect();
    let widths = [
        Constraint::Length(14),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Fill(1),
    ];
    let title = format!(
        " {what} of {} regions, by {} ",
        regions.len(),
        state.sort.name()
    );
    let header = Row::new([
        "       address",
        "     size",
        "   rate",
        "     age",
        "mapping",
    ])
    .style(bold());
    let table = Table::new(rows, widths)
        .header(header)
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

fn footprint(frame: &mut Frame<'_>, area: Rect, state: &State, target: &Target) {
    let block = Block::bordered().title(" memory and cost ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [text, spark] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(inner.width / 5)]).areas(inner);
    let sums = sums(&target.snapshot);
    let of_rss = target
        .rss
        .filter(|rss| *rss > 0)
        .map_or_else(String::new, |rss| {
            format!(
                " of {} resident ({})",
                format_bytes(rss),
                format_share(sums.accessed as f64 / rss as f64)
            )
        });
    let memory = format!(
        "working set {}{of_rss}; idle for {} or more: {}; unknown {}",
        format_bytes(sums.accessed),
        format_duration(IDLE),
        format_bytes(sums.idle),
        format_bytes(sums.unknown),
    );
    frame.render_widget(
        Paragraph::new(vec![Line::raw(memory), Line::raw(cost_line(state))]),
        text,
    );
    let history: Vec<u64> = target.working_sets.iter().copied().collect();
    let shown = history.len().saturating_sub(usize::from(spark.width));
    frame.render_widget(Sparkline::default().data(&history[shown..]), spark);
}

fn cost_line(state: &State) -> String {
    let note = state
        .note
        .as_deref()
        .map_or_else(String::new, |note| format!("; {note}"));
    let (Some(cost), Some((own, induced))) = (&state.cost, state.cpu_percent) else {
        return format!("cost: measuring{note}");
    };
    let interval = |time: Nanos| format_duration(time);
    format!(
        "cost {own:.2} % of a CPU, est. {induced:.2} % induced; {:.0} clears/s; {} / {}; {} RSS{note}",
        state.clears_per_second,
        interval(cost.sample_interval),
        interval(cost.aggregation_interval),
        format_bytes(cost.monitor_rss),
    )
}

fn keys(state: &State) -> Paragraph<'static> {
    let ended = if state.ended { "THE END  " } else { "" };
    let text = format!("{ended}q quit  p pause  s sort  t target  arrows scroll  ? help");
    Paragraph::new(Line::styled(text, dim()))
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines = [
        "rate: share of sampling windows in which a page was touched",
        "age:  how long the rate has been about the same",
        "?     unknown: shared, locked or unreadable; not cold",
        "~     unmapped addresses, cut out",
        "·░▒▓█ never, > 0, > 5 %, > 25 %, > 75 %",
        "",
        "q, Esc, Ctrl-C  quit        p, space  pause",
        "s  order of the lists       t, Tab    next target",
    ];
    let height = (lines.len() as u16 + 2).min(area.height);
    let width = 66.min(area.width);
    let popup = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, popup);
    let text: Vec<Line<'_>> = lines.iter().map(|line| Line::raw(*line)).collect();
    frame.render_widget(
        Paragraph::new(text).block(Block::bordered().title(" help ")),
        popup,
    );
}
