//! Reads any bytes as a file with symbols and debug information. The symbolizer finds names or refuses the file.
#![no_main]

use std::fs;
use std::path::PathBuf;

use isotherm_symbols::Symbolizer;
use libfuzzer_sys::fuzz_target;

const OFFSETS: [u64; 6] = [0, 0x40, 0x1000, 0x1139, 0x2000, u64::MAX];

fuzz_target!(
    // A panic that is caught is no failure: without this the fuzzer's hook ends the process.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| {
        let path = PathBuf::from(format!("/dev/shm/isotherm-fuzz-{}", std::process::id()));
        fs::write(&path, bytes).expect("room for the input");
        let file = fs::File::open(&path).expect("there");
        let _ = Symbolizer::by_symbols().file_names(&file, &OFFSETS);
        let _ = Symbolizer::by_symbols().path_names(&path, Some("ab"), &OFFSETS);
        let _ = Symbolizer::by_debug_information(&[]).path_names(&path, None, &OFFSETS);
        fs::remove_file(&path).expect("ours");
    }
);
