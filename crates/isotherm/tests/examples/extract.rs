//! Finds the commands in help texts and documents, so that they can be parsed and run.
//!
//! In help, a line `Example:` or `Examples:` begins a list of commands, indented by two; `Then:` precedes one. In
//! documents, a block indented by four or fenced holds them. Two spaces separate a command from its comment, which may
//! begin with `#`. A comment continues below itself in the next line, which is no command. So the first word of every
//! line is checked.

use std::path::{Path, PathBuf};

/// A command line of an example: one or more programs, joined by `|`, `&&` or `;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Its place in the text, for messages.
    pub(crate) place: String,
    /// Its text, without the comment.
    pub(crate) text: String,
    /// Its width with indentation and comment, in characters.
    pub(crate) width: usize,
}

/// Returns the command lines of a help text's examples.
pub(crate) fn of_help(place: &str, help: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut is_example = false;
    for line in help.lines() {
        if let Some(then) = line.strip_prefix("Then: ") {
            lines.push(new_line(place, then));
        } else if line.starts_with("Example") {
            is_example = true;
        } else if !line.starts_with("  ") {
            is_example = false;
        } else if is_example {
            lines.push(new_line(place, line));
        }
    }
    lines
}

/// Returns every document below `folder`, in the order of their paths. The book's list of chapters is left out, as its
/// lines may be indented like a block.
pub(crate) fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut documents = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of documents") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            documents.extend(self::documents(&path));
        } else if path.extension().is_some_and(|end| end == "md") && !path.ends_with("SUMMARY.md") {
            documents.push(path);
        }
    }
    documents.sort();
    documents
}

/// Languages of fenced blocks that hold no commands.
const OTHERS: [&str; 4] = ["python", "yaml", "promql", "text"];

/// Returns the lines in the blocks of a document. A list's own text, indented by three or less, is no block.
/// `python/tests/test_docs.py` runs the blocks of Python; those of YAML and PromQL resemble the ones that
/// `tests/observe` runs; those of text are output of commands.
pub(crate) fn of_document(place: &str, text: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let (mut is_fenced, mut is_other) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let place = format!("{place}:{}", index + 1);
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            is_other = is_fenced
                && OTHERS
                    .iter()
                    .any(|name| line.trim_start() == format!("```{name}"));
        } else if !is_other && !line.trim().is_empty() && (is_fenced || line.starts_with("    ")) {
            lines.push(new_line(&place, line));
        }
    }
    lines
}

impl Line {
    /// Returns the programs that it starts, each with its arguments, without quotes and without files that output goes
    /// to.
    pub(crate) fn programs(&self) -> Vec<Vec<String>> {
        let mut programs = vec![Vec::new()];
        let mut is_target = false;
        for word in words(&self.text) {
            match word.as_str() {
                "|" | "&&" | ";" => programs.push(Vec::new()),
                // `&` ends the line.
                "&" => {}
                ">" => is_target = true,
                _ if is_target => is_target = false,
                _ => programs.last_mut().expect("at least one").push(word),
            }
        }
        for program in &mut programs {
            if program.first().is_some_and(|word| word == "sudo") {
                program.remove(0);
            }
        }
        programs
    }
}

fn new_line(place: &str, line: &str) -> Line {
    let width = line.chars().count();
    let line = line.trim();
    let comment = line.find("  ").into_iter().chain(line.find(" # ")).min();
    Line {
        place: place.to_owned(),
        width,
        text: line[..comment.unwrap_or(line.len())].to_owned(),
    }
}

/// Splits words as a shell does, as far as examples need it: quotes, and operators of their own.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in text.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ';') => {
                words.extend(word.take());
                words.push(";".to_owned());
            }
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}
