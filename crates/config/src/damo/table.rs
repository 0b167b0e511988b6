//! The tables of the page, and damo's words by them.

use super::{DamoError, hint};

const PAGE: &str = include_str!("../../../../docs/reference/damo.md");

/// Verdict of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Same,
    Better,
    Absent,
    Refused,
}

/// A command or an option of damo's.
#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    /// Commands that have the option.
    commands: Vec<&'a str>,
    /// Its names, the longest first; a positional word has the name of its value.
    pub(super) names: Vec<&'a str>,
    /// Names of its values.
    pub(super) values: Vec<&'a str>,
    pub(super) verdict: Verdict,
    /// Words of Isotherm's.
    pub(super) ours: &'a str,
    pub(super) note: &'a str,
    /// Whether it is a part of a configuration.
    pub(super) is_parameter: bool,
}

impl Row<'_> {
    pub(super) fn name(&self) -> &str {
        self.names[0]
    }

    pub(super) fn words(&self) -> Vec<String> {
        self.ours.split_whitespace().map(str::to_owned).collect()
    }

    pub(super) fn is_positional(&self) -> bool {
        !self.name().starts_with('-')
    }

    /// Returns the number of its values; `None` if it takes as many as follow.
    fn nr_values(&self) -> Option<usize> {
        let is_open = self.values.last() == Some(&"...");
        (!is_open).then_some(self.values.len() + usize::from(self.is_positional()))
    }
}

/// An option with its values.
pub(super) struct Given<'t> {
    pub(super) row: &'t Row<'t>,
    pub(super) values: Vec<String>,
}

/// All tables: the commands, and the options.
pub(super) struct Table {
    commands: Vec<Row<'static>>,
    options: Vec<Row<'static>>,
}

impl Table {
    pub(super) fn parse() -> Self {
        let (mut all, mut options) = (Vec::new(), Vec::new());
        for section in PAGE.split("\n## ").skip(1) {
            let heading = section.lines().next().unwrap_or_default();
            let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
            if heading == "Commands" {
                all.extend(rows.flat_map(|line| rows_of(line, None)));
            } else {
                options.extend(rows.flat_map(|line| rows_of(line, Some(heading))));
            }
        }
        Self {
            commands: all,
            options,
        }
    }

    pub(super) fn commands(&self) -> impl Iterator<Item = &Row<'static>> {
        self.commands.iter()
    }

    /// Returns the options of a command.
    pub(super) fn options_of(&self, command: &str) -> impl Iterator<Item = &Row<'static>> {
        let options = self.options.iter();
        options.filter(move |row| row.commands.contains(&command))
    }

    /// Returns the command that `words` begin with, the longest, and the words after it.
    pub(super) fn command<'t, 'w>(
        &'t self,
        words: &'w [String],
    ) -> Result<(&'t Row<'static>, &'w [String]), DamoError> {
        for nr in (1..=words.len().min(3)).rev() {
            let name = words[..nr].join(" ");
            if let Some(row) = self.commands().find(|row| row.name() == name) {
                return Ok((row, &words[nr..]));
            }
        }
        let known: Vec<&str> = self.commands().map(Row::name).collect();
        Err(DamoError::Command {
            word: words.iter().take(2).cloned().collect::<Vec<_>>().join(" "),
            known: known.join(", "),
        })
    }

    /// Divides the words after a command into options with their values. As in damo, a name may be cut short.
    pub(super) fn options<'t>(
        &'t self,
        command: &Row<'_>,
        words: &[String],
    ) -> Result<Vec<Given<'t>>, DamoError> {
        let rows: Vec<&Row<'_>> = self.options_of(command.name()).collect();
        let mut positional = rows.iter().copied().filter(|row| row.is_positional());
        let mut rest = words.iter().peekable();
        let mut given = Vec::new();
        while let Some(word) = rest.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let row = if name.starts_with('-') && name.len() > 1 {
                find(&rows, name)
            } else {
                positional.next()
            };
            let Some(row) = row else {
                let known: Vec<&str> = rows.iter().flat_map(|row| row.names.clone()).collect();
                return Err(DamoError::Option {
                    command: command.name().to_owned(),
                    word: word.clone(),
                    hint: hint(name, &known),
                });
            };
            let mut values: Vec<String> = value.into_iter().collect();
            if row.is_positional() {
                values.push(word.clone());
            }
            let has_all = |nr| row.nr_values().is_some_and(|wanted| nr >= wanted);
            while !has_all(values.len())
                && let Some(value) = rest.next_if(|word| !is_option(&rows, word))
            {
                values.push(value.clone());
            }
            check_number(row, values.len())?;
            given.push(Given { row, values });
        }
        Ok(given)
    }
}

fn check_number(row: &Row<'_>, nr: usize) -> Result<(), DamoError> {
    let wanted = match row.nr_values() {
        Some(wanted) if nr == wanted => return Ok(()),
        None if nr > 0 => return Ok(()),
        Some(0) => "no value".to_owned(),
        Some(1) => "a value".to_owned(),
        Some(wanted) => format!("{wanted} values"),
        None => "at least one value".to_owned(),
    };
    Err(DamoError::Values {
        option: row.name().to_owned(),
        wanted,
    })
}

/// Returns the option of this name, or the only one whose name begins so.
fn find<'t>(rows: &[&'t Row<'t>], name: &str) -> Option<&'t Row<'t>> {
    let has_name = |row: &&&Row<'_>| row.names.contains(&name);
    if let Some(row) = rows.iter().find(has_name) {
        return Some(row);
    }
    let begins = |row: &&&Row<'_>| name.starts_with("--") && row.name().starts_with(name);
    let mut rows = rows.iter().filter(begins);
    rows.next().filter(|_| rows.next().is_none()).copied()
}

/// Whether a word is an option, not the value of one: values may be negative.
fn is_option(rows: &[&Row<'_>], word: &str) -> bool {
    let name = word.split('=').next().unwrap_or_default();
    word.starts_with("--") || word.starts_with('-') && find(rows, name).is_some()
}

/// Returns the rows of a line, without its first quote. A cell may name several options; the commands that have them are
/// in the `heading` of the table, or before a colon. Without a heading the rows are commands.
fn rows_of(line: &'static str, heading: Option<&'static str>) -> Vec<Row<'static>> {
    let Some((names, rest)) = line.split_once("` | ") else {
        return Vec::new();
    };
    let before_colon = names.split_once(": ");
    let (commands, names) = if let Some((commands, names)) = before_colon {
        (commands.split(", ").collect(), names)
    } else {
        let quoted = heading.unwrap_or_default().split('`');
        (quoted.skip(1).step_by(2).collect::<Vec<_>>(), names)
    };
    let cells: Vec<&str> = rest
        .trim_end_matches('|')
        .split('|')
        .map(str::trim)
        .collect();
    let cell = |at: usize| cells.get(at).copied().unwrap_or_default();
    let verdict = match cell(0) {
        "same" => Verdict::Same,
        "better" => Verdict::Better,
        "absent" => Verdict::Absent,
        _ => Verdict::Refused,
    };
    let rows = names.split("`, `").map(|words| {
        let (name, values) = words.split_once(' ').unwrap_or((words, ""));
        let (name, values) = if heading.is_none() {
            (words, "")
        } else {
            (name, values)
        };
        Row {
            names: name.split('/').collect(),
            values: values.split_whitespace().collect(),
            verdict,
            ours: cell(1).trim_matches('`'),
            note: cell(2),
            is_parameter: heading.is_some_and(|heading| heading.starts_with("Parameters")),
            commands: commands.clone(),
        }
    });
    rows.collect()
}

/// Returns the percentiles of damo's `--range START STOP STEP`.
pub(super) fn percentiles(values: &[String]) -> Result<String, DamoError> {
    let numbers: Result<Vec<u32>, _> = values.iter().map(|value| value.parse()).collect();
    match numbers.as_deref() {
        Ok([start, stop, step]) if *step > 0 && *stop <= 101 && start < stop => {
            let all = (*start..*stop).step_by(*step as usize);
            Ok(all.map(|nr| nr.to_string()).collect::<Vec<_>>().join(","))
        }
        _ => Err(DamoError::Values {
            option: "--range".to_owned(),
            wanted: "three numbers: from 0, to 101 at most, and a step".to_owned(),
        }),
    }
}
