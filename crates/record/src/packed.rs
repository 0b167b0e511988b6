//! Lists that are one string in JSON: base64 (RFC 4648) of zlib (RFC 1950) of their values, mostly LEB128 numbers. A
//! value may be encoded by its difference from the one before.

use std::io::{Read, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Deserializer, Serializer, de, ser};

/// A value of a packed list.
pub(crate) trait Packed: Copy {
    /// The message about a value that is cut, or cannot be.
    const CUT: &'static str;
    /// The largest number of bytes that a list unpacks to, and the message about more.
    const BYTES: (u64, &'static str) = (16 << 20, "more stacks or samples than an item can have");
    /// The largest number of values, and the message about more.
    const LIMIT: (usize, &'static str) = (usize::MAX, "too many values");

    /// Appends the value. Fails if it cannot follow `before`.
    fn push(&self, before: Option<&Self>, bytes: &mut Vec<u8>) -> Result<(), String>;

    /// Takes the next value. Returns `None` if it is cut, or cannot be.
    fn take(rest: &mut &[u8], before: Option<&Self>) -> Option<Self>;
}

pub(crate) fn serialize<T: Packed, S: Serializer>(
    list: &[T],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    let mut bytes = Vec::new();
    let mut before = None;
    for value in list {
        bytes.clear();
        value.push(before, &mut bytes).map_err(ser::Error::custom)?;
        encoder.write_all(&bytes).map_err(ser::Error::custom)?;
        before = Some(value);
    }
    let packed = encoder.finish().map_err(ser::Error::custom)?;
    serializer.serialize_str(&BASE64_STANDARD.encode(packed))
}

pub(crate) fn deserialize<'de, T: Packed, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = unpack(&text, T::BYTES).map_err(de::Error::custom)?;
    let mut rest = &bytes[..];
    let mut list: Vec<T> = Vec::new();
    let (most, too_many) = T::LIMIT;
    while !rest.is_empty() {
        if list.len() >= most {
            return Err(de::Error::custom(too_many));
        }
        let value = T::take(&mut rest, list.last());
        list.push(value.ok_or_else(|| de::Error::custom(T::CUT))?);
    }
    Ok(list)
}

#[cfg(test)]
pub(crate) fn pack(bytes: &[u8]) -> std::io::Result<String> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    Ok(BASE64_STANDARD.encode(encoder.finish()?))
}

/// Unpacks at most `most` bytes; fails with `too_long` if there are more.
fn unpack(text: &str, (most, too_long): (u64, &str)) -> Result<Vec<u8>, String> {
    let packed = BASE64_STANDARD
        .decode(text)
        .map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    ZlibDecoder::new(&packed[..])
        .take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(too_long.to_owned());
    }
    Ok(bytes)
}

/// Appends a number as LEB128.
pub(crate) fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

pub(crate) fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Returns a difference in zigzag encoding: small differences of either sign are small numbers.
pub(crate) fn difference(before: u64, now: u64) -> u64 {
    let signed = now.wrapping_sub(before) as i64;
    (signed << 1 ^ signed >> 63) as u64
}

pub(crate) fn apply(before: u64, difference: u64) -> u64 {
    let signed = (difference >> 1) as i64 ^ -((difference & 1) as i64);
    before.wrapping_add(signed as u64)
}
