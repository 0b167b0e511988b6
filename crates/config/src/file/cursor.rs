//! Walking the tree: a position in it, its path of keys, and the log of problems.
//!
//! Reading a value either returns it or logs a problem and returns `None`, so that readers go on to the next key. Keys
//! of a map that no reader has requested are unknown keys.

use std::cell::RefCell;

use isotherm_engine::{AddressRange, Nanos};
use isotherm_policy::scheme::Bounds;

use crate::node::{Entry, Mark, Node, Value};
use crate::problem::{PROBLEMS_MAX, Place, Problem, Problems, Severity, nearest, one_of, quoted};
use crate::unit::{self, Read};
use crate::yaml;

/// Key by which damo's older files number everything. damo 3.4.3 ignores it.
const LABEL: &str = "name";

/// Problems of a text.
pub(crate) struct Log<'a> {
    text: &'a str,
    problems: RefCell<Vec<Problem>>,
}

impl<'a> Log<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self {
            text: text.strip_prefix('\u{feff}').unwrap_or(text),
            problems: RefCell::default(),
        }
    }

    /// Adds a problem. An error is kept even when warnings have filled the log.
    pub(crate) fn add(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        let is_error = problem.severity == Severity::Error;
        if problems.len() < PROBLEMS_MAX {
            problems.push(problem);
        } else if is_error && problems.iter().all(|p| p.severity == Severity::Warning) {
            problems.pop();
            problems.push(problem);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.problems.borrow().len() >= PROBLEMS_MAX
    }

    /// Returns the problems in the order of the text.
    pub(crate) fn into_problems(self) -> Problems {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|p| (p.place.line, p.place.column));
        Problems::new(problems)
    }

    fn place(&self, mark: Mark, path: &str) -> Place {
        let place = match mark {
            Mark::Nowhere => Place::default(),
            Mark::Offset(offset) => Place::at_end_of(self.text.get(..offset).unwrap_or_default()),
            Mark::Line(line, column) => Place::at(line, Some(column)),
        };
        Place {
            path: path.to_owned(),
            ..place
        }
    }
}

/// A node with its path.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    node: &'a Node,
    path: String,
    log: &'a Log<'a>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn root(node: &'a Node, log: &'a Log<'a>) -> Self {
        Self {
            node,
            path: String::new(),
            log,
        }
    }

    /// Logs the value found here, and the expected one.
    pub(crate) fn wrong(&self, found: impl Into<String>, expected: impl Into<String>) {
        self.report(Problem::error(found, expected));
    }

    /// Logs the value found here, and what it means in Isotherm.
    pub(crate) fn warn(&self, found: impl Into<String>, expected: impl Into<String>) {
        self.report(Problem::warning(found, expected));
    }

    pub(crate) fn report(&self, problem: Problem) {
        self.report_at(self.node.mark, &self.path, problem);
    }

    fn report_at(&self, mark: Mark, path: &str, problem: Problem) {
        if !self.log.is_full() || problem.severity == Severity::Error {
            self.log.add(problem.at(self.log.place(mark, path)));
        }
    }

    /// Logs a problem at the deepest node along `path` below here that the text has.
    pub(crate) fn report_below(&self, path: &str, problem: Problem) {
        let mut node = self.node;
        let is_separator = |c| matches!(c, '.' | '[' | ']');
        for step in path.split(is_separator).filter(|step| !step.is_empty()) {
            let next = match &node.value {
                Value::Map(entries) => entries.iter().find(|e| e.key == step).map(|e| &e.value),
                Value::List(items) => step.parse().ok().and_then(|index: usize| items.get(index)),
                _ => None,
            };
            let Some(next) = next else { break };
            node = next;
        }
        let separator = if path.is_empty() || self.path.is_empty() {
            ""
        } else {
            "."
        };
        self.report_at(
            node.mark,
            &format!("{}{separator}{path}", self.path),
            problem,
        );
    }

    fn path_to(&self, entry: &Entry) -> String {
        let separator = if self.path.is_empty() { "" } else { "." };
        format!("{}{separator}{}", self.path, shown_key(&entry.key))
    }

    /// Number of problems so far in the whole text.
    pub(crate) fn nr_problems(&self) -> usize {
        self.log.problems.borrow().len()
    }

    /// Returns the map's fields; logs a problem if the value is no map.
    pub(crate) fn map(&self) -> Option<Fields<'a>> {
        if let Value::Map(entries) = &self.node.value {
            return Some(Fields {
                cursor: self.clone(),
                entries,
                asked: RefCell::default(),
                lacking: RefCell::default(),
            });
        }
        self.wrong(self.node.kind(), "a map of keys");
        None
    }

    /// Returns the list's items; logs a problem if the value is no list.
    pub(crate) fn list(&self) -> Vec<Cursor<'a>> {
        let Value::List(items) = &self.node.value else {
            self.wrong(self.node.kind(), "a list");
            return Vec::new();
        };
        let item = |(index, node)| Cursor {
            node,
            path: format!("{}[{index}]", self.path),
            log: self.log,
        };
        items.iter().enumerate().map(item).collect()
    }

    /// Returns the readable items of the list here.
    pub(crate) fn items<T>(&self, read: impl Fn(&Cursor<'a>) -> Option<T>) -> Vec<T> {
        self.list().iter().filter_map(read).collect()
    }

    pub(crate) fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }

    /// Whether the value is a map with this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        matches!(&self.node.value, Value::Map(entries) if entries.iter().any(|e| e.key == key))
    }

    /// Reads the text here, which is YAML, by `read`. Its keys are in lower case.
    pub(crate) fn embedded<T>(&self, read: impl FnOnce(&Cursor) -> Option<T>) -> Option<T> {
        let text = self.text("YAML in a text, as after `config: |`")?;
        let block = self.block(text);
        let place = |mark: Mark| match (mark, block) {
            (Mark::Line(line, column), Some((above, indent))) => {
                Mark::Line(above + line, indent + column)
            }
            _ => self.node.mark,
        };
        let (path, log) = (self.path.clone(), self.log);
        match yaml::parse_within(text, &place) {
            Ok(node) => read(&Cursor {
                node: &node,
                path,
                log,
            }),
            Err(mut problem) => {
                problem.place.path = path;
                log.add(problem);
                None
            }
        }
    }

    /// Returns the number of lines above a block of text and its indentation. Lines of a quoted text are not the file's.
    fn block(&self, text: &str) -> Option<(u32, u32)> {
        let Mark::Line(line, column) = self.node.mark else {
            return None;
        };
        let mut chars = self.log.text.lines().nth(line as usize - 1)?.chars();
        let mut indent = chars.by_ref().take(column as usize - 1);
        let is_block = indent.all(char::is_whitespace) && !matches!(chars.next()?, '"' | '\'');
        // The mark of a block is that of its first line with a character.
        let nr_blank = text.chars().take_while(|c| *c == '\n').count() as u32;
        is_block.then(|| ((line - 1).saturating_sub(nr_blank), column - 1))
    }

    /// Returns the text or number here; logs a problem if the value is neither.
    pub(crate) fn text(&self, expected: &str) -> Option<&'a str> {
        match &self.node.value {
            Value::Text(text) | Value::Number(text) => Some(text),
            _ => {
                self.wrong(self.node.kind(), expected);
                None
            }
        }
    }

    /// Reads the text here by `read`.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&str) -> Read<T>) -> Option<T> {
        // A list or map here is as wrong as a missing text.
        let text = match &self.node.value {
            Value::Text(text) | Value::Number(text) => text,
            _ => "",
        };
        match read(text) {
            Ok(value) => Some(value),
            Err(mut misread) => {
                if text.is_empty() {
                    self.node.kind().clone_into(&mut misread.found);
                }
                self.report(misread);
                None
            }
        }
    }

    pub(crate) fn time(&self, bare: Nanos) -> Option<Nanos> {
        self.read(|text| unit::time(text, bare))
    }

    pub(crate) fn size(&self) -> Option<u64> {
        self.read(unit::size)
    }

    pub(crate) fn count(&self, max: u64) -> Option<u64> {
        self.read(|text| unit::count(text, max))
    }

    pub(crate) fn count_u32(&self) -> Option<u32> {
        self.count(u64::from(u32::MAX)).map(|count| count as u32)
    }

    /// Reads a least and a greatest value, `{min, max}`.
    pub(crate) fn bounds<T>(&self, read: impl Fn(&Cursor<'a>) -> Option<T>) -> Option<Bounds<T>> {
        let fields = self.map()?;
        let (min, max) = (fields.required("min", &read), fields.required("max", &read));
        fields.finish();
        Some(Bounds::new(min?, max?))
    }

    /// Reads a range of addresses, `{start, end}`. The other keys come from damo's snapshots.
    pub(crate) fn range(&self) -> Option<AddressRange> {
        let fields = self.map()?;
        let start = fields.required("start", |c| c.count(u64::MAX));
        let end = fields.required("end", |c| c.count(u64::MAX));
        fields.skip(&["nr_accesses", "age", "probe_hits", "sz_filter_passed"]);
        fields.finish();
        let (start, end) = (start?, end?);
        let range = AddressRange::checked(start, end);
        if range.is_none() {
            self.wrong(
                format!("a range from {start} to {end}"),
                "an end after the start",
            );
        }
        range
    }

    /// Reads a share in parts of `whole`. A fraction of a part is rounded down with a warning, as damo does when it
    /// writes to the kernel.
    pub(crate) fn parts(&self, whole: u64) -> Option<u32> {
        let (value, exact) = self.read(|text| unit::parts(text, whole))?;
        if !exact {
            let found = format!("no whole number of parts in {whole}, which counts as {value}");
            self.report(Problem::warning(found, "whole parts"));
        }
        let value = u32::try_from(value).ok();
        if value.is_none() {
            self.wrong(
                "a share that is too large",
                format!("at most {whole} parts in {whole}"),
            );
        }
        value
    }

    pub(crate) fn flag(&self) -> Option<bool> {
        let word = match &self.node.value {
            Value::Flag(flag) => return Some(*flag),
            Value::Text(text) => text.to_lowercase(),
            _ => String::new(),
        };
        match word.as_str() {
            "y" | "yes" | "true" => return Some(true),
            "n" | "no" | "false" => return Some(false),
            "" => self.wrong(self.node.kind(), "true or false"),
            _ => self.wrong(quoted(&word), "true or false"),
        }
        None
    }

    /// Returns the index in `known` of the word here.
    pub(crate) fn word(&self, known: &[&str]) -> Option<usize> {
        let expected = one_of(known);
        let word = self.text(&expected)?;
        let index = known.iter().position(|known| *known == word);
        if index.is_none() {
            self.report(Problem {
                suggestion: nearest(word, known),
                ..Problem::error(quoted(word), expected)
            });
        }
        index
    }
}

/// The fields of a map, and the keys that readers have requested.
pub(crate) struct Fields<'a> {
    cursor: Cursor<'a>,
    entries: &'a [Entry],
    asked: RefCell<Vec<&'static str>>,
    /// Required keys that are missing.
    lacking: RefCell<Vec<&'static str>>,
}

impl<'a> Fields<'a> {
    /// Returns the value of `key`; `None` if it is missing or null.
    pub(crate) fn get(&self, key: &'static str) -> Option<Cursor<'a>> {
        self.find(key)
            .filter(|c| !matches!(c.node.value, Value::Null))
    }

    /// Returns the value of `key`, which is required; null is a value.
    pub(crate) fn need_key(&self, key: &'static str) -> Option<Cursor<'a>> {
        let found = self.find(key);
        if found.is_none() {
            self.lacking.borrow_mut().push(key);
        }
        found
    }

    /// Returns the value of `key`, which is required and must not be null.
    pub(crate) fn need(&self, key: &'static str) -> Option<Cursor<'a>> {
        let cursor = self.need_key(key)?;
        if matches!(cursor.node.value, Value::Null) {
            cursor.wrong("nothing", format!("a value of `{key}`"));
            return None;
        }
        Some(cursor)
    }

    /// Reads the value of `key`, if there is one.
    pub(crate) fn optional<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&Cursor<'a>) -> Option<T>,
    ) -> Option<T> {
        self.get(key).and_then(|cursor| read(&cursor))
    }

    /// Reads the value of `key`, which is required and must not be null.
    pub(crate) fn required<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&Cursor<'a>) -> Option<T>,
    ) -> Option<T> {
        self.need(key).and_then(|cursor| read(&cursor))
    }

    fn find(&self, key: &'static str) -> Option<Cursor<'a>> {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(self.below(entry))
    }

    fn below(&self, entry: &'a Entry) -> Cursor<'a> {
        Cursor {
            node: &entry.value,
            path: self.cursor.path_to(entry),
            log: self.cursor.log,
        }
    }

    /// Accepts keys of past results: damo writes them into its files and does not read them.
    pub(crate) fn skip(&self, keys: &[&'static str]) {
        self.asked.borrow_mut().extend(keys);
    }

    /// Returns all keys with their values.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'a str, Cursor<'a>)> {
        let entries = self.entries.iter();
        entries.map(|entry| (entry.key.as_str(), self.below(entry)))
    }

    /// Logs every unknown key, and every missing one unless an unknown key is its likely misspelling.
    pub(crate) fn finish(self) {
        self.finish_without(LABEL);
    }

    /// Does the same as [`Self::finish`], and accepts only `label` unread.
    pub(crate) fn finish_without(self, label: &str) {
        let known = self.asked.into_inner();
        let mut lacking = self.lacking.into_inner();
        for entry in self.entries {
            if entry.key == label || known.contains(&entry.key.as_str()) {
                continue;
            }
            let suggestion = nearest(&entry.key, &known);
            lacking.retain(|key| suggestion.as_deref() != Some(key));
            let found = format!("the unknown key {}", quoted(&entry.key));
            let path = self.cursor.path_to(entry);
            let problem = Problem {
                suggestion,
                ..Problem::error(found, one_of(&known))
            };
            self.cursor.report_at(entry.mark, &path, problem);
        }
        for key in lacking {
            self.cursor
                .wrong(format!("no key `{key}`"), format!("`{key}` here"));
        }
    }
}

/// Returns a key as part of a path: short, and without characters that would break the line.
fn shown_key(key: &str) -> String {
    quoted(key).trim_matches('`').to_owned()
}
