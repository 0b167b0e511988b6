//! CSV (RFC 4180): a header row, then numbers without units.

use super::TableFormat;

pub(super) static CSV: TableFormat = TableFormat {
    head: |columns, out| {
        let mut writer = csv::Writer::from_writer(out);
        writer.write_record(columns.iter().map(|column| column.name))?;
        writer.flush()
    },
    rows: |columns, rows, _, out| {
        let mut writer = csv::Writer::from_writer(out);
        let mut written = Ok(());
        rows(&mut |row| {
            if written.is_ok() {
                let fields = columns.iter().zip(row);
                written = writer.write_record(fields.map(|(column, value)| column.field(*value)));
            }
        });
        written?;
        writer.flush()
    },
};
