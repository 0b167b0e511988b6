//! Settings of the machine that the bench changes, and their restoration: at the end, on failure and on signals. After
//! a crash, the next bench restores them from a note in `/run/isotherm`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

pub(super) const PROACTIVENESS: &str = "/proc/sys/vm/compaction_proactiveness";
pub(super) const THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
pub(super) const THP_DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";

/// All settings that the bench changes: a note that names others is not the bench's.
const KNOWN: [&str; 3] = [PROACTIVENESS, THP_ENABLED, THP_DEFRAG];
const NOTE: &str = "/run/isotherm/bench";

/// Changed settings and their earlier values, which are restored when this is dropped.
pub(super) struct Settings {
    note: PathBuf,
    before: Vec<(PathBuf, String)>,
}

impl Settings {
    /// Restores settings after a bench that was killed.
    pub(super) fn open() -> anyhow::Result<Self> {
        let known: Vec<PathBuf> = KNOWN.iter().map(PathBuf::from).collect();
        Self::with(Path::new(NOTE), &known)
    }

    fn with(note: &Path, known: &[PathBuf]) -> anyhow::Result<Self> {
        let mut settings = Self {
            note: note.to_path_buf(),
            before: Vec::new(),
        };
        let Ok(text) = fs::read_to_string(note) else {
            return Ok(settings);
        };
        let mut lines = text.lines();
        let pid = lines.next().unwrap_or_default();
        if fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|comm| comm.trim() == "isotherm-bench")
        {
            bail!("another bench is running (process {pid}); two at once would disturb each other");
        }
        eprintln!("isotherm-bench: undoing what a bench that was killed has left");
        let noted = lines.filter_map(|line| line.split_once('\t'));
        settings.before = noted
            .map(|(path, value)| (PathBuf::from(path), value.to_owned()))
            .filter(|(path, _)| known.contains(path))
            .collect();
        settings.undo()?;
        Ok(settings)
    }

    /// Changes a setting, unless it has the value already.
    pub(super) fn set(&mut self, path: impl AsRef<Path>, value: &str) -> anyhow::Result<()> {
        let path = path.as_ref();
        let now = read(path)?;
        if now == value {
            return Ok(());
        }
        if !self.before.iter().any(|(changed, _)| changed == path) {
            self.before.push((path.to_path_buf(), now));
            self.write_note()?;
        }
        write(path, value)
    }

    /// Writes down the earlier values before a setting is changed.
    fn write_note(&self) -> anyhow::Result<()> {
        let mut lines = vec![std::process::id().to_string()];
        let changed = self.before.iter();
        lines.extend(changed.map(|(path, value)| format!("{}\t{value}", path.display())));
        let text = lines.join("\n") + "\n";
        let folder = self.note.parent().context("the note lies in a folder")?;
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&self.note, text))
            .with_context(|| format!("cannot write {}; are you root?", self.note.display()))
    }

    /// Tries to restore every setting, even if one fails; the note stays for those that failed.
    fn undo(&mut self) -> anyhow::Result<()> {
        let mut failed = Ok(());
        self.before.retain(|(path, value)| {
            match read(path).and_then(|now| {
                // Writing an unchanged value may wake kcompactd.
                if now == *value {
                    Ok(())
                } else {
                    write(path, value)
                }
            }) {
                Ok(()) => false,
                Err(error) => {
                    failed = Err(error);
                    true
                }
            }
        });
        failed?;
        if self.note.exists() {
            fs::remove_file(&self.note)
                .with_context(|| format!("cannot remove {}", self.note.display()))?;
        }
        Ok(())
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            eprintln!(
                "isotherm-bench: {error:#}; {} says what is to be undone, and the next bench tries again",
                self.note.display()
            );
        }
    }
}

/// Returns a setting's value: of `always [madvise] never`, the word in brackets.
pub(super) fn read(path: impl AsRef<Path>) -> anyhow::Result<String> {
    let path = path.as_ref();
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    Ok(chosen.map_or(text.trim(), |(word, _)| word).to_owned())
}

fn write(path: &Path, value: &str) -> anyhow::Result<()> {
    fs::write(path, value).with_context(|| {
        format!(
            "cannot write `{value}` to {}; are you root?",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_undone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, note) = (folder.path().join("setting"), folder.path().join("note"));
        fs::write(&path, "20\n").expect("written");
        let mut settings = Settings::with(&note, std::slice::from_ref(&path)).expect("no note");
        settings.set(&path, "20").expect("it is so");
        assert!(!note.exists(), "nothing was changed");
        settings.set(&path, "0").expect("set");
        settings.set(&path, "80").expect("set");
        assert!(note.exists());
        drop(settings);
        assert_eq!(read(&path).expect("read"), "20");
        assert!(!note.exists());
    }

    #[test]
    fn the_next_bench_undoes_what_a_killed_one_left_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["known", "other"] {
            fs::write(path(name), "80").expect("written");
        }
        let text = ["known", "other"].map(|name| format!("{}\t20\n", path(name).display()));
        fs::write(path("note"), format!("4000000\n{}", text.concat())).expect("written");
        Settings::with(&path("note"), &[path("known")]).expect("undone");
        assert_eq!(read(path("known")).expect("read"), "20");
        assert_eq!(read(path("other")).expect("read"), "80");
        assert!(!path("note").exists());
    }

    #[test]
    fn of_several_words_the_one_in_brackets_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("defrag");
        fs::write(&path, "always defer [madvise] never\n").expect("written");
        assert_eq!(read(&path).expect("read"), "madvise");
    }
}
