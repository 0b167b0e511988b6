//! Imports any bytes as damo's JSON, plain and through zlib. A record made from plain JSON can be read.
#![no_main]

use isotherm_record::Reader;
use isotherm_record::damo::{Source, import};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = std::env::temp_dir();
    let mut record = Vec::new();
    if import(Source::Json(bytes), &folder, &mut record).is_ok() {
        let reader = Reader::open(&record[..]).expect("a record begins with its header");
        reader.for_each(|item| drop(item.expect("we write what we can read")));
    }
    let _ = import(Source::JsonCompressed(bytes), &folder, Vec::new());
});
