//! Reads any bytes as a JIT's map of its code, in one part and in two. Both ways find the same names.
#![no_main]

use isotherm_linux::faults::perf_map::PerfMap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let (mut whole, mut parts) = (PerfMap::default(), PerfMap::default());
    whole.add(bytes);
    parts.add(first);
    parts.add(second);
    for address in [0, 0x1000, 0x1040, 0x2000, u64::MAX] {
        // An incomplete line is kept only up to the maximum length of a line.
        if first.len() < 500 {
            assert_eq!(whole.name(address), parts.name(address));
        }
    }
});
