//! End of a round of compaction, on real and on simulated machines.

use serde::Serialize;

/// Reason why a round of compaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RoundEnd {
    /// The low threshold was reached.
    AtLow,
    /// kswapd started to reclaim.
    Kswapd,
    /// Other threads waited for a zone's lock.
    Contended,
    /// No more pages could be moved: the scanners have met.
    Completed,
    /// The user interrupted the compaction.
    Interrupted,
}

impl RoundEnd {
    /// Returns the name in a record.
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
