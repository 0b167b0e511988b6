//! Parses the kernel's small text files: one number, or lines of a name and a value.

use std::fs;
use std::path::Path;
use std::str::FromStr;

pub(crate) fn number<N: FromStr>(path: impl AsRef<Path>) -> Option<N> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the rest of the first line that begins with `key`, without blanks around it.
pub(crate) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(rest.trim())
}

/// Iterates over the lines of a name, a blank and a number.
pub(crate) fn counters(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name, value.trim().parse().ok()?))
    })
}

pub(crate) fn counter(text: &str, name: &str) -> Option<u64> {
    let found = counters(text).find(|(of, _)| *of == name);
    Some(found?.1)
}
