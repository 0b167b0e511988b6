//! Reads any bytes as a record, and writes the items that were read. Neither panics, and reading ends.
#![no_main]

use isotherm_record::{Reader, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::open(bytes) else {
        return;
    };
    let Ok(mut writer) = Writer::create(Vec::new(), reader.header()) else {
        return;
    };
    for item in (&mut reader).flatten() {
        let _ = writer.write(&item);
    }
    if let Ok(reader) = Reader::open(bytes) {
        reader.replay_pages().for_each(drop);
    }
});
