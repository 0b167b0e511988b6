//! The heat bar: the target's addresses from left to right, one character for each stretch of them. The rows below show
//! earlier moments.
//!
//! An address space is mostly holes (127 TiB of them), so large gaps are cut out and marked. The least size of such a
//! gap grows until the remaining stretches fit.

use isotherm_engine::{AddressRange, Snapshot};
use isotherm_render::colour::Palette;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::state::{State, Target};
use super::style::{dim, heat, legend};
use super::text::section;
use isotherm_engine::units::format_bytes;

/// An unmapped stretch at least this large is cut out.
const GAP_MIN: u64 = 64 << 20;
/// Characters for each stretch, on average and at least.
const CELLS_PER_STRETCH: usize = 6;
/// The title, the bar, and its addresses.
pub(super) const HEIGHT: u16 = 3;

/// A stretch of addresses and the number of characters that show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    range: AddressRange,
    width: usize,
}

/// Draws the bar, a line of addresses, and the earlier moments that fit into `area`.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, target: &Target) {
    let room = usize::from(area.height.saturating_sub(HEIGHT));
    let mut title = vec![Line::raw("heat by address")];
    title.extend(legend(state.palette));
    if room > 0 && !target.past.is_empty() {
        title.push(Line::styled("downwards: seconds ago", dim()));
    }
    let block = section(title, area.width);
    let inner = block.inner(area);
    let slots = slots(&target.snapshot, usize::from(inner.width));
    let mut lines = vec![
        bar(&target.snapshot, &slots, state.palette),
        Line::styled(labels(&slots), dim()),
    ];
    for snapshot in target.past.iter().rev().take(room) {
        lines.push(bar(snapshot, &slots, state.palette));
    }
    frame.render_widget(block, area);
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Lays out the snapshot's stretches over `width` characters, with one character between each two for the gap.
fn slots(snapshot: &Snapshot, width: usize) -> Vec<Slot> {
    let mut gap_min = GAP_MIN;
    let stretches = loop {
        let stretches = stretches(snapshot, gap_min);
        if stretches.len() <= (width / CELLS_PER_STRETCH).max(1) {
            break stretches;
        }
        gap_min = gap_min.saturating_mul(2);
    };
    let Some(spare) = (width + 1).checked_sub(2 * stretches.len()) else {
        return Vec::new();
    };
    let total: u64 = stretches.iter().map(|s| s.len()).sum();
    // Each stretch has one character and its share of the rest. Rounding the sum so far, rather than each share, makes
    // the total exact.
    let given = |bytes: u64| (bytes as f64 / total.max(1) as f64 * spare as f64).round() as usize;
    let mut before = 0;
    let slot = |range: AddressRange| {
        let from = given(before);
        before += range.len();
        Slot {
            range,
            width: 1 + given(before) - from,
        }
    };
    stretches.into_iter().map(slot).collect()
}

fn stretches(snapshot: &Snapshot, gap_min: u64) -> Vec<AddressRange> {
    let mut found: Vec<AddressRange> = Vec::new();
    for region in &snapshot.regions {
        match found.last_mut() {
            Some(last) if region.range.start.saturating_sub(last.end) < gap_min => {
                last.end = last.end.max(region.range.end);
            }
            _ => found.push(region.range),
        }
    }
    found
}

fn bar(snapshot: &Snapshot, slots: &[Slot], palette: Palette) -> Line<'static> {
    let mut spans = Vec::new();
    for (i, slot) in slots.iter().enumerate() {
        if i > 0 {
            spans.push(Span::styled("~", dim()));
        }
        spans.extend((0..slot.width).map(|cell| heat_cell(snapshot, *slot, cell, palette)));
    }
    Line::from(spans)
}

/// Draws one character: the mean rate of the addresses that it covers. It is unknown if most of them are, and blank if
/// they are unmapped.
fn heat_cell(snapshot: &Snapshot, slot: Slot, cell: usize, palette: Palette) -> Span<'static> {
    let bytes_per_cell = slot.range.len() as f64 / slot.width as f64;
    let at = |cell: usize| slot.range.start + (bytes_per_cell * cell as f64) as u64;
    let Some(range) = AddressRange::checked(at(cell), at(cell + 1)) else {
        return Span::raw(" ");
    };
    let (mut known, mut unknown, mut sum) = (0u64, 0u64, 0.0);
    let first = snapshot
        .regions
        .partition_point(|r| r.range.end <= range.start);
    for region in &snapshot.regions[first..] {
        let Some(part) = region.range.intersection(range) else {
            break;
        };
        match snapshot.access_rate(region) {
            Some(rate) => {
                known += part.len();
                sum += f64::from(rate) * part.len() as f64;
            }
            None => unknown += part.len(),
        }
    }
    if known + unknown == 0 {
        Span::raw(" ")
    } else if unknown > known {
        heat(palette, None)
    } else {
        heat(palette, Some((sum / known as f64) as f32))
    }
}

/// Formats the start and the size of each stretch that fits.
fn labels(slots: &[Slot]) -> String {
    let mut text = String::new();
    for (i, slot) in slots.iter().enumerate() {
        if i > 0 {
            text.push(' ');
        }
        let start = format!("{:#x}", slot.range.start);
        let size = format_bytes(slot.range.len());
        let label = [format!("{start} {size}"), start, String::new()]
            .into_iter()
            .find(|label| label.len() < slot.width || label.is_empty())
            .unwrap_or_default();
        text.push_str(&label);
        text.extend(std::iter::repeat_n(' ', slot.width - label.len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_engine::RegionSnapshot;

    const MIB: u64 = 1 << 20;

    /// Returns a snapshot of regions, each with its address and size in MiB.
    fn snapshot(regions: &[(u64, u64)]) -> Snapshot {
        let region = |&(start, size): &(u64, u64)| {
            let range = AddressRange::new(start * MIB, (start + size) * MIB);
            RegionSnapshot::new(range, Some(0.0))
        };
        Snapshot {
            nr_samples: 10,
            regions: regions.iter().map(region).collect(),
            ..Snapshot::default()
        }
    }

    fn widths(regions: &[(u64, u64)], width: usize) -> Vec<usize> {
        let slots = slots(&snapshot(regions), width);
        slots.iter().map(|slot| slot.width).collect()
    }

    #[test]
    fn stretches_share_the_width_by_size_and_leave_a_character_for_each_gap() {
        assert_eq!(widths(&[(0, 10)], 40), [40]);
        assert_eq!(widths(&[(0, 10), (10, 10), (30, 10)], 40), [40]);
        assert_eq!(widths(&[(0, 10), (1000, 30)], 41), [11, 29]);
        // The smallest stretch is still there.
        assert_eq!(widths(&[(0, 1), (1_000_000, 100_000)], 41), [1, 39]);
    }

    #[test]
    fn many_stretches_never_overflow() {
        let many: Vec<(u64, u64)> = (0..5000u64).map(|i| (i * 300, 1 + i % 7)).collect();
        for width in [1, 2, 5, 40, 41, 200] {
            let widths = widths(&many, width);
            let drawn = widths.iter().sum::<usize>() + widths.len().saturating_sub(1);
            assert_eq!(drawn, width, "{widths:?}");
        }
    }

    #[test]
    fn labels_take_what_room_there_is() {
        let slots = slots(&snapshot(&[(0, 10), (1000, 30)]), 41);
        let wanted = format!("{:<11} {:<29}", "0x0 10 MiB", "0x3e800000 30 MiB");
        assert_eq!(labels(&slots), wanted);
    }
}
