//! Draws the state: heading, heat bar, lists of regions, gauges, keys. What does not fit is left out
//! in the order of what is missed least.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table};

use super::state::{State, sums};
use super::style::{bold, dim, legend};
use super::{bar, blame, gauges, lists};
use isotherm_engine::units::{format_bytes, format_time};

const WIDTH_MIN: u16 = 40;
const HEIGHT_MIN: u16 = 12;
/// The bar, its addresses and its border.
const BAR_HEIGHT: u16 = 4;
/// Lists of less than this say too little: the past gives way to them.
const LISTS_HEIGHT: u16 = 14;
/// More of the past than this is not looked at.
const PAST_HEIGHT_MAX: u16 = 12;

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!("too small: needs {WIDTH_MIN} x {HEIGHT_MIN}");
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    // The heading and the keys take a line each.
    let gauges_height = if area.height < 18 { 4 } else { gauges::HEIGHT };
    let spare = area
        .height
        .saturating_sub(2 + BAR_HEIGHT + gauges_height + LISTS_HEIGHT);
    let [head, bar, middle, gauges, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(BAR_HEIGHT + spare.min(PAST_HEIGHT_MAX)),
        Constraint::Min(0),
        Constraint::Length(gauges_height),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(heading(state), head);
    match state.target() {
        Some((id, target)) if target.has_snapshot() => {
            bar::draw(frame, bar, state, target);
            let height = if state.blame.is_some() && middle.height >= LISTS_HEIGHT + blame::HEIGHT {
                blame::HEIGHT
            } else {
                0
            };
            let [lists_area, blame_area] =
                Layout::vertical([Constraint::Min(0), Constraint::Length(height)]).areas(middle);
            lists::draw(frame, lists_area, state, id, target);
            if height > 0 {
                blame::draw(frame, blame_area, state);
            }
            gauges::draw(frame, gauges, state, target);
        }
        _ => {
            let text = Line::styled("waiting for the first look ...", dim());
            frame.render_widget(Paragraph::new(text).centered(), middle);
        }
    }
    let standing = standing(state);
    let [keys_area, standing_area] = Layout::horizontal([
        Constraint::Fill(1),
        Constraint::Max(standing.width() as u16),
    ])
    .areas(foot);
    frame.render_widget(keys(), keys_area);
    frame.render_widget(standing, standing_area);
    if state.overview {
        overview(frame, area, state);
    }
    if state.help {
        help(frame, area, state);
    }
}

fn heading(state: &State) -> Line<'_> {
    let mut spans = vec![Span::styled(" isotherm top  ", bold())];
    if let Some((id, target)) = state.target() {
        let place = state.by_size().iter().position(|(other, _)| *other == id);
        if let (Some(place), true) = (place, state.targets.len() > 1) {
            let nr = state.targets.len();
            spans.push(Span::raw(format!("target {} of {nr}: ", place + 1)));
        }
        spans.push(Span::styled(target.name.as_str(), bold()));
        if target.pid > 0 {
            spans.push(Span::raw(format!(" (pid {})", target.pid)));
        }
        if target.ended {
            spans.push(Span::raw(" has ended"));
        }
        spans.push(Span::raw(format!("  {}", format_time(target.elapsed()))));
    }
    if !state.title.is_empty() {
        spans.push(Span::styled(format!("  {}", state.title), dim()));
    }
    Line::from(spans)
}

fn keys() -> Line<'static> {
    Line::styled(
        " q quit  p pause  s sort  t target  o all  arrows  ? help",
        dim(),
    )
}

/// At the right: what the user should know about what is shown.
fn standing(state: &State) -> Line<'_> {
    let mut spans = Vec::new();
    if let Some(age) = state.stale() {
        let age = format_time(age);
        spans.push(Span::styled(
            format!(" {age} old: the budget is used up  "),
            bold(),
        ));
    }
    if let Some(note) = &state.note {
        spans.push(Span::styled(format!(" {note}  "), dim()));
    }
    if state.paused {
        spans.push(Span::styled(" PAUSED ", bold()));
    }
    if state.ended {
        spans.push(Span::styled(" THE END ", bold()));
    }
    Line::from(spans).right_aligned()
}

/// All targets, the largest first.
fn overview(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let targets = state.by_size();
    let height = (targets.len() as u16).saturating_add(3).min(area.height);
    let width = 78.min(area.width);
    let popup = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let rows = targets.iter().map(|(_, target)| {
        let sums = sums(&target.snapshot);
        let by_monitor = sums
            .is_exact
            .then_some(sums.total)
            .filter(|_| target.has_snapshot());
        let resident = by_monitor.or(target.rss);
        let pid = match target.pid {
            0 => "-".to_owned(),
            pid => pid.to_string(),
        };
        let name = if target.ended {
            format!("{} (ended)", target.name)
        } else {
            target.name.clone()
        };
        Row::new([
            Line::raw(pid).right_aligned(),
            Line::raw(name),
            Line::raw(resident.map_or_else(|| "?".into(), format_bytes)).right_aligned(),
            Line::raw(format_bytes(sums.accessed)).right_aligned(),
            Line::raw(format_bytes(sums.idle)).right_aligned(),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(10),
    ];
    let header = Row::new([
        Line::raw("pid").right_aligned(),
        Line::raw("name"),
        Line::raw("resident").right_aligned(),
        Line::raw("working set").right_aligned(),
        Line::raw("idle 5 s").right_aligned(),
    ]);
    let nr = targets.len();
    let block = Block::bordered().title(format!(" {nr} targets: t shows the next, o closes this "));
    let table = Table::new(rows, widths)
        .header(header.style(dim()))
        .block(block);
    frame.render_widget(Clear, popup);
    frame.render_widget(table, popup);
}

fn help(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let text = [
        "",
        "rate  share of sampling windows in which a page was touched",
        "age   for how long the rate has been about the same",
        "?     unknown: shared, locked or unreadable; that is not cold",
        "~     unmapped addresses, cut out",
        "",
        "working set  what was accessed in the last interval",
        "cooling      accessed lately, not in the last interval",
        "induced      an estimate of what clearing takes from the target",
        "",
        "q, Esc, Ctrl-C  quit       p, space  pause",
        "s  order of the lists      t, Tab    next target      o  all targets",
        "arrows, PageUp, PageDown, Home  scroll the lists",
    ];
    let mut lines = vec![Line::from(legend(state.palette))];
    lines.extend(text.map(Line::raw));
    let height = (lines.len() as u16 + 2).min(area.height);
    let width = 70.min(area.width);
    let popup = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, popup);
    let block = Block::bordered().title(" help: any key closes it ");
    frame.render_widget(Paragraph::new(lines).block(block), popup);
}
