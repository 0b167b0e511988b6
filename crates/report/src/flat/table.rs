//! One Parquet table, written row by row.

use std::io::Write;

use isotherm_record::convert::ConvertError;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use crate::rows::{Column, ColumnValue, Rows};

/// Number of rows that are buffered before they are encoded.
const ROWS_HELD: usize = 16_384;
const ROWS_IN_GROUP: usize = 256 << 10;

pub(super) struct FlatFile<W: Write + Send> {
    writer: ArrowWriter<W>,
    table: Rows,
    rows: u64,
}

impl<W: Write + Send> FlatFile<W> {
    pub(super) fn create(columns: &[Column], output: W) -> Result<Self, ConvertError> {
        let table = Rows::new(columns);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROWS_IN_GROUP))
            .build();
        let writer = ArrowWriter::try_new(output, table.schema(), Some(properties))
            .map_err(ConvertError::Parquet)?;
        Ok(Self {
            writer,
            table,
            rows: 0,
        })
    }

    pub(super) fn push(&mut self, row: &[ColumnValue<'_>]) -> Result<(), ConvertError> {
        self.table.push(row);
        self.rows += 1;
        if self.table.held() == ROWS_HELD {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ConvertError> {
        let batch = self.table.take();
        self.writer.write(&batch).map_err(ConvertError::Parquet)
    }

    pub(super) fn finish(mut self) -> Result<u64, ConvertError> {
        if self.table.held() > 0 {
            self.write()?;
        }
        self.writer.close().map_err(ConvertError::Parquet)?;
        Ok(self.rows)
    }
}
