//! libelf's error functions, for builds in which this crate is part of a shared library (the Python module).
//!
//! Problem: distributions build `libelf.a` for programs. One of its files cannot be linked into a shared library:
//! `elf_error.c`, because of the thread-local variable that holds the last error.
//!
//! Approach: this module defines that file's three functions. A linker that has them leaves the file in its archive.
//! Alternatives: building elfutils from source (`libbpf-sys`' `vendored-libelf`) needs autotools and minutes. A wheel
//! that needs `libelf.so` has to bundle it and its dependencies.
//!
//! Limits: libelf's own error messages are lost. libbpf prints them only where a BPF object is not an ELF file, and
//! this build makes ours.
//!
//! Source: elfutils' `libelf/elf_error.c`.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(0) };
}

const MESSAGE: &CStr = c"a libelf error";

/// Records an error.
// SAFETY: the only definition in the program, as the linker leaves libelf's in its archive; the signature is the same.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libelf_seterrno(value: c_int) {
    LAST.set(value);
}

/// Returns the last error of this thread and clears it.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn elf_errno() -> c_int {
    LAST.replace(0)
}

/// Returns the message of an error; null for none.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn elf_errmsg(error: c_int) -> *const c_char {
    // 0 asks for the message of the last error, if any; -1 for a message in any case.
    let is_none = error == 0 && LAST.get() == 0;
    if is_none {
        ptr::null()
    } else {
        MESSAGE.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_told_once() {
        assert!(elf_errmsg(0).is_null());
        __libelf_seterrno(7);
        assert!(!elf_errmsg(0).is_null() && !elf_errmsg(-1).is_null());
        assert_eq!((elf_errno(), elf_errno()), (7, 0));
        assert!(elf_errmsg(0).is_null());
    }
}
