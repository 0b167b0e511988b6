//! Shared by the tests: units, schemes and contexts.

use isotherm_engine::Nanos;
use isotherm_engine::scheme::{AccessPattern, Action, Age, Bounds, Frequency, Scheme};
use isotherm_sim::simulation::{SimContextSpec, Watch};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn seconds(n: u64) -> Nanos {
    Nanos::from_millis(1000 * n)
}

/// A scheme for memory that has been accessed in this share of the checks for at least `age`.
pub(crate) fn scheme(action: Action, percent: (f64, f64), age: Nanos) -> Scheme {
    let pattern = AccessPattern {
        nr_accesses: Bounds::new(Frequency::Percent(percent.0), Frequency::Percent(percent.1)),
        age: Bounds::new(Age::Time(age), Age::Time(Nanos(u64::MAX))),
        ..AccessPattern::ANY
    };
    Scheme::new(pattern, action)
}

pub(crate) fn context(watch: Watch, schemes: Vec<Scheme>) -> SimContextSpec {
    SimContextSpec::new(watch, schemes)
}
