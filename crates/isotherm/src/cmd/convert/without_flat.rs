//! Replacement of `--flat` in builds without Parquet.

use std::path::Path;

use isotherm_record::convert::ConvertError;

use super::{Args, Stop};

/// Fails: this build has no Parquet.
pub(super) fn run(_args: &Args, _path: &Path, _stop: &Stop) -> anyhow::Result<()> {
    Err(ConvertError::WithoutParquet.into())
}
