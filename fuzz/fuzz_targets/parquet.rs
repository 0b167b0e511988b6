//! Imports any bytes as Parquet. The imported record can be read.
#![no_main]

use std::io::Write;

use isotherm_record::{Reader, parquet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut input = tempfile::tempfile().expect("room for a file");
    input.write_all(bytes).expect("room for the input");
    let mut record = Vec::new();
    if parquet::import(&input, &mut record).is_ok() {
        let reader = Reader::open(&record[..]).expect("a record begins with its header");
        reader.for_each(|item| drop(item.expect("we write what we can read")));
    }
});
