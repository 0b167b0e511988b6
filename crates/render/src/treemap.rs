//! Rectangles whose areas are sizes.
//!
//! Squarified treemaps: a row is filled, the largest first, while its rectangles become more like squares (Bruls,
//! Huizing and van Wijk, "Squarified Treemaps", 2000).

use std::fmt::Write;

use crate::colour;
use crate::page::escape;
use crate::plot::{WIDTH, open_titled};

/// One rectangle.
#[derive(Clone, Debug)]
pub struct Tile {
    pub text: String,
    /// The weight, which decides the area.
    pub weight: u64,
    /// Heat of the colour: 0 cold, 1 hot; `None` is grey for an unknown heat.
    pub heat: Option<f64>,
}

const TOP: f64 = 58.0;
const HEIGHT: f64 = 460.0;
const MARGIN: f64 = 16.0;
/// Smallest share of all weights that is drawn; smaller rectangles would be invisible.
const LEAST: f64 = 0.0005;
const CHARACTER: f64 = 7.2;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Rect {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

const fn rect(x: f64, y: f64, width: f64, height: f64) -> Rect {
    Rect {
        x,
        y,
        width,
        height,
    }
}

/// Draws the picture.
pub fn treemap(title: &str, note: &str, tiles: &[Tile]) -> String {
    let mut svg = open_titled(TOP + HEIGHT + MARGIN, title, note);
    let all: f64 = tiles.iter().map(|tile| tile.weight as f64).sum();
    let mut shown: Vec<&Tile> = { tiles.iter() }
        .filter(|tile| tile.weight as f64 > LEAST * all)
        .collect();
    shown.sort_by_key(|tile| std::cmp::Reverse(tile.weight));
    let weights: Vec<f64> = shown.iter().map(|tile| tile.weight as f64).collect();
    let whole = rect(MARGIN, TOP, WIDTH - 2.0 * MARGIN, HEIGHT);
    for (tile, rect) in shown.iter().zip(squarified(&weights, whole)) {
        draw(tile, rect, &mut svg);
    }
    svg + "</svg>\n"
}

fn draw(tile: &Tile, rect: Rect, svg: &mut String) {
    let colour = colour::of(tile.heat.map(|heat| heat as f32));
    let text = escape(&tile.text);
    let _ = write!(
        svg,
        "<g><title>{text}</title><rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" \
         stroke=\"var(--bg)\"/>",
        rect.x,
        rect.y,
        rect.width,
        rect.height,
        colour::hex(colour)
    );
    let room = ((rect.width - 10.0) / CHARACTER).max(0.0) as usize;
    if room >= 4 && rect.height >= 18.0 {
        let short: String = tile.text.chars().take(room).collect();
        // The text is dark on a light rectangle.
        let (r, g, b) = colour;
        let is_light = u32::from(r) * 3 + u32::from(g) * 6 + u32::from(b) > 1500;
        let fill = if is_light { "#14171c" } else { "#ffffff" };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:{fill}\">{}</text>",
            rect.x + 5.0,
            rect.y + 14.0,
            escape(&short)
        );
    }
    *svg += "</g>\n";
}

/// Returns a rectangle for each weight, the largest weights first; together they fill `whole`.
fn squarified(weights: &[f64], mut whole: Rect) -> Vec<Rect> {
    let all: f64 = weights.iter().sum();
    let scale = whole.width * whole.height / all.max(f64::MIN_POSITIVE);
    let areas: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
    let mut rects = Vec::with_capacity(areas.len());
    let mut rest = &areas[..];
    while !rest.is_empty() {
        let side = whole.width.min(whole.height);
        let mut nr = 1;
        while nr < rest.len() && worst(&rest[..=nr], side) <= worst(&rest[..nr], side) {
            nr += 1;
        }
        let (row, others) = rest.split_at(nr);
        let depth = row.iter().sum::<f64>() / side.max(f64::MIN_POSITIVE);
        let mut at = 0.0;
        for area in row {
            let length = area / depth.max(f64::MIN_POSITIVE);
            rects.push(if whole.width >= whole.height {
                rect(whole.x, whole.y + at, depth, length)
            } else {
                rect(whole.x + at, whole.y, length, depth)
            });
            at += length;
        }
        if whole.width >= whole.height {
            whole.x += depth;
            whole.width = (whole.width - depth).max(0.0);
        } else {
            whole.y += depth;
            whole.height = (whole.height - depth).max(0.0);
        }
        rest = others;
    }
    rects
}

/// Returns the worst ratio of sides in a row of rectangles along a side.
fn worst(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let ratio = |area: &f64| {
        let ratio = side * side * area / (sum * sum);
        ratio.max(1.0 / ratio)
    };
    row.iter().map(ratio).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_have_their_sizes_and_fill_the_whole() {
        // The paper's example.
        let weights = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
        let rects = squarified(&weights, rect(0.0, 0.0, 6.0, 4.0));
        for (weight, rect) in weights.iter().zip(&rects) {
            assert!((rect.width * rect.height - weight).abs() < 1e-9, "{rect:?}");
            let inside = rect.x >= -1e-9
                && rect.y >= -1e-9
                && rect.x + rect.width <= 6.0 + 1e-9
                && rect.y + rect.height <= 4.0 + 1e-9;
            assert!(inside, "{rect:?}");
        }
        assert_eq!(rects[0], rect(0.0, 0.0, 3.0, 2.0));
        assert_eq!(rects[1], rect(0.0, 2.0, 3.0, 2.0));
    }

    #[test]
    fn nothing_makes_an_empty_picture() {
        let svg = treemap("a", "b", &[]);
        assert!(svg.ends_with("</svg>\n") && !svg.contains("<g>"), "{svg}");
        assert!(squarified(&[], rect(0.0, 0.0, 1.0, 1.0)).is_empty());
    }
}
