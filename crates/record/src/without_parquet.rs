//! In the place of conversion from and to Parquet, where that is left out.

use std::fs::File;
use std::io::{Read, Write};

use crate::convert::{Conversion, ConvertError};
use crate::reader::Reader;

/// Parquet is not there.
///
/// # Errors
/// Always.
pub fn import<W: Write>(_input: &File, _output: W) -> Result<Conversion, ConvertError> {
    Err(ConvertError::WithoutParquet)
}

/// Parquet is not there.
///
/// # Errors
/// Always.
pub fn export<R: Read, W: Write + Send>(
    _record: &mut Reader<R>,
    _output: W,
) -> Result<Conversion, ConvertError> {
    Err(ConvertError::WithoutParquet)
}
