//! Tables, figures and pages: results as text, CSV, SVG and HTML.
//!
//! It knows nothing of records: reports, searches and evaluations bring their rows and points.

#![forbid(unsafe_code)]

pub mod colour;
pub mod figure;
pub mod page;
pub mod plot;
pub mod svg;
pub mod table;
pub mod treemap;

/// Formats rows of text as CSV.
pub fn csv_text<F: AsRef<[u8]>>(
    rows: impl IntoIterator<Item = impl IntoIterator<Item = F>>,
) -> String {
    let mut text = csv::Writer::from_writer(Vec::new());
    for row in rows {
        text.write_record(row)
            .expect("memory takes rows of one length");
    }
    let bytes = text.into_inner().expect("memory takes everything");
    String::from_utf8(bytes).expect("made of text")
}
