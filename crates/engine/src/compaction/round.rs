//! How a round of compaction ends, on real and on simulated machines.

use serde::Serialize;

/// Why a round of compaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoundEnd {
    /// The low threshold was reached.
    AtLow,
    /// kswapd went to work.
    Kswapd,
    /// Others waited for a zone's lock.
    Contended,
    /// Nothing more was found to be moved: the scanners have met.
    Completed,
    /// Who compacted was told to stop.
    Interrupted,
}

impl RoundEnd {
    /// As it stands in a record.
    pub fn name(self) -> &'static str {
        match self {
            Self::AtLow => "at_low",
            Self::Kswapd => "kswapd",
            Self::Contended => "contended",
            Self::Completed => "to_the_end",
            Self::Interrupted => "interrupted",
        }
    }
}
