//! Results as JSON, with a version.

use serde::Serialize;

/// Version of results as JSON. Within a version new keys may appear, and no key changes its meaning.
const VERSION: u32 = 1;

/// A result with its version.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    result: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    /// Adds the version to a result without one.
    pub const fn new(result: &'a T) -> Self {
        Self {
            version: VERSION,
            result,
        }
    }
}
