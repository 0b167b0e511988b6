//! Results as JSON, with a version.

use serde::Serialize;

/// The version of results as JSON. New keys may appear within it; none changes its meaning.
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
    /// Of a result that has none itself.
    pub const fn new(result: &'a T) -> Self {
        Self {
            version: VERSION,
            result,
        }
    }
}
