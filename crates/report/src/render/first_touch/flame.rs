//! A tree of calls as a flame graph (icicles: callers above), whose width is all bytes.
//!
//! Boxes are drawn the largest first, at most [`BOXES_MAX`]. A caller is at least as large as its callees, so every box
//! has its caller. Bytes without a known stack are grey, at the right.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;

use isotherm_engine::units;

use crate::blame::{FlameNode, PlacedNode, named};
use crate::render::page::escape;
use isotherm_render::plot::{CHARACTER, WIDTH, open};

const BOXES_MAX: usize = 20_000;
const ROW: f64 = 18.0;
const TOP: f64 = 58.0;
const MARGIN: f64 = 16.0;
const ROOM: f64 = WIDTH - 2.0 * MARGIN;
/// Minimum width of a box in a picture; in an interactive one, a tenth of it.
const NARROW: f64 = 0.4;
/// Hues of libraries; none resembles the colour of search hits.
const HUES: [u32; 12] = [205, 28, 150, 75, 52, 265, 180, 5, 95, 230, 300, 120];

pub(in crate::render) struct Flame<'a> {
    pub(in crate::render) title: &'a str,
    pub(in crate::render) note: &'a str,
    pub(in crate::render) tree: &'a FlameNode,
    /// Bytes without a known stack, by reason.
    pub(in crate::render) unknown: &'a [(&'static str, u64)],
}

struct Shape<'a> {
    class: &'a str,
    name: &'a str,
    tip: &'a str,
    left: u64,
    bytes: u64,
    row: usize,
}

impl Flame<'_> {
    /// Returns the picture; `closer` draws narrower boxes for the interactive version.
    pub(in crate::render) fn svg(&self, closer: bool) -> String {
        let unknown: u64 = self.unknown.iter().map(|(_, bytes)| bytes).sum();
        let total = (self.tree.bytes + unknown).max(1);
        let narrow = if closer { NARROW / 10.0 } else { NARROW };
        let least = (total as f64 * narrow / ROOM) as u64;
        let placed = self.tree.largest(BOXES_MAX, least);
        let rows = placed.iter().map(|placed| placed.depth + 1).max();
        let rows = rows.unwrap_or(0).max(usize::from(unknown > 0)) + 1;
        let mut svg = open(WIDTH, TOP + ROW * rows as f64 + 12.0, self.title);
        svg += &style();
        let _ = writeln!(
            svg,
            "<text class=\"t\" x=\"{MARGIN}\" y=\"26\">{}</text><text class=\"d\" x=\"{MARGIN}\" y=\"45\">{}</text>",
            escape(self.title),
            escape(self.note)
        );
        let all = format!("all: {}", units::format_bytes(self.tree.bytes + unknown));
        let whole = Shape {
            class: "u",
            name: &all,
            tip: &all,
            left: 0,
            bytes: total,
            row: 0,
        };
        whole.draw(total, &mut svg);
        let classes = classes(&placed);
        for PlacedNode { node, left, depth } in &placed {
            let name = named(&node.name);
            let shape = Shape {
                class: &classes[&node.library],
                name: &name,
                tip: &tip(node, &name, total),
                left: *left,
                bytes: node.bytes,
                row: depth + 1,
            };
            shape.draw(total, &mut svg);
        }
        let mut left = self.tree.bytes;
        for (name, bytes) in self.unknown.iter().filter(|(_, bytes)| *bytes > 0) {
            let shape = Shape {
                class: "u",
                name,
                tip: &format!("{name}\n{}", amount(*bytes, total)),
                left,
                bytes: *bytes,
                row: 1,
            };
            shape.draw(total, &mut svg);
            left += bytes;
        }
        svg + "</svg>\n"
    }

    /// Returns the picture with a search field, and with the script that zooms on a click.
    pub(in crate::render) fn interactive(&self) -> String {
        format!(
            "<section aria-label=\"{}\"><p><label>Find functions <input id=\"flame-find\" type=\"search\" autocomplete=\"off\" \
             spellcheck=\"false\"></label> <button id=\"flame-all\">Show all</button> <span id=\"flame-told\" role=\"status\"></span></p>\n\
             <div id=\"flame\">{}</div><p>A click shows what a function called. Enter in the field shows the largest that is found, \
             Escape all.</p></section>\n<script>{}</script>\n",
            escape(self.title),
            self.svg(true),
            include_str!("../flame.js")
        )
    }
}

impl Shape<'_> {
    fn draw(&self, total: u64, svg: &mut String) {
        let x = MARGIN + ROOM * self.left as f64 / total as f64;
        let y = TOP + ROW * self.row as f64;
        let width = (ROOM * self.bytes as f64 / total as f64).max(0.001);
        let _ = write!(
            svg,
            "<g class=\"f {}\" data-b=\"{}\"><title>{}</title><rect x=\"{x:.3}\" y=\"{y}\" width=\"{width:.3}\" height=\"{ROW}\"/>",
            self.class,
            self.bytes,
            escape(self.tip)
        );
        let room = ((width - 8.0) / CHARACTER).max(0.0) as usize;
        if room >= 3 {
            let _ = write!(
                svg,
                "<text x=\"{:.3}\" y=\"{}\">{}</text>",
                x + 4.0,
                y + 13.0,
                escape(&shortened(self.name, room))
            );
        }
        svg.push_str("</g>\n");
    }
}

/// Chooses a colour for each library: by its name, or another one if a larger library has that already.
fn classes<'a>(placed: &[PlacedNode<'a>]) -> HashMap<&'a Option<String>, String> {
    let mut bytes: HashMap<&Option<String>, u64> = HashMap::new();
    for PlacedNode { node, .. } in placed {
        *bytes.entry(&node.library).or_default() += node.bytes;
    }
    let mut libraries: Vec<(&Option<String>, u64)> = bytes.into_iter().collect();
    libraries.sort_by_key(|(library, bytes)| (Reverse(*bytes), *library));
    let mut is_taken = [false; HUES.len()];
    let classes = libraries.into_iter().map(|(library, _)| {
        let Some(name) = library else {
            return (library, "n".to_owned());
        };
        let add = |hash: usize, byte: u8| hash.wrapping_mul(31).wrapping_add(byte.into());
        let own = name.bytes().fold(7, add) % HUES.len();
        let mut free = (0..HUES.len()).map(|by| (own + by) % HUES.len());
        let hue = free.find(|hue| !is_taken[*hue]).unwrap_or(own);
        is_taken[hue] = true;
        (library, format!("h{hue}"))
    });
    classes.collect()
}

/// Returns the style: light boxes with dark text in both schemes; unknown bytes are grey.
fn style() -> String {
    let mut style = "<style>.iso .f rect{stroke:var(--bg);stroke-width:.7}.iso .f text{fill:#14171c;pointer-events:none}\
        .iso .u rect{fill:var(--grid)}.iso .u text{fill:var(--dim)}.iso .n rect{fill:hsl(40 14% 76%)}\
        .iso .f.found rect{fill:#e6007e}.iso .f.found text{fill:#fff}.iso .above{opacity:.7}"
        .to_owned();
    for (number, hue) in HUES.iter().enumerate() {
        let _ = write!(style, ".iso .h{number} rect{{fill:hsl({hue} 68% 78%)}}");
    }
    style += "@media(prefers-color-scheme:dark){.iso .n rect{fill:hsl(40 10% 62%)}";
    for (number, hue) in HUES.iter().enumerate() {
        let _ = write!(style, ".iso .h{number} rect{{fill:hsl({hue} 42% 66%)}}");
    }
    style + "}</style>\n"
}

fn tip(node: &FlameNode, name: &str, total: u64) -> String {
    let library = node.library.as_deref().map(named);
    let library = library.as_deref().unwrap_or("code of no file");
    let likely = match node.likely_bytes {
        0 => String::new(),
        bytes => format!("; {} of it likely", units::format_bytes(bytes)),
    };
    format!("{name}\n{library}\n{}{likely}", amount(node.bytes, total))
}

fn amount(bytes: u64, total: u64) -> String {
    let share = units::format_share(bytes as f64 / total as f64);
    format!("{}, {share} of all", units::format_bytes(bytes))
}

fn shortened(name: &str, room: usize) -> String {
    if name.chars().count() <= room {
        return name.to_owned();
    }
    name.chars().take(room - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blame::samples::stack;

    fn drawn(stacks: &[crate::blame::StackBytes]) -> String {
        let flame = Flame {
            title: "title",
            note: "note",
            tree: &FlameNode::tree(stacks),
            unknown: &[("not sampled", 100)],
        };
        flame.svg(true)
    }

    #[test]
    fn there_are_no_more_boxes_than_may_be() {
        let names = (0..15_000).map(|n| [format!("f{n}"), "g".to_owned(), "h".to_owned()]);
        let stacks = names.map(|names| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            stack(&names, 4096, 0)
        });
        let stacks: Vec<_> = stacks.collect();
        let nr = drawn(&stacks).matches("<rect x=").count();
        assert_eq!(nr, BOXES_MAX + 2);
    }

    #[test]
    fn names_are_text() {
        let name = "</title><script>alert(1)</script>\u{1b}\"\n&";
        let mut hostile = stack(&["main", name], 4096, 0);
        hostile.libraries[1] = Some(name.to_owned());
        let svg = drawn(&[hostile]);
        assert!(!svg.contains("<script"), "{svg}");
        let escaped = "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; &quot; &amp;";
        assert!(svg.contains(escaped), "{svg}");
    }

    #[test]
    fn nothing_makes_a_picture() {
        let svg = drawn(&[]);
        assert!(svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains("not sampled"), "{svg}");
    }
}
