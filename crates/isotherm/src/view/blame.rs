//! The functions that touched idle memory first: a list under the others.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use super::state::State;
use super::style::dim;
use super::text::{section, shorten};
use isotherm_engine::units::{format_bytes, format_share, format_time};

/// The functions, the unknown rest, and the title.
pub(super) const HEIGHT: u16 = 7;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(blame) = &state.blame else { return };
    let title = [
        format!("idle for {} or more:", format_time(blame.at_least_ns)),
        format!("{}, touched first by", format_bytes(blame.idle_bytes)),
    ];
    let share = |bytes: u64| format_share(bytes as f64 / blame.idle_bytes.max(1) as f64);
    let width = usize::from(area.width.saturating_sub(10 + 1 + 7 + 1));
    let row =
        |bytes, name: &str| Row::new([format_bytes(bytes), share(bytes), shorten(name, width)]);
    let functions = blame.functions.iter();
    let mut rows: Vec<Row<'_>> = functions.map(|of| row(of.bytes, &of.function)).collect();
    if blame.unknown_bytes > 0 {
        rows.push(row(blame.unknown_bytes, "? unknown").style(dim()));
    }
    let widths = [
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Fill(1),
    ];
    let block = section(title.map(Line::raw), area.width);
    frame.render_widget(Table::new(rows, widths).block(block), area);
}
