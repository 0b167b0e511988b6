//! damo's fields that a record keeps in its settings, for the way back.

use isotherm_engine::Intervals;
use serde::{Deserialize, Serialize};

/// Prefix of the settings, one for each target, with damo's own fields.
pub(crate) const RECORD_SETTING: &str = "damo.record.";

/// Prefix of the settings, one for each target with derived ages. Such ages do not come from the source, but from
/// changes of access counts.
pub const AGES_SETTING: &str = "damo.ages.";

/// damo's fields of one list of snapshots; kept in our header, for the way back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RecordFields {
    pub(crate) kdamond_idx: Option<i64>,
    pub(crate) context_idx: Option<i64>,
    pub(crate) scheme_idx: Option<i64>,
    pub(crate) target_id: Option<serde_json::Number>,
}

/// [`RecordFields`] and the intervals that belong to them, as our header keeps them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecordSetting {
    #[serde(flatten)]
    pub(crate) fields: RecordFields,
    /// The intervals in the file, `null` included, with their number of checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) intervals: Vec<(u32, Option<SaidIntervals>)>,
}

/// damo's `intervals` with the parts that we do not use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SaidIntervals {
    #[serde(flatten)]
    pub(crate) intervals: Intervals,
    /// damo's `intervals_goal`, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<serde_json::Value>,
}

pub(crate) fn nr_samples(intervals: Intervals) -> Option<u32> {
    let n = intervals.aggregation.0.checked_div(intervals.sample.0)?;
    u32::try_from(n).ok().filter(|n| *n > 0)
}
