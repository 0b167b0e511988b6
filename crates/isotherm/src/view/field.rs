//! Columns of the list of targets.

use isotherm_engine::Nanos;
use isotherm_engine::units::format_time;

/// Regions idle for this long count as idle.
pub(super) const IDLE: Nanos = Nanos(5_000_000_000);
/// Regions idle for this long count as idle for long. Both times are among `AGE_BOUNDS`, so the page cache has them,
/// too.
pub(super) const LONG_IDLE: Nanos = Nanos(120_000_000_000);

/// Column of the list of targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Field {
    Pid,
    Name,
    #[default]
    Resident,
    WorkingSet,
    Idle,
    LongIdle,
    Swapped,
    Unknown,
    Trend,
}

const ORDERS: [Field; 7] = [
    Field::Resident,
    Field::WorkingSet,
    Field::Idle,
    Field::LongIdle,
    Field::Swapped,
    Field::Unknown,
    Field::Name,
];

impl Field {
    /// Returns the field to sort by after this one, or before it.
    pub(super) fn next(self, forwards: bool) -> Self {
        let nr = ORDERS.len();
        let at = ORDERS.iter().position(|of| *of == self).unwrap_or(0);
        ORDERS[(at + if forwards { 1 } else { nr - 1 }) % nr]
    }

    pub(super) fn head(self) -> String {
        match self {
            Self::Pid => "pid".to_owned(),
            Self::Name => "name".to_owned(),
            Self::Resident => "resident".to_owned(),
            Self::WorkingSet => "working set".to_owned(),
            Self::Idle => format!("idle {}", format_time(IDLE)),
            Self::LongIdle => format!("idle {}", format_time(LONG_IDLE)),
            Self::Swapped => "swapped".to_owned(),
            Self::Unknown => "unknown".to_owned(),
            Self::Trend => "trend".to_owned(),
        }
    }
}
