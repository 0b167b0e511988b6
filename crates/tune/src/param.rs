//! Numbers of schemes that can be tuned, and their ranges.
//!
//! A [`Knob`] names a number that schemes have; [`Knob::apply`] sets it wherever schemes have it. A [`Parameter`] is a
//! knob with a ladder of values, from `--param` ([`Parameter::parse`]) or by default ([`Parameter::default_of`]).
//! Ladders are even by ratio, and their steps are round numbers: times and shares of two digits (about a tenth more
//! each), sizes that are powers of two. The results are thus readable and are written to a configuration without
//! rounding, and a search tries the same values again.

use std::fmt;

use isotherm_config::ContextConfig;
use isotherm_engine::units::{
    MINUTE, SECOND, UnitError, format_bytes, format_time, parse_bytes, parse_share, parse_time,
};
use isotherm_engine::{BLOCK_SIZE, Nanos, PAGE_SIZE};
use isotherm_policy::scheme::huge::MAX_WASTE;
use isotherm_policy::scheme::{Action, Age, Frequency, Scheme};
use serde::Serialize;
use thiserror::Error;

isotherm_engine::named! {
    /// A number of schemes that can be tuned.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    #[serde(rename_all = "kebab-case")]
    pub enum Knob {
        /// Minimum idle time of memory for schemes about cold memory.
        Age = "age",
        /// Minimum size of a region for schemes about cold memory.
        Size = "size",
        /// Maximum access rate of memory that still counts as cold, a share of checks.
        Rate = "rate",
        /// Bytes that a scheme about cold memory may try in its reset interval (a second, if it has none).
        Quota = "quota",
        /// Minimum access rate of memory that is made huge, a share of checks.
        Density = "density",
        /// Maximum memory that huge pages may waste, a share of the targets' memory.
        Waste = "waste",
        /// Minimum access rate of memory that is promoted to a fast node, a share of checks.
        HotRate = "hot-rate",
    }

    /// Returns the name that `--param` uses.
    fn name;
    all ALL;
}

impl Knob {
    /// Returns the head of a column.
    pub fn head(self) -> String {
        self.name().replace('-', " ").to_uppercase()
    }

    /// Returns a description in a line.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Age => "how long memory is idle before it is acted on",
            Self::Size => "least size of a cold region",
            Self::Rate => "most access rate that still counts as cold",
            Self::Quota => "bytes that are acted on in a second, or in the scheme's reset interval",
            Self::Density => "least access rate of memory that is made huge",
            Self::Waste => "what huge pages may waste, as a share of the memory",
            Self::HotRate => "least access rate of memory that is promoted",
        }
    }

    /// Whether the knob is tuned by default. The others keep their values: a page-table monitor knows single pages, and
    /// a rate above zero only makes it coarser. Guard and budget pace a scheme as a quota would.
    fn is_usual(self, contexts: &[ContextConfig]) -> bool {
        let mut schemes = contexts.iter().flat_map(|context| &context.schemes);
        match self {
            Self::Age | Self::Density | Self::Waste | Self::HotRate => true,
            Self::Size => schemes.any(|scheme| scheme.action == Action::Pageout),
            Self::Rate | Self::Quota => false,
        }
    }

    fn is_of(self, scheme: &Scheme) -> bool {
        let is_cold = matches!(
            scheme.action,
            Action::Pageout
                | Action::Cold
                | Action::LruDeprio
                | Action::Nohugepage
                | Action::MigrateCold
        );
        match self {
            Self::Age | Self::Size | Self::Rate | Self::Quota => is_cold,
            Self::Density | Self::Waste => scheme.action.makes_huge(),
            Self::HotRate => scheme.action == Action::MigrateHot,
        }
    }

    /// Returns the knobs that the schemes of these contexts have.
    pub fn of(contexts: &[ContextConfig]) -> Vec<Self> {
        let schemes = || contexts.iter().flat_map(|context| &context.schemes);
        let knobs = Self::ALL.into_iter();
        knobs
            .filter(|knob| schemes().any(|scheme| knob.is_of(scheme)))
            .collect()
    }

    /// Returns the knobs of these contexts that are tuned by default.
    pub fn usual_of(contexts: &[ContextConfig]) -> Vec<Self> {
        let knobs = Self::of(contexts).into_iter();
        knobs.filter(|knob| knob.is_usual(contexts)).collect()
    }

    /// Sets the knob to `value` wherever schemes of these contexts have it.
    pub fn apply(self, value: Value, contexts: &mut [ContextConfig]) {
        for context in contexts {
            if !context.schemes.iter().any(|scheme| self.is_of(scheme)) {
                continue;
            }
            if let (Self::Waste, Value::Share(share)) = (self, value) {
                context.own.max_waste = Some(f64::from(share) / 1000.0);
            }
            let schemes = context.schemes.iter_mut();
            schemes
                .filter(|scheme| self.is_of(scheme))
                .for_each(|scheme| self.apply_to(value, scheme));
        }
    }

    /// Returns the value in the first scheme of these contexts that has the knob; `None` if it is given in the
    /// intervals of a monitor.
    pub fn value_in(self, contexts: &[ContextConfig]) -> Option<Value> {
        let permille = |rate: Frequency| match rate {
            Frequency::Percent(percent) => Some(Value::Share((percent * 10.0).round() as u32)),
            Frequency::Samples(0) => Some(Value::Share(0)),
            Frequency::Samples(_) => None,
        };
        let has = |context: &&ContextConfig| context.schemes.iter().any(|s| self.is_of(s));
        let context = contexts.iter().find(has)?;
        let scheme = context.schemes.iter().find(|scheme| self.is_of(scheme))?;
        let pattern = &scheme.pattern;
        match self {
            Self::Age => match pattern.age.min {
                Age::Time(age) => Some(Value::Time(age)),
                Age::Intervals(_) => None,
            },
            Self::Size => Some(Value::Bytes(pattern.size.min)),
            Self::Rate => permille(pattern.nr_accesses.max),
            Self::Density | Self::HotRate => permille(pattern.nr_accesses.min),
            Self::Quota if scheme.quota.bytes == 0 => Some(Value::Bytes(u64::MAX)),
            Self::Quota => Some(Value::Bytes(scheme.quota.bytes)),
            Self::Waste => {
                let share = context.own.max_waste.unwrap_or(MAX_WASTE);
                Some(Value::Share((share * 1000.0).round() as u32))
            }
        }
    }

    fn apply_to(self, value: Value, scheme: &mut Scheme) {
        let rate = |permille: u32| Frequency::Percent(f64::from(permille) / 10.0);
        match (self, value) {
            (Self::Age, Value::Time(age)) => scheme.pattern.age.min = Age::Time(age),
            (Self::Size, Value::Bytes(size)) => scheme.pattern.size.min = size,
            (Self::Rate, Value::Share(share)) => scheme.pattern.nr_accesses.max = rate(share),
            (Self::Density | Self::HotRate, Value::Share(share)) => {
                scheme.pattern.nr_accesses.min = rate(share);
            }
            (Self::Quota, Value::Bytes(bytes)) => {
                let is_none = bytes == u64::MAX;
                scheme.quota.bytes = if is_none { 0 } else { bytes };
                if scheme.quota.reset_interval == Nanos(0) && !is_none {
                    scheme.quota.reset_interval = Nanos::from_millis(1_000);
                }
            }
            // The waste belongs to a context.
            (Self::Waste, Value::Share(_)) => {}
            (knob, value) => unreachable!("{} is never {value}", knob.name()),
        }
    }

    fn default_bounds(self, trace: TraceTimes) -> (Value, Value) {
        match self {
            Self::Age => {
                // Below two scans a trace shows nothing. Of memory that is idle for longer than half of the trace, the
                // later accesses are not known. Scans are never quite a second apart.
                let low = two_digits((2 * trace.interval.0).saturating_sub(LATE.0)).next();
                let low = low.map_or(SECOND, Nanos).max(SECOND);
                let most = Nanos(trace.duration.0 / 2).min(Nanos(2 * MINUTE.0));
                let below = two_digits(low.0).take_while(|age| *age <= most.0 + LATE.0);
                (
                    Value::Time(low),
                    Value::Time(below.last().map_or(low, Nanos)),
                )
            }
            Self::Size => (Value::Bytes(PAGE_SIZE), Value::Bytes(8 * BLOCK_SIZE)),
            Self::Rate => (Value::Share(0), Value::Share(200)),
            Self::Quota => (Value::Bytes(1 << 20), Value::Bytes(u64::MAX)),
            Self::Density | Self::HotRate => (Value::Share(10), Value::Share(1000)),
            Self::Waste => (Value::Share(0), Value::Share(500)),
        }
    }

    fn read(self, text: &str) -> Result<Value, UnitError> {
        match self {
            Self::Age => parse_time(text).map(Value::Time),
            Self::Size => parse_bytes(text).map(|size| Value::Bytes(whole_pages(size))),
            Self::Quota => parse_bytes(text).map(Value::Bytes),
            Self::Rate | Self::Density | Self::Waste | Self::HotRate => {
                parse_share(text).map(|share| Value::Share((share * 1000.0).round() as u32))
            }
        }
    }
}

/// Maximum error of the times of scans.
const LATE: Nanos = Nanos::from_millis(100);

fn whole_pages(size: u64) -> u64 {
    size.checked_next_multiple_of(PAGE_SIZE).unwrap_or(size)
}

/// Times of a trace that limit the values of knobs.
#[derive(Clone, Copy, Debug)]
pub struct TraceTimes {
    /// Time from the first scan to the last.
    pub duration: Nanos,
    /// Mean time between two scans.
    pub interval: Nanos,
}

/// A value of a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "unit", content = "value", rename_all = "snake_case")]
pub enum Value {
    #[serde(rename = "ns")]
    Time(Nanos),
    /// Bytes; 2^64 - 1: no limit.
    Bytes(u64),
    /// Share in thousandths.
    #[serde(rename = "permille")]
    Share(u32),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) => f.write_str(&format_time(*time)),
            Self::Bytes(u64::MAX) => f.write_str("max"),
            Self::Bytes(bytes) => f.write_str(&format_bytes(*bytes)),
            Self::Share(share) => write!(f, "{} %", f64::from(*share) / 10.0),
        }
    }
}

/// A knob and the values that are tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Parameter {
    /// Knob that is tuned.
    pub knob: Knob,
    /// Values, from the least to the most; at least one.
    pub ladder: Vec<Value>,
}

/// An error in a `--param`: its text, and the reason.
#[derive(Debug, Error)]
#[error("--param {text}: {why}")]
pub struct ParamError {
    text: String,
    why: String,
}

/// Maximum number of steps of one parameter: more make no visible difference.
const STEPS_MAX: usize = 1000;

impl Parameter {
    /// Returns a knob with its default range for a trace.
    pub fn default_of(knob: Knob, trace: TraceTimes) -> Self {
        let (low, high) = knob.default_bounds(trace);
        Self {
            knob,
            ladder: ladder(low, high),
        }
    }

    /// Reads `NAME` (the default range), `NAME=LOW..HIGH` (one end may be left out), `NAME=LOW..HIGH:STEPS` or
    /// `NAME=VALUE,VALUE`. `knobs` are the available knobs.
    pub fn parse(text: &str, knobs: &[Knob], trace: TraceTimes) -> Result<Self, ParamError> {
        let (name, values) = match text.split_once('=') {
            Some((name, values)) => (name.trim(), values.trim()),
            None => (text.trim(), ".."),
        };
        let fault = |why: String| ParamError {
            text: text.to_owned(),
            why,
        };
        let knob = knobs.iter().find(|knob| knob.name() == name);
        let knob = *knob.ok_or_else(|| {
            let known = known(knobs);
            fault(format!(
                "there is no '{name}' to tune here; there is\n{known}"
            ))
        })?;
        let read = |value: &str| {
            let value = knob.read(value.trim());
            value.map_err(|error| fault(error.to_string()))
        };
        let Some((low, high)) = values.split_once("..") else {
            let values = values.split(',').filter(|value| !value.trim().is_empty());
            let mut ladder = values.map(read).collect::<Result<Vec<_>, _>>()?;
            ladder.sort_unstable();
            ladder.dedup();
            if ladder.is_empty() {
                let why = "it names no value; write e.g. age=1s..2min or age=5s,10s";
                return Err(fault(why.to_owned()));
            }
            return Ok(Self { knob, ladder });
        };
        let (high, steps) = match high.split_once(':') {
            Some((high, steps)) => (high, Some(steps)),
            None => (high, None),
        };
        let end = |end: &str, usual: Value| match end.trim() {
            "" => Ok(usual),
            end => read(end),
        };
        let usual = knob.default_bounds(trace);
        let (low, high) = (end(low, usual.0)?, end(high, usual.1)?);
        if low > high {
            return Err(fault(format!(
                "the least, {low}, is above the most, {high}; exchange the two, or name both ends"
            )));
        }
        let mut ladder = ladder(low, high);
        if let Some(steps) = steps {
            let count = steps.trim().parse().ok();
            let count = count.filter(|count| (2..=STEPS_MAX).contains(count));
            let count = count.ok_or_else(|| {
                fault(format!(
                    "'{steps}' is no number of steps; write how many values to try, 2 to {STEPS_MAX}, e.g. \
                     age=1s..2min:8"
                ))
            })?;
            ladder = spread(&ladder, count);
        }
        Ok(Self { knob, ladder })
    }
}

fn known(knobs: &[Knob]) -> String {
    let lines = knobs
        .iter()
        .map(|knob| format!("  {:<9} {}", knob.name(), knob.summary()));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns at most `count` of a ladder's values, evenly spread over the ladder, with both ends.
fn spread(ladder: &[Value], count: usize) -> Vec<Value> {
    let last = ladder.len() - 1;
    let at = |step: usize| ladder[(step * last + (count - 1) / 2) / (count - 1)];
    let mut spread: Vec<Value> = (0..count).map(at).collect();
    spread.dedup();
    spread
}

/// Returns the usual steps from `low` to `high`, with both ends.
fn ladder(low: Value, high: Value) -> Vec<Value> {
    let between = |value: &Value| low < *value && *value < high;
    let steps: Vec<Value> = match (low, high) {
        (Value::Time(from), _) => two_digits(from.0)
            .map(|n| Value::Time(Nanos(n)))
            .take_while(|value| *value < high)
            .collect(),
        (Value::Bytes(from), _) => {
            let powers = (12..).take_while(|power| *power < 63);
            let powers = powers.map(|power| Value::Bytes(1 << power));
            // A limit beyond a terabyte is no limit.
            powers
                .filter(|value| *value <= Value::Bytes((1 << 40).max(from)))
                .collect()
        }
        (Value::Share(from), _) => two_digits(u64::from(from))
            .map(|n| Value::Share(n as u32))
            .take_while(|value| *value < high)
            .collect(),
    };
    let mut ladder = vec![low];
    ladder.extend(steps.into_iter().filter(between));
    if high != low {
        ladder.push(high);
    }
    ladder
}

/// Round numbers of two digits, each about a tenth more than the one before.
const STEPS: [u64; 25] = [
    10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 25, 28, 30, 32, 35, 40, 45, 50, 55, 60, 65, 70, 80, 85,
    90,
];

/// Returns [`STEPS`] times powers of ten, from `from` on; below ten, every number.
fn two_digits(from: u64) -> impl Iterator<Item = u64> {
    let large = (0..=17_u32).flat_map(|power| STEPS.map(move |n| n * 10_u64.pow(power)));
    (1..10).chain(large).skip_while(move |n| *n < from)
}

#[cfg(test)]
mod tests;
