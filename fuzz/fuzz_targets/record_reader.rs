//! Any bytes as a record: no panic, no endless reading, and what is read can be written.
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
