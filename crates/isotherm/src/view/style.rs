//! Heat as one character of the terminal: a coloured cell or, without colours, a character of a ramp.

use isotherm_render::colour::{self, Palette};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// Characters of rates without colours: a rate above the first value shows as the second.
const RAMP: [(f32, &str); 4] = [(0.75, "█"), (0.25, "▓"), (0.05, "▒"), (0.0, "░")];
const NEVER: &str = "·";

/// Returns the colours that this terminal can show.
pub(super) fn palette_of_terminal() -> Palette {
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        return Palette::Plain;
    }
    match std::env::var("COLORTERM").as_deref() {
        Ok("truecolor" | "24bit") => Palette::TrueColour,
        _ => Palette::Colours256,
    }
}

pub(super) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(super) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Returns one character of heat; `None` is unknown.
pub(super) fn heat(palette: Palette, rate: Option<f32>) -> Span<'static> {
    let (r, g, b) = colour::of(rate);
    let behind = match palette {
        Palette::Plain => None,
        Palette::Colours256 => Some(Color::Indexed(colour::index_256((r, g, b)))),
        Palette::TrueColour => Some(Color::Rgb(r, g, b)),
    };
    match (behind, rate) {
        (Some(colour), Some(_)) => Span::styled(" ", Style::new().bg(colour)),
        (Some(colour), None) => Span::styled("?", Style::new().bg(colour).fg(Color::Black)),
        (None, None) => Span::raw("?"),
        (None, Some(rate)) => Span::raw(
            RAMP.iter()
                .find(|(from, _)| rate > *from)
                .map_or(NEVER, |(_, symbol)| symbol),
        ),
    }
}

/// Returns the meaning of the cells, part by part. The rates are in the middle of the ramp's steps.
pub(super) fn legend(palette: Palette) -> Vec<Line<'static>> {
    let entries = [
        (Some(0.0), " never"),
        (Some(0.02), " >0"),
        (Some(0.12), " >5%"),
        (Some(0.45), " >25%"),
        (Some(0.95), " >75%"),
        (None, " unknown"),
    ];
    let part = |(rate, text)| Line::from(vec![heat(palette, rate), Span::raw(text)]);
    let mut parts: Vec<Line<'static>> = entries.map(part).into();
    parts.push(Line::raw("~ gap"));
    parts
}
