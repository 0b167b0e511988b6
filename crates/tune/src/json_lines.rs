//! Journals of JSON lines: an entry each. A last line that was cut by a crash is ignored.

use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a journal. Fails with the line number if a line other than the last cannot be read.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut entries = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        match serde_json::from_str(line) {
            Ok(entry) => entries.push(entry),
            // A cut last line: its run is not finished.
            Err(_) if index + 1 == lines.len() && !text.ends_with('\n') => {}
            Err(error) => return Err(format!("line {}: {error}", index + 1)),
        }
    }
    Ok(entries)
}

/// Writes one line of a journal.
pub fn append(out: &mut dyn Write, entry: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(entry)?;
    line.push('\n');
    out.write_all(line.as_bytes())?;
    out.flush()
}
