//! damo's command lines, and the commands of Isotherm's that do the same.
//!
//! The tables of `docs/reference/damo.md` decide: a row has a command or option of damo's, a verdict, and words of
//! Isotherm's. Only the parameters of DAMON, which become a file of kdamonds, need more (`parameters.rs`).

mod parameters;
mod table;
mod values;

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::problem::nearest;
use parameters::Parameters;
use table::{Given, Row, Table, Verdict};

/// Values of an option.
type Values = Vec<String>;

/// Record that damo writes and reads by default.
const RECORD: &str = "damon.data";
/// Record that a conversion writes by default.
const CONVERTED: &str = "converted.data";
/// Place of the file of kdamonds in a command.
pub const DAMO_CONFIG: &str = "{config}";

/// A command of Isotherm's that does what one of damo's does.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DamoTranslation {
    /// Its words, without the program's name; the word [`DAMO_CONFIG`] stands for a file that holds `configuration`.
    pub command: Vec<String>,
    /// Kdamonds, as damo's JSON has them.
    pub configuration: Option<Value>,
    /// Differences from damo, by its words.
    pub differences: Vec<String>,
}

/// Reason why a command line of damo's has no translation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DamoError {
    #[error("damo 3.4.3 has no command '{word}'; it has {known}")]
    Command { word: String, known: String },
    #[error("`damo {command}` of 3.4.3 has no option '{word}'{hint}")]
    Option {
        command: String,
        word: String,
        hint: String,
    },
    #[error("`{option}` of damo needs {wanted}")]
    Values { option: String, wanted: String },
    #[error("Isotherm does not do `damo {what}`: {instead}")]
    Refused { what: String, instead: String },
}

/// Translates the words of a command line of damo's, without `damo` itself. With `is_kernel`, the kernel's DAMON watches
/// and acts.
///
/// # Errors
/// Fails if damo does not know a command or option, or if Isotherm refuses it.
pub fn translate(words: &[String], is_kernel: bool) -> Result<DamoTranslation, DamoError> {
    let table = Table::parse();
    let (command, rest) = table.command(words)?;
    if command.verdict == Verdict::Refused {
        return Err(DamoError::Refused {
            what: command.name().to_owned(),
            instead: command.note.to_owned(),
        });
    }
    let given = table.options(command, rest)?;
    let mut translator = Translator {
        command: command.name(),
        words: command.words(),
        input: RECORD.to_owned(),
        output: CONVERTED.to_owned(),
        differences: Vec::new(),
        parameters: Parameters::default(),
    };
    translator.differ(command);
    for of in given {
        translator.take(&of)?;
    }
    translator.finish(is_kernel)
}

/// An option of damo's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamoOption {
    /// Command that has it.
    pub command: String,
    /// Its names; a positional word has none.
    pub names: Vec<String>,
    /// Names of its values; `...` at the end stands for more of the last.
    pub values: Vec<String>,
    /// Whether Isotherm refuses it, or its command.
    pub is_refused: bool,
}

/// Returns every option of every command of damo's, and each command alone, as the tables have them.
pub fn damo_options() -> Vec<DamoOption> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let table = Table::parse();
    let mut all = Vec::new();
    for command in table.commands() {
        let is_refused = command.verdict == Verdict::Refused;
        let option = |names: &[&str], values: &[&str], refuses: bool| DamoOption {
            command: command.name().to_owned(),
            names: texts(names),
            values: texts(values),
            is_refused: is_refused || refuses,
        };
        all.push(option(&[], &[], false));
        for row in table.options_of(command.name()) {
            let names: &[&str] = if row.is_positional() { &[] } else { &row.names };
            let values = if row.is_positional() {
                &row.names
            } else {
                &row.values
            };
            all.push(option(names, values, row.verdict == Verdict::Refused));
        }
    }
    all
}

struct Translator<'a> {
    command: &'a str,
    words: Vec<String>,
    input: String,
    output: String,
    differences: Vec<String>,
    parameters: Parameters,
}

impl Translator<'_> {
    fn differ(&mut self, row: &Row<'_>) {
        let note = match (row.note, row.verdict) {
            ("", Verdict::Absent) => "it has no meaning here",
            ("", _) => return,
            (note, _) => note,
        };
        self.differences.push(format!("`{}`: {note}", row.name()));
    }

    fn take(&mut self, given: &Given<'_>) -> Result<(), DamoError> {
        let (row, values) = (given.row, &given.values);
        let what = format!("{} {}", self.command, row.name());
        let refused = |instead: &str| DamoError::Refused {
            what,
            instead: instead.to_owned(),
        };
        if row.verdict == Verdict::Refused {
            let note = if row.note.is_empty() {
                "there is nothing that does the same"
            } else {
                row.note
            };
            return Err(refused(note));
        }
        if row.is_parameter {
            return self.parameters.add(row.name(), values.clone());
        }
        let value = values.first().map_or("", String::as_str);
        match row.ours {
            "{input}" => value.clone_into(&mut self.input),
            "{output}" => value.clone_into(&mut self.output),
            "{monitored}" if value == "ongoing" => {}
            "{monitored}" => self.parameters.add("TARGET", values.clone())?,
            "{style}" => self
                .style(value)
                .ok_or_else(|| refused("there is no such style"))?,
            "--percentiles {1}" => {
                self.words
                    .extend(["--percentiles".to_owned(), table::percentiles(values)?]);
            }
            "--over-time" if value == "size" => {}
            "--sort {1}" if value == "temperature" => {
                return Err(refused("`isotherm report temperature`"));
            }
            "--sort {1}" if value == "access_rate" => {
                self.words.extend(["--sort".to_owned(), "rate".to_owned()]);
            }
            template => self.words.extend(filled(template, values)),
        }
        self.differ(row);
        Ok(())
    }

    /// Takes a style of `damo report access`; some are reports of their own.
    fn style(&mut self, name: &str) -> Option<()> {
        let (report, words): (_, &[&str]) = match name {
            "detailed" | "simple-boxes" => ("access", &[]),
            "hot" => ("access", &["--sort", "rate", "--reverse"]),
            "cold" => ("access", &["--sort", "age", "--reverse"]),
            "temperature-sz-hist" | "temperature-percentiles" => ("temperature", &[]),
            "recency-sz-hist"
            | "recency-percentiles"
            | "idle-time-percentiles"
            | "cold-memory-tail" => ("idle", &[]),
            _ => return None,
        };
        report.clone_into(&mut self.words[1]);
        self.words
            .extend(words.iter().map(|word| (*word).to_owned()));
        Some(())
    }

    fn finish(mut self, is_kernel: bool) -> Result<DamoTranslation, DamoError> {
        for word in &mut self.words {
            match word.as_str() {
                "{input}" => word.clone_from(&self.input),
                "{output}" => word.clone_from(&self.output),
                _ => {}
            }
        }
        let mut configuration = None;
        let file = self.parameters.file();
        match self.command {
            "record" => {
                if !self.words.iter().any(|word| word == "-o") {
                    self.words.extend(["-o".to_owned(), RECORD.to_owned()]);
                }
                if self.parameters.acts() {
                    "run".clone_into(&mut self.words[0]);
                    self.words.extend(["-c".to_owned(), DAMO_CONFIG.to_owned()]);
                    configuration = Some(self.parameters.kdamonds()?);
                } else {
                    self.words.extend(self.parameters.flags());
                }
            }
            "monitor" if !self.parameters.is_empty() => {
                self.words.extend(self.parameters.flags());
            }
            "start" | "tune" | "schemes" | "args damon" => {
                configuration = Some(self.parameters.kdamonds()?);
            }
            _ => {}
        }
        if let Some(file) = file {
            configuration = None;
            for word in self.words.iter_mut().filter(|word| *word == DAMO_CONFIG) {
                file.clone_into(word);
            }
        }
        let watches = ["record", "start", "schemes", "monitor"].contains(&self.command);
        if watches && is_kernel {
            self.words
                .extend(["--world".to_owned(), "kernel".to_owned()]);
        }
        self.words.extend(self.parameters.command());
        Ok(DamoTranslation {
            command: self.words,
            configuration,
            differences: self.differences,
        })
    }
}

/// Returns the words of a template with the values of an option. `{1:s}` adds a unit to a bare number. A bound `min` or
/// `max` is left out with the word before it.
fn filled(template: &str, values: &[String]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in template.split_whitespace() {
        let mut text = word.to_owned();
        let mut is_open = false;
        for (at, value) in values.iter().enumerate() {
            is_open |=
                word == format!("{{{}}}", at + 1) && ["min", "max"].contains(&value.as_str());
            for unit in ["s", "%"] {
                let place = format!("{{{}:{unit}}}", at + 1);
                is_open |= word == place && ["min", "max"].contains(&value.as_str());
                let is_bare = value.parse::<f64>().is_ok();
                text = text.replace(
                    &place,
                    &format!("{value}{}", if is_bare { unit } else { "" }),
                );
            }
            text = text.replace(&format!("{{{}}}", at + 1), value);
        }
        if is_open {
            words.pop();
        } else {
            words.push(text);
        }
    }
    words
}

fn hint(word: &str, known: &[&str]) -> String {
    nearest(word, known).map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

#[cfg(test)]
mod tests;
