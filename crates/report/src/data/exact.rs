//! Whole numbers in JSON that no reader rounds: many readers store them as floating-point numbers, which are exact up
//! to 2^53.

use isotherm_engine::{AddressRange, Nanos};
use serde::{Serialize, Serializer};

/// The largest exact number: a reader of JSON may round a larger one.
const EXACT_MAX: u64 = 1 << 53;

/// Writes a point in time since the Unix epoch as decimal text.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn epoch<S: Serializer>(time: &Nanos, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(&time.0)
}

/// Writes an address as a number, or as decimal text where a number is not exact.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn address<S: Serializer>(address: &u64, out: S) -> Result<S::Ok, S::Error> {
    if *address > EXACT_MAX {
        out.collect_str(address)
    } else {
        out.serialize_u64(*address)
    }
}

#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Ends {
    /// First address.
    #[cfg_attr(feature = "schema", schemars(with = "Address"))]
    #[serde(serialize_with = "address")]
    start: u64,
    /// First address behind the range.
    #[cfg_attr(feature = "schema", schemars(with = "Address"))]
    #[serde(serialize_with = "address")]
    end: u64,
}

/// The form of an address in JSON.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum Address {
    /// A number up to 2^53.
    Number(u64),
    /// Decimal text above 2^53.
    Text(String),
}

/// Writes the two ends of a range, each as an [`address`].
pub(crate) fn range<S: Serializer>(range: &AddressRange, out: S) -> Result<S::Ok, S::Error> {
    let AddressRange { start, end } = *range;
    Ends { start, end }.serialize(out)
}
