//! Reads any bytes as a program's file and its stack. Its frame information neither ends the unwinding process nor
//! delays it for long. The first 24 bytes are the registers, the next 256 the stack, and the rest is the file.
#![no_main]

use std::fs::File;
use std::io::Write;

use isotherm_linux::faults::Fault;
use isotherm_linux::faults::fuzz::{NOBODY, unwind_in_file};
use libfuzzer_sys::{Corpus, fuzz_target};

/// The address at which the file is mapped.
const BASE: u64 = 0x10_0000;
/// Bytes that come before the file.
const HEAD: usize = 24 + 256;

fuzz_target!(
    // A panic that is caught is no failure: without this the fuzzer's hook ends the process.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| -> Corpus {
        let Some((head, elf)) = bytes.split_at_checked(HEAD) else {
            return Corpus::Reject;
        };
        let mut file: File = tempfile::tempfile().expect("room for a file");
        file.write_all(elf).expect("room for the input");
        let (registers, stack) = head.split_at(24);
        let register = |at: usize| u64::from_le_bytes(registers[at * 8..][..8].try_into().expect("eight"));
        let fault = Fault {
            pid: NOBODY,
            space: 1,
            ip: BASE.wrapping_add(register(0) & 0xf_ffff),
            sp: register(1),
            fp: register(2),
            stack: stack.to_vec(),
            ..Fault::default()
        };
        unwind_in_file(&file, BASE, &fault);
        Corpus::Keep
    }
);
