//! Fits text into a width: it leaves out whole parts and whole words, and cuts none if it can avoid that.

use std::collections::VecDeque;

use ratatui::layout::{Alignment, Constraint};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Row, Table};

use super::style::dim;

/// Between two parts of a line.
const BETWEEN: &str = "  ";
/// The bars of a trend, from the lowest up.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Puts parts into at most `nr_lines` lines. A part that does not fit into the last of them is left out.
pub(super) fn flow<'a>(
    parts: impl IntoIterator<Item = Line<'a>>,
    width: usize,
    nr_lines: usize,
) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    for part in parts {
        let nr = lines.len();
        match lines.last_mut() {
            Some(last) if last.width() + BETWEEN.len() + part.width() <= width => {
                last.push_span(BETWEEN);
                last.extend(spans(part));
            }
            _ if nr < nr_lines && part.width() <= width => lines.push(spans(part).collect()),
            _ => {}
        }
    }
    lines
}

/// Returns the spans of a part, each with the style of the whole, which they keep beside other parts.
fn spans(part: Line<'_>) -> impl Iterator<Item = Span<'_>> {
    let style = part.style;
    part.spans.into_iter().map(move |span| {
        let own = span.style;
        span.style(style.patch(own))
    })
}

/// Returns a line above a section, with the parts of its title that fit.
pub(super) fn section<'a>(title: impl IntoIterator<Item = Line<'a>>, width: u16) -> Block<'a> {
    let block = Block::new().borders(Borders::TOP);
    let room = usize::from(width.saturating_sub(4));
    match flow(title, room, 1).pop() {
        Some(title) => {
            let mut line = Line::raw("─ ");
            line.extend(title);
            line.push_span(" ");
            block.title(line)
        }
        None => block,
    }
}

pub(super) struct Column<F> {
    pub(super) field: F,
    pub(super) head: String,
    /// Its least and its greatest width.
    width: (u16, u16),
    /// The importance: the column of the highest rank is left out first.
    rank: u8,
    alignment: Alignment,
}

impl<F> Column<F> {
    /// A column of text, which begins at the left.
    pub(super) fn text(field: F, head: &str, width: (u16, u16), rank: u8) -> Self {
        Self {
            field,
            head: head.to_owned(),
            width,
            rank,
            alignment: Alignment::Left,
        }
    }

    /// A column of numbers, which end at the right.
    pub(super) fn number(field: F, head: &str, width: u16, rank: u8) -> Self {
        Self {
            alignment: Alignment::Right,
            ..Self::text(field, head, (width, width), rank)
        }
    }
}

/// The columns that fit into a width.
pub(super) struct Columns<F>(Vec<(Column<F>, u16)>);

impl<F: Copy> Columns<F> {
    /// Leaves out columns until the others fit, and widens those that can be wider by the rest.
    pub(super) fn fit(mut columns: Vec<Column<F>>, width: u16) -> Self {
        let needed = |columns: &[Column<F>]| {
            let each = columns.iter().map(|column| column.width.0 + 1);
            each.sum::<u16>().saturating_sub(1)
        };
        while columns.len() > 1 && needed(&columns) > width {
            let ranks = columns.iter().map(|column| column.rank).enumerate();
            let Some((last, _)) = ranks.max_by_key(|(_, rank)| *rank) else {
                break;
            };
            columns.remove(last);
        }
        let mut spare = width.saturating_sub(needed(&columns));
        let widened = columns.into_iter().map(|column| {
            let (least, greatest) = column.width;
            let more = spare.min(greatest - least);
            spare -= more;
            (column, least + more)
        });
        Self(widened.collect())
    }

    /// Returns a row of cells; `cell` gets the width of its column.
    pub(super) fn row<'a>(&self, cell: impl Fn(F, usize) -> Line<'a>) -> Row<'a> {
        let cell = |(column, width): &(Column<F>, u16)| {
            cell(column.field, usize::from(*width)).alignment(column.alignment)
        };
        Row::new(self.0.iter().map(cell))
    }

    /// Returns rows, below their heads or below another list with the same columns.
    pub(super) fn table<'a>(
        &self,
        rows: impl IntoIterator<Item = Row<'a>>,
        with_heads: bool,
    ) -> Table<'a> {
        let widths = self.0.iter().map(|(_, width)| Constraint::Length(*width));
        let head = |(column, _): &(Column<F>, u16)| {
            Line::raw(column.head.clone()).alignment(column.alignment)
        };
        let heads = Row::new(self.0.iter().map(head)).style(dim());
        let table = Table::new(rows, widths);
        if with_heads {
            table.header(heads)
        } else {
            table
        }
    }
}

/// Returns the words of a text that fit, and an ellipsis for the others.
pub(super) fn words(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let ends = text.match_indices(' ').map(|(at, _)| &text[..at]);
    let fitting = ends.take_while(|begin| width_of(begin) + 2 <= width).last();
    fitting.map_or_else(String::new, |begin| format!("{begin} …"))
}

/// Returns a name without its first directories, without its last words, or, if it is one long word, without its
/// middle.
pub(super) fn shorten(name: &str, width: usize) -> String {
    if width_of(name) <= width {
        return name.to_owned();
    }
    let mut ends = name.match_indices('/').map(|(at, _)| &name[at..]);
    if let Some(end) = ends.find(|end| width_of(end) < width) {
        return format!("…{end}");
    }
    match words(name, width) {
        words if words.is_empty() => cut_middle(name, width),
        words => words,
    }
}

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

/// Returns bars of the values' trend, the latest at the right, as shares of the largest.
pub(super) fn trend(values: &VecDeque<u64>, width: usize) -> String {
    let most = values.iter().copied().max().unwrap_or(0).max(1) as f64;
    let nr_bars = width.min(values.len());
    let bar = |at: usize| {
        let part = at * values.len() / nr_bars..(at + 1) * values.len() / nr_bars;
        let nr = part.len() as f64;
        let mean = values.range(part).map(|value| *value as f64).sum::<f64>() / nr;
        BARS[(mean / most * (BARS.len() - 1) as f64).round() as usize]
    };
    (0..nr_bars).map(bar).collect()
}

fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_left_out_whole() {
        let flowed = |width, nr_lines| -> Vec<String> {
            let parts = ["one", "three", "seventeen", "two"].map(Line::raw);
            let lines = flow(parts, width, nr_lines);
            lines.iter().map(ToString::to_string).collect()
        };
        assert_eq!(flowed(40, 1), ["one  three  seventeen  two"]);
        assert_eq!(flowed(15, 1), ["one  three  two"]);
        assert_eq!(flowed(15, 2), ["one  three", "seventeen  two"]);
        assert_eq!(flowed(2, 3), [""; 0]);
    }

    #[test]
    fn columns_go_by_rank_and_the_last_takes_what_is_left() {
        let shown = |width| -> Vec<(char, u16)> {
            let columns = vec![
                Column::number('a', "", 4, 1),
                Column::number('b', "", 4, 2),
                Column::text('c', "", (3, 9), 0),
            ];
            let columns = Columns::fit(columns, width).0;
            let shown = columns.iter().map(|(of, width)| (of.field, *width));
            shown.collect()
        };
        assert_eq!(shown(40), [('a', 4), ('b', 4), ('c', 9)]);
        assert_eq!(shown(13), [('a', 4), ('b', 4), ('c', 3)]);
        assert_eq!(shown(12), [('a', 4), ('c', 7)]);
        assert_eq!(shown(2), [('c', 3)]);
    }

    #[test]
    fn names_lose_whole_directories_and_words() {
        assert_eq!(shorten("[heap]", 6), "[heap]");
        assert_eq!(shorten("/usr/lib/libc.so.6", 16), "…/lib/libc.so.6");
        assert_eq!(shorten("/usr/lib/libc.so.6", 14), "…/libc.so.6");
        let deleted = "/memfd:java_heap (deleted)";
        assert_eq!(shorten(deleted, 20), "/memfd:java_heap …");
        assert_eq!(shorten("/usr/lib/libc.so.6", 10), "/us…c.so.6");
        assert_eq!(shorten("ünïcödé", 4), "ü…dé");
        assert_eq!(shorten("abc", 1), "…");
        assert_eq!(shorten("abc", 0), "");
        assert_eq!(words("the budget is used up", 14), "the budget …");
    }

    #[test]
    fn a_trend_is_a_share_of_the_largest() {
        assert_eq!(trend(&VecDeque::from([0, 7, 14]), 8), "▁▅█");
        assert_eq!(trend(&VecDeque::from([0, 14, 14, 14]), 2), "▅█");
        assert_eq!(trend(&VecDeque::new(), 8), "");
    }
}
