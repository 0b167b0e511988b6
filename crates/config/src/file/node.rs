//! A tree of keys and values with their positions in the text. JSON and YAML are both parsed to one, and the writer
//! makes one.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// Limit of the nesting depth. damo's texts reach 10.
pub(crate) const DEPTH_MAX: usize = 32;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The node is in no text.
    #[default]
    Nowhere,
    /// Offset in bytes. Lines are counted only when a problem is shown.
    Offset(usize),
    /// Line and column, from 1.
    Line(u32, u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) mark: Mark,
    pub(crate) value: Value,
}

/// A value. Numbers stay text: their units are not known here, and all digits are kept.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Flag(bool),
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) mark: Mark,
    pub(crate) value: Node,
}

impl Node {
    /// Kind of the value, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Flag(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map of keys",
        }
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self {
            mark: Mark::Nowhere,
            value,
        }
    }
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Value::Text(text).into()
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned()).into()
    }
}

impl From<bool> for Node {
    fn from(flag: bool) -> Self {
        Value::Flag(flag).into()
    }
}

impl From<u64> for Node {
    fn from(number: u64) -> Self {
        Value::Number(number.to_string()).into()
    }
}

impl<T: Into<Node>> From<Option<T>> for Node {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null.into(), Into::into)
    }
}

/// Makes a map in the given order.
pub(crate) fn map<const N: usize>(entries: [(&str, Node); N]) -> Node {
    map_of(entries)
}

/// Makes a map of any number of entries.
pub(crate) fn map_of<'a>(entries: impl IntoIterator<Item = (&'a str, Node)>) -> Node {
    let entry = |(key, value): (&str, Node)| Entry {
        key: key.to_owned(),
        mark: Mark::Nowhere,
        value,
    };
    Value::Map(entries.into_iter().map(entry).collect()).into()
}

pub(crate) fn list(items: impl IntoIterator<Item = Node>) -> Node {
    Value::List(items.into_iter().collect()).into()
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            Value::Null => serializer.serialize_none(),
            Value::Flag(flag) => serializer.serialize_bool(*flag),
            // The writer makes whole numbers only; other numbers from a text stay text.
            Value::Number(number) => match number.parse::<u64>() {
                Ok(number) => serializer.serialize_u64(number),
                Err(_) => serializer.serialize_str(number),
            },
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(items) => serializer.collect_seq(items),
            Value::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for entry in entries {
                    map.serialize_entry(&entry.key, &entry.value)?;
                }
                map.end()
            }
        }
    }
}
