//! The list of targets: the memory that each has, uses and leaves idle, and its trend.

use isotherm_engine::units::format_bytes;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Row;

use super::field::Field;
use super::state::{State, Target};
use super::style::dim;
use super::text::{Column, Columns, shorten, trend};

/// Returns the columns that fit; the sorted column is as important as the name.
fn columns(width: u16, order: Field) -> Columns<Field> {
    let rank = |field: Field, rank| if field == order { 0 } else { rank };
    let number = |field: Field, width, unsorted| {
        Column::number(field, &field.head(), width, rank(field, unsorted))
    };
    let text = |field: Field, width, rank| Column::text(field, &field.head(), width, rank);
    // A name has a mark before it, and 15 characters, as the kernel's names have.
    let columns = vec![
        number(Field::Pid, 7, 4),
        text(Field::Name, (16, 16), 0),
        number(Field::Resident, 8, 1),
        number(Field::WorkingSet, 11, 2),
        number(Field::Idle, 8, 3),
        number(Field::LongIdle, 10, 5),
        number(Field::Swapped, 8, 6),
        number(Field::Unknown, 8, 8),
        text(Field::Trend, (5, 40), 7),
    ];
    Columns::fit(columns, width)
}

/// Draws the part of the list that the cursor is in.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let columns = columns(area.width, state.order);
    let listed = state.listed();
    let cursor = state.cursor(&listed);
    let room = usize::from(area.height.saturating_sub(1));
    let skip = (cursor + 1).saturating_sub(room);
    let shown = listed.iter().enumerate().skip(skip).take(room);
    let rows = shown.map(|(at, (_, target))| row(&columns, target, at == cursor));
    frame.render_widget(columns.table(rows, true), area);
}

fn row(columns: &Columns<Field>, target: &Target, is_chosen: bool) -> Row<'static> {
    let row = columns.row(|field, width| match field {
        Field::Pid if target.pid == 0 => Line::raw("-"),
        Field::Pid => Line::raw(target.pid.to_string()),
        Field::Name => {
            let mark = match (is_chosen, target.ended) {
                (true, _) => '>',
                (false, true) => 'x',
                (false, false) => ' ',
            };
            Line::raw(format!("{mark}{}", shorten(&target.name, width - 1)))
        }
        Field::Trend if target.ended => Line::raw("ended"),
        Field::Trend => Line::raw(trend(&target.working_sets, width)),
        _ => Line::raw(
            target
                .bytes(field)
                .map_or_else(|| "?".to_owned(), format_bytes),
        ),
    });
    match (is_chosen, target.ended) {
        (true, _) => row.style(Style::new().add_modifier(Modifier::REVERSED)),
        (false, true) => row.style(dim()),
        (false, false) => row,
    }
}
