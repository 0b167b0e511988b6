//! The heat ramp: from dark violet (idle) to pale yellow (always accessed).
//!
//! Lightness grows evenly with the rate. The ramp therefore reads in greyscale and with any kind of colour blindness,
//! like matplotlib's perceptually uniform maps. Rates are spread by their square root: the difference between 0 and 3 %
//! matters more than that between 60 and 63 %. Unknown is grey, a colour that the ramp never has.

/// The colours that a terminal can show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Palette {
    /// Characters only.
    #[default]
    Plain,
    /// The 256 colours of xterm.
    Colours256,
    /// 24-bit colours.
    TrueColour,
}

/// Red, green, blue.
pub type Rgb = (u8, u8, u8);

/// The ramp at evenly spaced positions.
pub const RAMP: [Rgb; 7] = [
    (38, 18, 88),
    (91, 22, 126),
    (148, 38, 129),
    (208, 62, 108),
    (246, 112, 91),
    (254, 181, 122),
    (252, 250, 190),
];

/// The colour of unknown memory.
pub const UNKNOWN: Rgb = (128, 134, 144);

/// Returns the position of a rate on the ramp, 0 to 1.
pub fn position(rate: f32) -> f32 {
    rate.clamp(0.0, 1.0).sqrt()
}

/// Returns the colour of a rate.
pub fn of_rate(rate: f32) -> Rgb {
    let at = position(rate) * (RAMP.len() - 1) as f32;
    let below = (at as usize).min(RAMP.len() - 2);
    let part = at - below as f32;
    let mix = |a: u8, b: u8| (f32::from(a) + (f32::from(b) - f32::from(a)) * part).round() as u8;
    let (a, b) = (RAMP[below], RAMP[below + 1]);
    (mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

/// Returns the colour of a rate, or of its absence.
pub fn of(rate: Option<f32>) -> Rgb {
    rate.map_or(UNKNOWN, of_rate)
}

/// Returns the escape sequence that selects a colour for text (`38`) or for the background (`48`).
pub fn escape(palette: Palette, layer: u8, (r, g, b): Rgb) -> String {
    match palette {
        Palette::Plain => String::new(),
        Palette::TrueColour => format!("\x1b[{layer};2;{r};{g};{b}m"),
        Palette::Colours256 => {
            let index = index_256((r, g, b));
            format!("\x1b[{layer};5;{index}m")
        }
    }
}

/// Returns the nearest of xterm's 256 colours.
pub fn index_256((r, g, b): Rgb) -> u8 {
    if (r, g, b) == UNKNOWN {
        return 245;
    }
    // The 6 x 6 x 6 cube's levels are 0, 95, 135, ... 255.
    let level = |c: u8| c.saturating_sub(35) / 40;
    16 + 36 * level(r) + 6 * level(g) + level(b)
}

/// Formats a colour as `#rrggbb`.
pub fn hex((r, g, b): Rgb) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lightness_grows_with_the_rate_on_every_palette() {
        let light =
            |(r, g, b): Rgb| 0.2126 * f64::from(r) + 0.7152 * f64::from(g) + 0.0722 * f64::from(b);
        let steps = (0..=100).map(|i| light(of_rate(i as f32 / 100.0)));
        let steps: Vec<f64> = steps.collect();
        assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
    }
}
