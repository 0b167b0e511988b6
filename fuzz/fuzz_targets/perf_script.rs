//! Imports any bytes as a trace of DAMON. The imported record can be read.
#![no_main]

use isotherm_record::Reader;
use isotherm_record::damo::{Source, import};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut record = Vec::new();
    if import(Source::PerfScript(bytes), &std::env::temp_dir(), &mut record).is_ok() {
        let reader = Reader::open(&record[..]).expect("a record begins with its header");
        reader.for_each(|item| drop(item.expect("we write what we can read")));
    }
});
