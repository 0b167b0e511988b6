//! Draws the state: the heading, the list of targets or the map of one of them (gauges, heat bar, lists of regions),
//! and the keys. Parts that do not fit are left out, the least important first.

use isotherm_engine::TargetId;
use isotherm_engine::units::format_time;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::state::{State, Target};
use super::style::{bold, dim, legend};
use super::text::{flow, shorten, words};
use super::{bar, blame, gauges, lists, targets};

const WIDTH_MIN: u16 = 40;
const HEIGHT_MIN: u16 = 12;
/// Lists shorter than this show too little: the past shrinks first.
const LISTS_HEIGHT: u16 = 12;
/// More lines of the past than this are of little use.
const PAST_HEIGHT_MAX: u16 = 12;
/// Width of a record's name in the heading.
const TITLE_WIDTH: usize = 30;

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!("too small: needs {WIDTH_MIN} x {HEIGHT_MIN}");
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let [head, middle, note, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(u16::from(state.note.is_some())),
        Constraint::Length(1),
    ])
    .areas(area);
    line(frame, heading(state), head);
    match state.target() {
        Some((id, target)) if target.has_snapshot() => map(frame, middle, state, (id, target)),
        None if !state.listed().is_empty() => {
            let [cost, list] =
                Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(middle);
            line(frame, gauges::cost(state), cost);
            targets::draw(frame, list, state);
        }
        _ => {
            let text = Line::styled("waiting for the first look ...", dim());
            frame.render_widget(Paragraph::new(text).centered(), middle);
        }
    }
    if let Some(text) = &state.note {
        let text = words(text, usize::from(area.width));
        line(frame, vec![Line::styled(text, dim())], note);
    }
    line(frame, foot_line(state), foot);
    if state.help {
        help(frame, area, state);
    }
}

/// Draws the parts that fit into a line.
fn line(frame: &mut Frame<'_>, parts: Vec<Line<'_>>, area: Rect) {
    let lines = flow(parts, usize::from(area.width), 1);
    frame.render_widget(Paragraph::new(lines), area);
}

/// Draws all that is known of one target.
fn map(frame: &mut Frame<'_>, area: Rect, state: &State, target: (TargetId, &Target)) {
    let nr_gauges = match (area.height, area.width) {
        (28.., _) => 5,
        (16.., ..70) => 3,
        _ => 2,
    };
    let gauges = gauges::lines(state, target.1, usize::from(area.width), nr_gauges);
    let height = |lines: &[Line<'_>]| Constraint::Length(lines.len() as u16);
    let [gauges_area, rest] = Layout::vertical([height(&gauges), Constraint::Min(0)]).areas(area);
    let spare = rest.height.saturating_sub(bar::HEIGHT + LISTS_HEIGHT);
    let past = spare.min(PAST_HEIGHT_MAX).min(target.1.past.len() as u16);
    let [bar_area, rest] =
        Layout::vertical([Constraint::Length(bar::HEIGHT + past), Constraint::Min(0)]).areas(rest);
    let has_blame = state.blame.is_some() && rest.height >= LISTS_HEIGHT + blame::HEIGHT;
    let blame_height = if has_blame { blame::HEIGHT } else { 0 };
    let [lists_area, blame_area] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(blame_height)]).areas(rest);
    frame.render_widget(Paragraph::new(gauges), gauges_area);
    bar::draw(frame, bar_area, state, target.1);
    lists::draw(frame, lists_area, state, target);
    if has_blame {
        blame::draw(frame, blame_area, state);
    }
}

fn heading(state: &State) -> Vec<Line<'_>> {
    let mut parts = vec![Line::styled("isotherm top", bold())];
    let listed = state.listed();
    if let Some((id, target)) = state.target() {
        let mut name = vec![Span::styled(target.name.as_str(), bold())];
        if target.pid > 0 {
            name.push(Span::raw(format!(" (pid {})", target.pid)));
        }
        parts.push(Line::from(name));
        if target.ended {
            parts.push(Line::raw("has ended"));
        }
        parts.push(Line::raw(format_time(target.elapsed())));
        let place = listed.iter().position(|(other, _)| *other == id);
        if let (Some(place), 2..) = (place, listed.len()) {
            parts.push(Line::raw(format!(
                "target {} of {}",
                place + 1,
                listed.len()
            )));
        }
    } else if !listed.is_empty() {
        parts.push(Line::styled(format!("{} targets", listed.len()), bold()));
        parts.push(Line::raw(format!("by {}", state.order.head())));
    }
    if !state.title.is_empty() {
        parts.push(Line::styled(shorten(&state.title, TITLE_WIDTH), dim()));
    }
    parts
}

/// Returns the state of the view, and the keys.
fn foot_line(state: &State) -> Vec<Line<'static>> {
    let mut parts = Vec::new();
    if state.paused {
        parts.push(Line::styled("PAUSED", bold()));
    }
    if state.ended {
        parts.push(Line::styled("THE END", bold()));
    }
    if let Some(age) = state.stale() {
        let text = format!("{} old: the budget is used up", format_time(age));
        parts.push(Line::styled(text, bold()));
    }
    let keys = match (state.shows_list(), state.opened) {
        (true, _) => "q quit|Enter map|s sort|? help|arrows move|p pause",
        (false, Some(_)) => "q quit|Esc back|s sort|? help|t next|arrows scroll|p pause",
        (false, None) => "q quit|s sort|? help|arrows scroll|p pause",
    };
    parts.extend(keys.split('|').map(|key| Line::styled(key, dim())));
    parts
}

fn help(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let text = [
        "rate  share of sampling windows in which a page was touched",
        "age   for how long the rate has been about the same",
        "?     unknown: shared, locked or unreadable; that is not cold",
        "~     unmapped addresses, cut out",
        "below the bar: the same, each line a second or more earlier",
        "",
        "working set  what was accessed in the last interval",
        "cooling      accessed lately, not in the last interval",
        "trend        the working set of the last snapshots",
        "induced      an estimate of what clearing takes from the target",
        "",
        "list  Enter  open a map        s, left, right  sort by",
        "map   Esc    back to the list  s  order of regions  t  next map",
        "arrows, PageUp, PageDown, Home, End  move or scroll",
        "p, space  pause                q, Ctrl-C  quit",
    ];
    let width = 70.min(area.width);
    let mut lines = flow(legend(state.palette), usize::from(width - 2), 2);
    lines.push(Line::default());
    lines.extend(text.map(Line::raw));
    // A narrow one has more lines, since they are wrapped.
    let height = if width < 70 {
        area.height
    } else {
        area.height.min(lines.len() as u16 + 2)
    };
    let popup = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, popup);
    let block = Block::bordered().title(" help: any key closes it ");
    let text = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(text.block(block), popup);
}
