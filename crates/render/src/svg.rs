//! Elements that several kinds of pictures have.

use std::fmt::{Display, Write as _};

use crate::page::escape;

/// Draws text. Its class is made of the letters of [`crate::plot::open`]'s style: `t` title, `d` dim, `m` monospace, `e`
/// ends at the place, `c` has its middle there.
pub fn text(svg: &mut String, class: &str, (x, y): (f64, f64), text: impl Display) {
    let text = escape(&text.to_string());
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
    );
}

/// Draws a title and the note below it, in a part of the picture that begins at `top`.
pub fn heading(svg: &mut String, top: f64, title: &str, note: &str) {
    text(svg, "t", (16.0, top + 26.0), title);
    text(svg, "d", (16.0, top + 45.0), note);
}

/// Draws a horizontal line of the grid, and its value before it.
pub fn grid_line(svg: &mut String, (left, right): (f64, f64), y: f64, value: impl Display) {
    let _ = writeln!(
        svg,
        "<path class=\"g\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>"
    );
    text(svg, "e d", (left - 8.0, y + 4.0), value);
}

/// Draws a mark below a horizontal axis, and its value.
pub fn tick(svg: &mut String, (x, y): (f64, f64), value: impl Display) {
    let _ = writeln!(svg, "<path class=\"g\" d=\"M{x:.1} {y:.1}v5\"/>");
    text(svg, "c d", (x, y + 19.0), value);
}

/// Draws a dot.
pub fn dot(svg: &mut String, (x, y): (f64, f64), radius: f64, colour: &str) {
    let _ = writeln!(
        svg,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>"
    );
}

/// Draws a piece of a line of this colour and these dashes, and the line's name behind it.
pub fn line_name(svg: &mut String, (x, y): (f64, f64), style: (&str, &str), name: &str) {
    let ((colour, dashes), middle) = (style, y - 4.0);
    let _ = writeln!(
        svg,
        "<path d=\"M{x:.1} {middle:.1}h26\" stroke=\"{colour}\" stroke-width=\"2.5\" stroke-dasharray=\"{dashes}\"/>"
    );
    text(svg, "", (x + 32.0, y), name);
}
