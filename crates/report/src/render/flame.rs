//! A tree of calls as a flame graph (icicles: callers above).

use std::fmt::Write as _;

use isotherm_engine::units;

use super::page::escape;
use super::plot::{CHARACTER, WIDTH};
use crate::blame::FlameNode;

const ROW: f64 = 18.0;
/// What is narrower is not drawn.
const WIDTH_MIN: f64 = 0.5;
const TOP: f64 = 56.0;

/// The picture.
pub(super) fn svg(title: &str, note: &str, tree: &FlameNode) -> String {
    let depth = depth(tree, WIDTH);
    let height = TOP + ROW * depth as f64 + 8.0;
    let mut svg = super::plot::open(WIDTH, height, title);
    let _ = write!(
        svg,
        "<text x=\"0\" y=\"18\" font-weight=\"600\">{}</text><text x=\"0\" y=\"38\" class=\"dim\">{}</text>",
        escape(title),
        escape(note)
    );
    let mut x = 0.0;
    for child in &tree.children {
        let width = WIDTH * child.bytes as f64 / tree.bytes.max(1) as f64;
        draw(child, x, TOP, width, tree.bytes, &mut svg);
        x += width;
    }
    svg + "</svg>"
}

fn depth(node: &FlameNode, width: f64) -> usize {
    let wide = node.children.iter().filter_map(|child| {
        let width = width * child.bytes as f64 / node.bytes.max(1) as f64;
        (width >= WIDTH_MIN).then(|| 1 + depth(child, width))
    });
    wide.max().unwrap_or(0)
}

fn draw(node: &FlameNode, x: f64, y: f64, width: f64, total: u64, svg: &mut String) {
    if width < WIDTH_MIN {
        return;
    }
    let share = units::format_share(node.bytes as f64 / total.max(1) as f64);
    let library = node.library.as_deref().unwrap_or("made at run time");
    let tip = format!(
        "{} ({library}): {}, {share}",
        node.name,
        units::format_bytes(node.bytes)
    );
    let _ = write!(
        svg,
        "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\"/>",
        escape(&tip),
        (width - 0.5).max(0.5),
        ROW - 1.0,
        colour(node)
    );
    let room = ((width - 6.0) / CHARACTER) as usize;
    if room >= 3 {
        let name: String = if node.name.chars().count() <= room {
            node.name.clone()
        } else {
            node.name.chars().take(room - 1).chain(['…']).collect()
        };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" style=\"fill:#1d2127\">{}</text>",
            x + 3.0,
            y + 13.0,
            escape(&name)
        );
    }
    svg.push_str("</g>");
    let mut x = x;
    for child in &node.children {
        let width = width * child.bytes as f64 / node.bytes.max(1) as f64;
        draw(child, x, y + ROW, width, total, svg);
        x += width;
    }
}

/// One hue for each library, light enough for dark text.
fn colour(node: &FlameNode) -> String {
    let library = node.library.as_deref().unwrap_or_default();
    let hash = library.bytes().fold(7u32, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    format!("hsl({} 70% 74%)", hash % 360)
}
