//! The lists of the hottest and the coldest regions.

use isotherm_engine::units::{format_bytes, format_rate, format_time};
use isotherm_engine::{RegionSnapshot, TargetId};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::Row;

use super::state::{Sort, State, Target, shown_bytes};
use super::style::{bold, heat};
use super::text::{Column, Columns, section, shorten};

/// Least width for two lists side by side.
const SIDE_BY_SIDE: u16 = 110;
/// Lines that hold no regions, if one list is above the other: two titles and the heads.
const OTHER_LINES: u16 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Heat,
    Address,
    Size,
    Rate,
    Age,
    Mapping,
}

fn columns(width: u16) -> Columns<Field> {
    let columns = vec![
        Column::text(Field::Heat, "", (1, 1), 0),
        Column::number(Field::Address, "address", 14, 4),
        Column::number(Field::Size, "size", 8, 0),
        Column::number(Field::Rate, "rate", 7, 3),
        Column::number(Field::Age, "age", 11, 2),
        Column::text(Field::Mapping, "mapping", (12, u16::MAX), 1),
    ];
    Columns::fit(columns, width)
}

struct List<'a> {
    state: &'a State,
    target: (TargetId, &'a Target),
    regions: Vec<RegionSnapshot>,
    hot: bool,
    with_heads: bool,
}

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, target: (TargetId, &Target)) {
    let list = |hot: bool, with_heads: bool| List {
        state,
        target,
        regions: state.regions(hot),
        hot,
        with_heads,
    };
    let is_side_by_side = area.width >= SIDE_BY_SIDE;
    let (hot, cold) = (list(true, true), list(false, is_side_by_side));
    let [first, second] = if is_side_by_side {
        let halves = Layout::horizontal([Constraint::Fill(1); 2]);
        halves.spacing(1).areas(area)
    } else {
        // Each list has half of the lines, and the lines that the other does not need.
        let rows = area.height.saturating_sub(OTHER_LINES);
        let least = rows.saturating_sub(cold.regions.len().min(usize::from(rows)) as u16);
        let wanted = hot.regions.len().min(usize::from(rows)) as u16;
        let height = wanted.min(least.max(rows.div_ceil(2))) + 2;
        Layout::vertical([Constraint::Length(height), Constraint::Fill(1)]).areas(area)
    };
    hot.draw(frame, first);
    cold.draw(frame, second);
}

impl List<'_> {
    fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let others = 1 + u16::from(self.with_heads);
        let room = usize::from(area.height.saturating_sub(others));
        let (skip, nr) = (self.state.scroll, self.regions.len());
        let skip = skip.min(nr.saturating_sub(room));
        let columns = columns(area.width);
        let shown = self.regions.iter().skip(skip).take(room);
        let rows = shown.map(|region| self.row(&columns, region));
        let table = columns.table(rows, self.with_heads);
        let block = section(self.title(skip, room), area.width);
        frame.render_widget(table.block(block), area);
    }

    /// Returns the number of lines, the part that is shown, and the order.
    fn title(&self, skip: usize, room: usize) -> Vec<Line<'static>> {
        let bytes = self.regions.iter().map(|r| shown_bytes(r, self.hot));
        let bytes = format_bytes(bytes.sum());
        let name = if self.hot { "hot" } else { "cold" };
        let order = match (self.state.sort, self.hot) {
            (Sort::Size, _) | (Sort::Rate, false) => "largest first",
            (Sort::Rate, true) => "hottest first",
            (Sort::Age, true) => "longest first",
            (Sort::Age, false) => "coldest first",
        };
        let part = match self.regions.len() {
            1 => "1 region".to_owned(),
            nr if nr <= room || room == 0 => format!("{nr} regions"),
            nr => format!("{}-{} of {nr} regions", skip + 1, (skip + room).min(nr)),
        };
        let mut title = vec![
            Line::styled(format!("{name} {bytes}"), bold()),
            Line::raw(part),
        ];
        if self.regions.len() > 1 {
            title.push(Line::raw(order));
        }
        title
    }

    fn row(&self, columns: &Columns<Field>, region: &RegionSnapshot) -> Row<'static> {
        let (id, target) = self.target;
        let rate = target.snapshot.access_rate(region);
        columns.row(|field, width| match field {
            Field::Heat => Line::from(heat(self.state.palette, rate)),
            Field::Address => Line::raw(format!("{:#x}", region.range.start)),
            Field::Size => Line::raw(format_bytes(shown_bytes(region, self.hot))),
            Field::Rate => Line::raw(format_rate(rate)),
            Field::Age => Line::raw(format_time(region.age_ns)),
            Field::Mapping => {
                let label = self.state.mappings.label(id, region.range);
                let label = label.map_or_else(String::new, |label| label.to_string());
                Line::raw(shorten(&label, width))
            }
        })
    }
}
