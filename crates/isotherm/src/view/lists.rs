//! The lists of the hottest and the coldest regions.

use isotherm_engine::units;
use isotherm_engine::{RegionSnapshot, TargetId};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Row, Table};

use super::state::{Sort, State, Target, shown_bytes};
use super::style::{bold, dim, heat};
use isotherm_engine::units::{format_bytes, format_time};

/// From here on the two lists stand side by side.
const SIDE_BY_SIDE: u16 = 110;
/// Lower than this, and not side by side, there is room for the hot one only.
const BOTH: u16 = 8;
/// What the columns before the mapping take, with the spaces between them and the border.
const OTHER_COLUMNS: u16 = 2 + 1 + 1 + 14 + 1 + 9 + 1 + 7 + 1 + 11 + 1;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, id: TargetId, of: &Target) {
    if area.width < SIDE_BY_SIDE && area.height < BOTH {
        list(frame, area, state, id, of, true);
        return;
    }
    let layout = if area.width >= SIDE_BY_SIDE {
        Layout::horizontal([Constraint::Fill(1); 2])
    } else {
        Layout::vertical([Constraint::Fill(1); 2])
    };
    let [first, second] = layout.areas(area);
    list(frame, first, state, id, of, true);
    list(frame, second, state, id, of, false);
}

fn list(frame: &mut Frame<'_>, area: Rect, state: &State, id: TargetId, of: &Target, hot: bool) {
    let regions = state.regions(hot);
    let room = usize::from(area.height.saturating_sub(3));
    let skip = state.scroll.min(regions.len().saturating_sub(room));
    let shown = regions.iter().skip(skip).take(room);
    let mapping_width = usize::from(area.width.saturating_sub(OTHER_COLUMNS));
    let rows = shown.map(|region| row(state, id, of, (region, hot), mapping_width));
    let widths = [
        Constraint::Length(1),
        Constraint::Length(14),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(11),
        Constraint::Fill(1),
    ];
    let header = Row::new([
        Line::raw(""),
        Line::raw("address").right_aligned(),
        Line::raw("size").right_aligned(),
        Line::raw("rate").right_aligned(),
        Line::raw("age").right_aligned(),
        Line::raw("mapping"),
    ]);
    let block = Block::bordered()
        .title(title(state.sort, &regions, hot))
        .title_top(Line::styled(position(skip, room, regions.len()), dim()).right_aligned());
    let table = Table::new(rows, widths)
        .header(header.style(dim()))
        .block(block);
    frame.render_widget(table, area);
}

fn title(sort: Sort, regions: &[RegionSnapshot], hot: bool) -> Line<'static> {
    let bytes: u64 = regions.iter().map(|region| shown_bytes(region, hot)).sum();
    let name = if hot { "hot" } else { "cold" };
    let order = match (sort, hot) {
        (Sort::Size, _) | (Sort::Rate, false) => "largest first",
        (Sort::Rate, true) => "hottest first",
        (Sort::Age, true) => "longest first",
        (Sort::Age, false) => "coldest first",
    };
    Line::from(vec![
        Span::styled(format!(" {name} {} ", format_bytes(bytes)), bold()),
        Span::raw(match regions.len() {
            1 => "in 1 region ".to_owned(),
            nr => format!("in {nr} regions, {order} "),
        }),
    ])
}

/// Which part of a list is shown, where it is not all of it.
fn position(skip: usize, room: usize, total: usize) -> String {
    if total <= room || room == 0 {
        String::new()
    } else {
        format!(" {}-{} of {total} ", skip + 1, (skip + room).min(total))
    }
}

fn row(
    state: &State,
    id: TargetId,
    of: &Target,
    (region, hot): (&RegionSnapshot, bool),
    mapping_width: usize,
) -> Row<'static> {
    let rate = of.snapshot.access_rate(region);
    let mapping = state
        .mappings
        .label(id, region.range)
        .map_or_else(String::new, |label| label.to_string());
    Row::new([
        Line::from(heat(state.palette, rate)),
        Line::raw(format!("{:#x}", region.range.start)).right_aligned(),
        Line::raw(format_bytes(shown_bytes(region, hot))).right_aligned(),
        Line::raw(units::format_rate(rate)).right_aligned(),
        Line::raw(format_time(region.age_ns)).right_aligned(),
        Line::raw(cut_middle(&mapping, mapping_width)),
    ])
}

/// Cuts a text that is too long in its middle: a path's beginning says whose it is, its end what it is.
fn cut_middle(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width || width == 0 {
        return text.chars().take(width).collect();
    }
    let end = (width - 1) * 2 / 3;
    let start = width - 1 - end;
    let kept = text.chars().take(start).chain(std::iter::once('…'));
    kept.chain(text.chars().skip(length - end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_keeps_both_its_ends() {
        assert_eq!(cut_middle("[heap]", 6), "[heap]");
        assert_eq!(cut_middle("/usr/lib/libc.so.6", 10), "/us…c.so.6");
        assert_eq!(cut_middle("ünïcödé", 4), "ü…dé");
        assert_eq!(cut_middle("abc", 1), "…");
        assert_eq!(cut_middle("abc", 0), "");
    }
}
