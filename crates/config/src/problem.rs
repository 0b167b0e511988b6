//! Errors and warnings of a configuration, with their places.

use std::fmt;
use std::ops::Deref;

use thiserror::Error;

/// Limit of the characters that a message quotes.
const SHOWN_MAX: usize = 60;
/// Limit of the collected problems: more are not worth reading.
pub(crate) const PROBLEMS_MAX: usize = 100;

/// Severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be run.
    Error,
    /// The configuration can be run, but may not do what was meant.
    Warning,
}

/// A place in a configuration. Unknown parts are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column in characters, from 1.
    pub column: Option<u32>,
    /// Path of keys, such as `kdamonds[0].contexts[0].schemes[1].action`; empty at the root.
    pub path: String,
}

impl Place {
    pub(crate) fn at(line: u32, column: Option<u32>) -> Self {
        Self {
            line: Some(line),
            column,
            path: String::new(),
        }
    }

    /// Returns the place just after `text`.
    pub(crate) fn at_end_of(text: &str) -> Self {
        let line_start = text.rfind('\n').map_or(0, |newline| newline + 1);
        let column = text[line_start..].chars().count() as u32 + 1;
        Self::at(text.matches('\n').count() as u32 + 1, Some(column))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.column) {
            (Some(line), Some(column)) => write!(f, "line {line}, column {column}")?,
            (Some(line), None) => write!(f, "line {line}")?,
            _ if self.path.is_empty() => return f.write_str("configuration"),
            _ => return f.write_str(&self.path),
        }
        if self.path.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.path)
        }
    }
}

/// One error or warning.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Problem {
    pub severity: Severity,
    pub place: Place,
    pub found: String,
    pub expected: String,
    /// Value that was probably meant.
    pub suggestion: Option<String>,
}

impl Problem {
    pub(crate) fn error(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            place: Place::default(),
            found: found.into(),
            expected: expected.into(),
            suggestion: None,
        }
    }

    pub(crate) fn warning(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(found, expected)
        }
    }

    pub(crate) fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        write!(
            f,
            "{}: found {}, expected {}",
            self.place, self.found, self.expected
        )?;
        match &self.suggestion {
            Some(suggestion) => write!(f, "; did you mean `{suggestion}`?"),
            None => Ok(()),
        }
    }
}

/// All errors and warnings of a configuration. It is never empty when it is returned as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
pub struct Problems(Vec<Problem>);

impl Problems {
    pub(crate) fn new(problems: Vec<Problem>) -> Self {
        Self(problems)
    }

    /// Whether an error prevents the configuration from being run.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|p| p.severity == Severity::Error)
    }

    /// Returns the problems as a list.
    pub fn into_vec(self) -> Vec<Problem> {
        self.0
    }
}

impl Deref for Problems {
    type Target = [Problem];

    fn deref(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

/// Formats `text` for messages: quoted, short, on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(SHOWN_MAX)
        .flat_map(|c| {
            if c.is_control() {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        })
        .collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push_str("...");
    }
    format!("`{shown}`")
}

/// Returns the word of `known` that was probably meant by `word`.
pub(crate) fn nearest(word: &str, known: &[&str]) -> Option<String> {
    // The distance is costly for long words, and no known word is long.
    if word.chars().nth(SHOWN_MAX).is_some() {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace(['-', ' '], "_");
    let word = plain(word);
    known
        .iter()
        .map(|known| (strsim::osa_distance(&word, &plain(known)), *known))
        .filter(|(distance, known)| *distance * 3 <= known.len().max(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known.to_owned())
}

/// Formats a list as "one of a, b, c".
pub(crate) fn one_of(known: &[&str]) -> String {
    format!("one of {}", known.join(", "))
}
