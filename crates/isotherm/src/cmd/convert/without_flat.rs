//! Replacement of `--flat` in builds without Parquet.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use isotherm_record::convert::ConvertError;

use super::Args;

pub(super) fn run(_args: &Args, _path: &Path, _stop: &AtomicBool) -> anyhow::Result<()> {
    Err(ConvertError::WithoutParquet.into())
}
