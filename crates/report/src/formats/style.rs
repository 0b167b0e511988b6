//! The style of text: units, colours and width.

use isotherm_engine::{Nanos, units};
use isotherm_render::colour::Palette;

/// The style of text output.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Whether bytes and nanoseconds are plain numbers.
    pub raw: bool,
    /// Colours of the terminal.
    pub palette: Palette,
    /// Characters per line.
    pub width: usize,
    /// Whether series are printed besides their summary.
    pub over_time: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            raw: false,
            palette: Palette::Plain,
            width: 100,
            over_time: false,
        }
    }
}

impl Style {
    /// Formats bytes.
    pub fn bytes(&self, bytes: u64) -> String {
        if self.raw {
            bytes.to_string()
        } else {
            units::format_bytes(bytes)
        }
    }

    pub(crate) fn maybe_bytes(&self, bytes: Option<u64>) -> String {
        bytes.map_or_else(|| "?".into(), |bytes| self.bytes(bytes))
    }

    /// Formats a duration.
    pub fn duration(&self, time: Nanos) -> String {
        if self.raw {
            time.0.to_string()
        } else {
            units::format_time(time)
        }
    }
}
