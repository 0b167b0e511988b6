//! Reads any numbers as stacks and samples of a record. Stacks that were read are equal after writing and reading them
//! again, and a report of them does not panic. The bytes are the unpacked contents: the nodes up to the first 0xff,
//! then the samples. The fuzzer need not find its way through Base64 and zlib; `record_reader` covers these.
#![no_main]

use std::io::Write;

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::{Compression, write::ZlibEncoder};
use isotherm_record::{Header, Item, Reader, StackSamples, Writer};
use isotherm_report::{Accumulate, Blame, BlameOptions, Scope};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // No number ends in 0xff.
    let at = bytes.iter().position(|byte| *byte == 0xff);
    let (nodes, samples) = bytes.split_at(at.unwrap_or(bytes.len()));
    let json = serde_json::json!({
        "time": 5, "period": 3, "begun_before": [1],
        "modules": [{"path": "/bin/a", "build_id": "ab"}],
        "frames": [{"file": {"module": 0, "offset": 4096}}, {"named": "f"}, "cut",
            {"unnamed": {"target": 0, "address": 4096}}],
        "threads": ["main", "other"],
        "stacks": pack(nodes),
        "samples": pack(samples.get(1..).unwrap_or_default()),
    });
    let Ok(stacks) = serde_json::from_value::<StackSamples>(json) else {
        return;
    };
    let mut record = Vec::new();
    let mut writer = Writer::create(&mut record, &Header::default()).expect("memory");
    if writer.write(&Item::Stacks(stacks.clone())).is_err() || writer.finish().is_err() {
        return;
    }
    let reader = Reader::open(&record[..]).expect("a record begins with its header");
    let mut blame = Blame::new(reader.header(), Scope::default(), BlameOptions::default());
    for item in reader {
        // The writer accepts a reference to something that is not there; the reader refuses it.
        let Ok(item) = item else { return };
        if let Item::Stacks(read) = &item {
            assert_eq!(read, &stacks);
        }
        blame.push(&item);
    }
    let _ = blame.finish();
});

fn pack(bytes: &[u8]) -> String {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(bytes).expect("memory");
    BASE64_STANDARD.encode(encoder.finish().expect("memory"))
}
