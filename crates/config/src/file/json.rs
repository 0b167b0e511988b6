//! Parser from JSON to a [`Node`].
//!
//! serde_json reads one level at a time and returns each value as its piece of the text; the address of the piece gives
//! the value's position. Every level is scanned again for the next, which the depth limit bounds.

use std::fmt;

use serde::de::{Deserialize, Deserializer as _, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::node::{DEPTH_MAX, Entry, Mark, Node, Value};
use crate::problem::{Place, Problem, quoted};

pub(crate) fn parse(text: &str) -> Result<Node, Problem> {
    let raw: &RawValue = serde_json::from_str(text).map_err(|error| {
        let place = Place::at(error.line() as u32, Some(error.column() as u32));
        Problem::error(reason(&error), "JSON").at(place)
    })?;
    Parser { text }.node(raw, 0)
}

struct Parser<'a> {
    text: &'a str,
}

impl<'a> Parser<'a> {
    fn node(&self, raw: &'a RawValue, depth: usize) -> Result<Node, Problem> {
        let json = raw.get();
        let offset = self.offset(json);
        if depth > DEPTH_MAX {
            return Err(self.fault(
                offset,
                "deeper nesting",
                &format!("at most {DEPTH_MAX} levels"),
            ));
        }
        let value = match json.as_bytes().first() {
            Some(b'{') => self.map(json, depth)?,
            Some(b'[') => {
                let items: Vec<&RawValue> = self.read(json)?;
                let items = items.into_iter().map(|item| self.node(item, depth + 1));
                Value::List(items.collect::<Result<_, _>>()?)
            }
            Some(b'"') => Value::Text(self.read(json)?),
            Some(b't') => Value::Flag(true),
            Some(b'f') => Value::Flag(false),
            Some(b'n') => Value::Null,
            _ => Value::Number(json.to_owned()),
        };
        let mark = Mark::Offset(offset);
        Ok(Node { mark, value })
    }

    fn map(&self, json: &'a str, depth: usize) -> Result<Value, Problem> {
        let members = serde_json::Deserializer::from_str(json).deserialize_map(Members);
        let members = members.map_err(|error| self.unreadable(json, &error))?;
        let mut seen = std::collections::BTreeSet::new();
        let mut entries = Vec::with_capacity(members.len());
        for (piece, key, raw) in members {
            // A key with escapes has the place of its value.
            let is_plain = !piece.get().contains('\\');
            let offset = self.offset(if is_plain { piece.get() } else { raw.get() });
            if !seen.insert(key.clone()) {
                let found = format!("the key {} again", quoted(&key));
                return Err(self.fault(offset, &found, "each key once"));
            }
            entries.push(Entry {
                key,
                mark: Mark::Offset(offset),
                value: self.node(raw, depth + 1)?,
            });
        }
        Ok(Value::Map(entries))
    }

    /// Reads a piece of the text.
    fn read<T: Deserialize<'a>>(&self, json: &'a str) -> Result<T, Problem> {
        serde_json::from_str(json).map_err(|error| self.unreadable(json, &error))
    }

    fn unreadable(&self, json: &str, error: &serde_json::Error) -> Problem {
        self.fault(self.offset(json), &reason(error), "JSON")
    }

    /// Returns the offset of a piece in the text.
    fn offset(&self, piece: &str) -> usize {
        (piece.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize)
    }

    fn fault(&self, offset: usize, found: &str, expected: &str) -> Problem {
        let place = Place::at_end_of(self.text.get(..offset).unwrap_or_default());
        Problem::error(found, expected).at(place)
    }
}

/// Returns serde_json's message without the position, which is reported separately.
fn reason(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    format!("what cannot be read ({})", &message[..end])
}

/// Reads the members of a map in order, including repeated ones: the piece of each key, the key, and the value's piece.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(&'de RawValue, String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((piece, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            let key = serde_json::from_str(piece.get()).map_err(A::Error::custom)?;
            members.push((piece, key, value));
        }
        Ok(members)
    }
}
