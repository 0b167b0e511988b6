//! Parser from YAML to a [`Node`], by saphyr-parser's events.
//!
//! Plain scalars are read as PyYAML's safe loader does where that matters: `null` and `~` are nothing, `true` and
//! `false` are flags. All others, numbers included, stay text until their unit is known. Aliases are copied, as PyYAML
//! writes them for equal objects, up to [`NODES_MAX`] nodes in all. Merge keys and tags other than YAML's own are
//! refused.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use crate::node::{DEPTH_MAX, Entry, Mark, Node, Value};
use crate::problem::{Place, Problem, quoted};

/// Limit of a tree's nodes. A text within the size limit has fewer without aliases.
const NODES_MAX: usize = 1 << 20;

pub(crate) fn parse(text: &str) -> Result<Node, Problem> {
    read(text, Builder::default())
}

/// Parses a text that stands in another one, where `place` says. Keys are in lower case.
pub(crate) fn parse_within(text: &str, place: &dyn Fn(Mark) -> Mark) -> Result<Node, Problem> {
    let place = Some(place);
    read(
        text,
        Builder {
            place,
            ..Builder::default()
        },
    )
}

fn read(text: &str, mut builder: Builder) -> Result<Node, Problem> {
    let mut nr_documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let found = format!("what cannot be read ({})", error.info());
            let mark = mark(error.marker().line(), error.marker().col());
            fault(builder.place(mark), &found, "YAML")
        })?;
        let mark = builder.place(of(span));
        if matches!(event, Event::DocumentStart(_)) {
            nr_documents += 1;
            if nr_documents > 1 {
                return Err(fault(mark, "a second document", "one configuration"));
            }
        }
        builder.take(event, mark)?;
    }
    Ok(builder.root.unwrap_or(Value::Null.into()))
}

/// An incomplete list or map.
struct Open {
    node: Node,
    anchor: usize,
    /// Key of the next value in a map.
    key: Option<(String, Mark)>,
    keys: std::collections::BTreeSet<String>,
}

#[derive(Default)]
struct Builder<'p> {
    /// Place of a mark in the outer text, if there is one.
    place: Option<&'p dyn Fn(Mark) -> Mark>,
    open: Vec<Open>,
    root: Option<Node>,
    /// Node, number of nodes and depth by anchor.
    anchors: BTreeMap<usize, (Node, usize, usize)>,
    nr_nodes: usize,
}

impl Builder<'_> {
    fn place(&self, mark: Mark) -> Mark {
        self.place.map_or(mark, |place| place(mark))
    }

    fn take(&mut self, event: Event<'_>, mark: Mark) -> Result<(), Problem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                check_tag(tag.as_deref(), mark)?;
                let is_text = style != ScalarStyle::Plain || tag.is_some_and(|t| t.suffix == "str");
                let value = scalar(&text, is_text);
                self.complete(Node { mark, value }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), mark)?;
                self.begin(Value::List(Vec::new()), mark, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), mark)?;
                self.begin(Value::Map(Vec::new()), mark, anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.complete(open.node, open.anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => self.alias(anchor, mark),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, value: Value, mark: Mark, anchor: usize) -> Result<(), Problem> {
        if self.open.len() >= DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX} levels");
            return Err(fault(mark, "deeper nesting", &expected));
        }
        if self.open.last().is_some_and(Open::wants_key) {
            return Err(fault(mark, "a list or map as a key", "a word as a key"));
        }
        self.open.push(Open {
            node: Node { mark, value },
            anchor,
            key: None,
            keys: std::collections::BTreeSet::new(),
        });
        Ok(())
    }

    fn alias(&mut self, anchor: usize, mark: Mark) -> Result<(), Problem> {
        let Some(&(_, nr_nodes, depth)) = self.anchors.get(&anchor) else {
            return Err(fault(mark, "an alias inside of itself", "a complete value"));
        };
        if self.open.len() + depth > DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX} levels");
            return Err(fault(mark, "deeper nesting", &expected));
        }
        self.count(nr_nodes, mark)?;
        let value = self.anchors[&anchor].0.value.clone();
        let copy = Node { mark, value };
        self.complete(copy, 0)
    }

    fn count(&mut self, nr_nodes: usize, mark: Mark) -> Result<(), Problem> {
        self.nr_nodes = self.nr_nodes.saturating_add(nr_nodes);
        if self.nr_nodes > NODES_MAX {
            let expected = format!("at most {NODES_MAX} values, with aliases written out");
            return Err(fault(mark, "more values", &expected));
        }
        Ok(())
    }

    /// Adds a complete node to the innermost open list or map.
    fn complete(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        self.count(1, node.mark)?;
        if anchor > 0 {
            let (nr_nodes, depth) = measure(&node);
            // The copy kept for aliases counts too.
            self.count(nr_nodes, node.mark)?;
            self.anchors.insert(anchor, (node.clone(), nr_nodes, depth));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.value, open.key.take()) {
            (Value::List(items), _) => items.push(node),
            (Value::Map(entries), Some((key, mark))) => entries.push(Entry {
                key,
                mark,
                value: node,
            }),
            (_, _) => open.set_key(node, self.place.is_some())?,
        }
        Ok(())
    }
}

impl Open {
    fn wants_key(&self) -> bool {
        matches!(self.node.value, Value::Map(_)) && self.key.is_none()
    }

    fn set_key(&mut self, node: Node, in_lower_case: bool) -> Result<(), Problem> {
        let (Value::Text(mut key) | Value::Number(mut key)) = node.value else {
            let found = format!("{} as a key", node.kind());
            return Err(fault(node.mark, &found, "a word as a key"));
        };
        if in_lower_case {
            key.make_ascii_lowercase();
        }
        if key == "<<" {
            return Err(fault(node.mark, "a merge key", "the keys written out"));
        }
        if !self.keys.insert(key.clone()) {
            let found = format!("the key {} again", quoted(&key));
            return Err(fault(node.mark, &found, "each key once"));
        }
        self.key = Some((key, node.mark));
        Ok(())
    }
}

fn scalar(text: &str, is_text: bool) -> Value {
    match text {
        _ if is_text => Value::Text(text.to_owned()),
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Flag(true),
        "false" | "False" | "FALSE" => Value::Flag(false),
        _ => Value::Text(text.to_owned()),
    }
}

/// Returns the number of nodes and the depth of a tree, which never exceeds [`DEPTH_MAX`].
fn measure(node: &Node) -> (usize, usize) {
    let sum =
        |(nodes, depth): (usize, usize), (n, d): (usize, usize)| (nodes + n, depth.max(d + 1));
    match &node.value {
        Value::List(items) => items.iter().map(measure).fold((1, 1), sum),
        Value::Map(entries) => entries.iter().map(|e| measure(&e.value)).fold((1, 1), sum),
        _ => (1, 0),
    }
}

fn check_tag(tag: Option<&Tag>, mark: Mark) -> Result<(), Problem> {
    const PLAIN: [&str; 7] = ["str", "int", "float", "bool", "null", "seq", "map"];
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && PLAIN.contains(&tag.suffix.as_str())) => {
            let found = format!(
                "the tag {}",
                quoted(&format!("{}{}", tag.handle, tag.suffix))
            );
            Err(fault(mark, &found, "a plain value"))
        }
        _ => Ok(()),
    }
}

fn of(span: Span) -> Mark {
    mark(span.start.line(), span.start.col())
}

/// saphyr counts columns from 0.
fn mark(line: usize, column: usize) -> Mark {
    Mark::Line(line as u32, column as u32 + 1)
}

fn fault(mark: Mark, found: &str, expected: &str) -> Problem {
    let problem = Problem::error(found, expected);
    match mark {
        Mark::Line(line, column) => problem.at(Place::at(line, Some(column))),
        _ => problem,
    }
}
