//! The replacement of conversion from and to Parquet in builds without it.

use std::fs::File;
use std::io::{Read, Write};

use crate::convert::{Conversion, ConvertError};
use crate::reader::Reader;

/// Refuses to import, because the build lacks Parquet.
///
/// # Errors
/// Always fails.
pub fn import<W: Write>(_input: &File, _output: W) -> Result<Conversion, ConvertError> {
    Err(ConvertError::WithoutParquet)
}

/// Refuses to export, because the build lacks Parquet.
///
/// # Errors
/// Always fails.
pub fn export<R: Read, W: Write + Send>(
    _record: &mut Reader<R>,
    _output: W,
) -> Result<Conversion, ConvertError> {
    Err(ConvertError::WithoutParquet)
}
