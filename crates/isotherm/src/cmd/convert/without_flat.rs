//! In the place of `--flat`, where Parquet is left out.

use std::path::Path;

use isotherm_record::convert::ConvertError;

use super::{Args, Stop};

/// Parquet is not there.
pub(super) fn run(_args: &Args, _path: &Path, _stop: &Stop) -> anyhow::Result<()> {
    Err(ConvertError::WithoutParquet.into())
}
