//! The journal of a search: every evaluated point, so that a search can continue after an interruption.
//!
//! Each entry is a line of JSON; the first line identifies the trace and the options. Known points are not evaluated
//! again. A search asks for the same points in the same order, so its result is the same as without the interruption. A
//! cut last line is ignored. A file that is no journal is refused and not changed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::live::run::LiveRun;
use super::predict::Prediction;
use super::space::Settings;
use crate::fnv::{FNV_START, fnv};
use crate::json_lines::{append, read};

/// Everything that predictions depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Digest of the trace.
    pub trace: String,
    /// Digest of the schemes as given, of their monitoring and guards, and of the simulated machine.
    pub options: String,
    /// Version of Isotherm.
    pub isotherm: String,
}

impl Fingerprint {
    /// Adds something more that predictions depend on; an empty text changes nothing.
    #[must_use]
    pub fn beside(mut self, more: &str) -> Self {
        if !more.is_empty() {
            self.options += &Self::new(0, more).options;
        }
        self
    }

    /// Creates the fingerprint of a trace's digest, and of a text that holds all options.
    pub fn new(trace: u64, options: &str) -> Self {
        let options = fnv(FNV_START, options.as_bytes());
        Self {
            trace: format!("{trace:016x}"),
            options: format!("{options:016x}"),
            isotherm: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "lowercase")]
enum Entry {
    Tune(Fingerprint),
    Point {
        /// [`Settings::key`].
        settings: String,
        prediction: Box<Prediction>,
    },
    Live(LiveRun),
}

const START: &str = r#"{"entry":"tune","#;

/// Reason why a journal cannot be continued.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum JournalError {
    #[error("cannot read the journal {0}")]
    Read(String, #[source] io::Error),
    #[error("cannot write the journal {0}")]
    Write(String, #[source] io::Error),
    #[error("{0} is no journal of `tune`, and is left as it is; name another file")]
    NoJournal(String),
    #[error("the journal {0} is damaged ({1}); remove it to begin anew")]
    Damaged(String, String),
    #[error("the journal {0} is of {1}; remove it to begin anew, or name another file")]
    Other(String, &'static str),
}

/// A journal that is open for writing.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// `None` after a failed write.
    file: Option<File>,
    known: Known,
}

#[derive(Debug, Default)]
struct Known {
    predictions: BTreeMap<String, Prediction>,
    /// Live runs, in the order in which they were made.
    live: Vec<LiveRun>,
}

impl Journal {
    /// Begins the journal at `path`, or continues the one that is there.
    pub fn open(path: &Path, of: &Fingerprint) -> Result<Self, JournalError> {
        let name = || path.display().to_string();
        let text = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(JournalError::Read(name(), error)),
        };
        let (known, length) = known(&text, of, &name())?;
        let open = || {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true);
            let mut file = options.open(path)?;
            // A cut line would join with the next.
            file.set_len(length as u64)?;
            file.seek(SeekFrom::End(0))?;
            if length == 0 {
                append(&mut file, &Entry::Tune(of.clone()))?;
            }
            Ok(file)
        };
        let file = open().map_err(|error| JournalError::Write(name(), error))?;
        Ok(Self {
            path: path.to_owned(),
            file: Some(file),
            known,
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the known prediction of settings.
    pub fn get(&self, settings: &Settings) -> Option<&Prediction> {
        self.known.predictions.get(&settings.key())
    }

    /// Returns the live runs that it held when it was opened, in the order in which they were made.
    pub fn live_runs(&self) -> &[LiveRun] {
        &self.known.live
    }

    /// Returns the number of points that it held when it was opened.
    pub fn nr_known(&self) -> usize {
        self.known.predictions.len()
    }

    /// Writes the prediction of settings. After a failure nothing more is written, since a line after half a line could
    /// not be read.
    pub fn note(
        &mut self,
        settings: &Settings,
        prediction: &Prediction,
    ) -> Result<(), JournalError> {
        self.append(&Entry::Point {
            settings: settings.key(),
            prediction: Box::new(prediction.clone()),
        })
    }

    /// Writes a live run. After a failure nothing more is written.
    pub fn note_live(&mut self, run: &LiveRun) -> Result<(), JournalError> {
        self.append(&Entry::Live(run.clone()))
    }

    fn append(&mut self, entry: &Entry) -> Result<(), JournalError> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        append(file, entry).map_err(|error| {
            self.file = None;
            JournalError::Write(self.path.display().to_string(), error)
        })
    }
}

/// Returns the contents of a journal's text, and the length of its complete lines.
fn known(text: &[u8], of: &Fingerprint, name: &str) -> Result<(Known, usize), JournalError> {
    let path = || name.to_owned();
    let last = text.iter().rposition(|byte| *byte == b'\n');
    let whole = last.map_or(0, |at| at + 1);
    if whole == 0 {
        // The file is empty, or cut in its first line.
        let shown = &text[..text.len().min(START.len())];
        return if START.as_bytes().starts_with(shown) {
            Ok((Known::default(), 0))
        } else {
            Err(JournalError::NoJournal(path()))
        };
    }
    if !text.starts_with(START.as_bytes()) {
        return Err(JournalError::NoJournal(path()));
    }
    let damaged = |what: String| JournalError::Damaged(path(), what);
    let text = std::str::from_utf8(&text[..whole]).map_err(|error| damaged(error.to_string()))?;
    let mut entries = read::<Entry>(text).map_err(damaged)?.into_iter();
    let Some(Entry::Tune(first)) = entries.next() else {
        return Err(JournalError::NoJournal(path()));
    };
    let what = if first.trace != of.trace {
        Some("another trace")
    } else if first.isotherm != of.isotherm {
        Some("another version of Isotherm")
    } else if first.options != of.options {
        Some("other options (schemes, guard, monitor, seed or machine)")
    } else {
        None
    };
    if let Some(what) = what {
        return Err(JournalError::Other(path(), what));
    }
    let mut known = Known::default();
    for entry in entries {
        match entry {
            Entry::Point {
                settings,
                prediction,
            } => {
                known.predictions.insert(settings, *prediction);
            }
            Entry::Live(run) => known.live.push(run),
            Entry::Tune(_) => {}
        }
    }
    Ok((known, whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;
    use crate::tests::prcl_space;

    fn some_settings() -> Vec<Settings> {
        let space = prcl_space(&["age=1s,2s,3s"], 60);
        (0..3).map(|n| space.settings(&space.point(n))).collect()
    }

    fn prediction(n: usize) -> Prediction {
        Prediction {
            slowdown: Estimate::new(n as f64 / 7.0).within(-0.1, 0.9),
            refaults: n as u64,
            resident_bytes: vec![n as u64; 3],
            ..Prediction::default()
        }
    }

    fn of() -> Fingerprint {
        Fingerprint::new(7, "options")
    }

    #[test]
    fn a_journal_cut_at_any_byte_goes_on_with_what_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let settings = some_settings();
        let mut journal = Journal::open(&path, &of()).expect("begun");
        for (n, settings) in settings.iter().enumerate() {
            journal.note(settings, &prediction(n)).expect("room");
        }
        drop(journal);
        let whole = std::fs::read(&path).expect("written");
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).expect("room");
            let mut journal = Journal::open(&path, &of()).expect("cut");
            let lines = whole[..length].split(|byte| *byte == b'\n').count() - 1;
            let nr = lines.saturating_sub(1);
            assert_eq!(journal.nr_known(), nr, "cut at {length}");
            for (n, settings) in settings.iter().enumerate() {
                match journal.get(settings) {
                    Some(known) => assert_eq!(*known, prediction(n)),
                    None => journal.note(settings, &prediction(n)).expect("room"),
                }
            }
            drop(journal);
            let now = std::fs::read(&path).expect("written");
            assert_eq!(now, whole, "cut at {length}");
        }
    }

    #[test]
    fn what_is_of_something_else_is_refused_and_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        drop(Journal::open(&path, &of()).expect("begun"));
        let other = |trace, options, said: &str| {
            let error = Journal::open(&path, &Fingerprint::new(trace, options)).expect_err("other");
            assert!(error.to_string().contains(said), "{error}");
        };
        other(8, "options", "another trace");
        other(7, "else", "other options");
        for text in [
            "kdamonds:\n- contexts: []\n",
            "x",
            "{}\n",
            "{\"entry\":\"run\"}\n",
        ] {
            std::fs::write(&path, text).expect("room");
            let error = Journal::open(&path, &of()).expect_err(text);
            assert!(matches!(error, JournalError::NoJournal(_)), "{error}");
            assert_eq!(std::fs::read_to_string(&path).expect("kept"), text);
        }
        let begin = serde_json::to_string(&Entry::Tune(of())).expect("JSON");
        let damaged = format!("{begin}\nnonsense\n{{\"entry\"");
        std::fs::write(&path, &damaged).expect("room");
        let error = Journal::open(&path, &of()).expect_err("damaged");
        assert!(error.to_string().contains("line 2"), "{error}");
    }

    #[test]
    fn a_full_disk_ends_the_journal_and_not_the_search() {
        let full = OpenOptions::new().write(true).open("/dev/full");
        let mut journal = Journal {
            path: "/dev/full".into(),
            file: Some(full.expect("a device")),
            known: Known::default(),
        };
        let settings = &some_settings()[0];
        let error = journal.note(settings, &prediction(0)).expect_err("full");
        assert!(error.to_string().contains("/dev/full"), "{error}");
        let again = journal.note(settings, &prediction(0));
        again.expect("no longer tried");
    }
}
