//! Opens a command's input, and prints what had to be assumed or left out.

use std::path::Path;

use isotherm_record::input::{self, Input};
use tracing::warn;

/// Opens `path`, `-` for standard input.
pub(crate) fn open(path: &Path) -> anyhow::Result<Input> {
    let input = input::open(path)?;
    for note in &input.notes {
        warn!("{note}");
    }
    Ok(input)
}
