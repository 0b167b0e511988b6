//! Names and matches in texts of experiment files.

use regex_lite::Regex;

/// Returns the first group of the last match, or all of the match.
pub(crate) fn last_match<'a>(regex: &str, output: &'a str) -> Option<&'a str> {
    let found = Regex::new(regex).ok()?.captures_iter(output).last()?;
    Some(found.get(1).or_else(|| found.get(0))?.as_str())
}

/// Whether a text can be part of a file's name.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(fits)
}
