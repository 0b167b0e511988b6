//! Restoration of the former tree: at an end, and by the next claim after a SIGKILL.
//!
//! A SIGKILL may come at any moment. A kdamond may be starting then, its configuration being replaced, or the former
//! tree being restored. The note announces each change beforehand, so that it never claims more than is certain.
//!
//! Limits: in a partly restored tree, restored files and files that another user has set since cannot be distinguished.
//! If such a tree has the former number of kdamonds, all off, it is restored as a whole.

use crate::claim::Claim;
use crate::note::{Note, UNKNOWN_PID};
use crate::tree::{Tree, TreePath};

impl<T: Tree> Claim<T> {
    /// Restores the tree after a killed Isotherm, if that one's changes are still in place; otherwise it belongs to
    /// another user now.
    pub(crate) fn recover(&mut self, note: &Note) {
        // A process that was killed before it wrote anything left nothing.
        let nothing = note.written.is_empty() || self.is_as_before(note);
        if nothing || (self.changed(note).is_some() && !self.is_half_restored(note)) {
            self.place.clear();
            return;
        }
        let what = if self.any_is_on() {
            "kernel DAMON on; it was turned off, and its"
        } else {
            "kernel DAMON set up; its"
        };
        let left = self.undo(note);
        if left.is_empty() {
            self.place.clear();
        }
        let but = if left.is_empty() {
            String::new()
        } else {
            format!(", but for {}", left.join(", "))
        };
        self.recovered = Some(format!(
            "an isotherm that was killed had left {what} tree is as it was before{but}"
        ));
    }

    /// Returns how the tree differs from the changes in a note; `None` if it does not.
    pub(crate) fn changed(&self, note: &Note) -> Option<String> {
        if note.written.is_empty() {
            return None;
        }
        for (path, wanted) in &note.written {
            let Some(path) = TreePath::parse(path) else {
                return Some(format!("{path} is no place in it"));
            };
            match self.read(&path) {
                Ok(found) if found == *wanted => {}
                // The kernel tunes these files, and updates them on request.
                Ok(_) if matches!(path.name(), "sample_us" | "aggr_us") => {}
                Ok(found) => return Some(format!("{path} is {found}, not {wanted}")),
                Err(_) => return Some(format!("{path} is no more")),
            }
        }
        for at in 0..self.nr_kdamonds().unwrap_or(0) {
            match (self.pid(at), note.pids.get(at)) {
                (Ok(None), _) => {}
                (Ok(Some(now)), Some(pid)) if now == *pid || *pid == UNKNOWN_PID => {}
                (Ok(Some(now)), Some(pid)) => {
                    return Some(format!("its kdamond {at} is process {now}, not {pid}"));
                }
                (Ok(Some(now)), None) => {
                    return Some(format!("its kdamond {at} is on, process {now}"));
                }
                (Err(_), _) => return Some(format!("its kdamond {at} is no more")),
            }
        }
        None
    }

    /// Returns whether all kdamonds are off, and the files are set as in the note's former tree.
    fn is_as_before(&self, note: &Note) -> bool {
        let is_set = |(path, text): &(String, String)| {
            let found = TreePath::parse(path).and_then(|path| self.read(&path).ok());
            found.as_ref() == Some(text)
        };
        !self.any_is_on() && note.before.iter().all(is_set)
    }

    /// Returns whether the tree is partly restored, because its owner was killed meanwhile; as far as that is
    /// detectable.
    fn is_half_restored(&self, note: &Note) -> bool {
        let nr = TreePath::kdamonds().join("nr_kdamonds");
        let is_nr = |(path, _): &&(String, String)| *path == nr.to_string();
        let before = note.before.iter().find(is_nr).map(|(_, text)| text);
        let now = self.read(&nr).ok();
        let is_known = now.as_deref() == Some("0") || (now.is_some() && now.as_ref() == before);
        note.is_restoring && is_known && !self.any_is_on()
    }

    fn any_is_on(&self) -> bool {
        let nr = self.nr_kdamonds().unwrap_or(0);
        (0..nr).any(|at| self.is_on(at).unwrap_or(true))
    }

    /// Turns all kdamonds off and restores the note's former tree. Returns the errors of files that could not be set.
    pub(crate) fn undo(&mut self, note: &Note) -> Vec<String> {
        let begun = Note {
            is_restoring: true,
            ..note.clone()
        };
        let mut left = Vec::new();
        if let Err(error) = self.place.write(&begun) {
            left.push(error.to_string());
        }
        let mut at = 0;
        while self.tree.kind(&TreePath::kdamond(at)).is_some() {
            if self.is_on(at).unwrap_or(true)
                && let Err(error) = self.command(at, "off")
            {
                left.push(error.to_string());
            }
            at += 1;
        }
        let nr = TreePath::kdamonds().join("nr_kdamonds");
        if let Err(error) = self.write(&nr, "0") {
            left.push(error.to_string());
            return left;
        }
        for (path, text) in &note.before {
            let Some(path) = TreePath::parse(path) else {
                continue;
            };
            // Most files have the values of a new directory.
            if self.read(&path).is_ok_and(|found| found == *text) {
                continue;
            }
            if let Err(error) = self.write(&path, text) {
                left.push(error.to_string());
            }
        }
        left
    }
}
