//! Whose code touched idle memory first: a list under the others.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row, Table};

use super::state::State;
use super::style::dim;
use isotherm_engine::units::{format_bytes, format_share, format_time};

/// The functions, what nobody knows, and the border.
pub(super) const HEIGHT: u16 = 8;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(blame) = &state.blame else { return };
    let title = format!(
        " Idle for {} or more: {}, touched first by ",
        format_time(blame.at_least_ns),
        format_bytes(blame.idle_bytes)
    );
    let share = |bytes: u64| format_share(bytes as f64 / blame.idle_bytes.max(1) as f64);
    let row =
        |bytes: u64, name: &str| Row::new([format_bytes(bytes), share(bytes), name.to_owned()]);
    let functions = blame.functions.iter();
    let mut rows: Vec<Row<'_>> = functions.map(|of| row(of.bytes, &of.function)).collect();
    if blame.unknown_bytes > 0 {
        rows.push(row(blame.unknown_bytes, "? nobody knows").style(dim()));
    }
    let widths = [
        Constraint::Length(10),
        Constraint::Length(7),
        Constraint::Fill(1),
    ];
    let block = Block::bordered().title(Line::raw(title));
    frame.render_widget(Table::new(rows, widths).block(block), area);
}
