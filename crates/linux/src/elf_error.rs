//! libelf's error number, for where this crate is part of a shared library (the Python module).
//!
//! Problem: distributions build `libelf.a` for programs. Of all of it one file cannot be linked into a shared library:
//! `elf_error.c`, for the thread-local variable that has the last error.
//!
//! Approach: that file's three functions, here. A linker that has them leaves the file in its archive. What was weighed:
//! building elfutils from source (`libbpf-sys`' `vendored-libelf`) needs autotools and minutes; a wheel that needs
//! `libelf.so` has it to carry along, with what that needs.
//!
//! Limits: libelf's own words for an error are lost. libbpf prints them where a BPF object is no ELF
//! file, and ours is made by this build.
//!
//! Source: elfutils' `libelf/elf_error.c`.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(0) };
}

const MESSAGE: &CStr = c"a libelf error";

/// Takes note of an error.
// SAFETY: the only definition in the program, as the linker leaves libelf's in its archive; the same signature.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __libelf_seterrno(value: c_int) {
    LAST.set(value);
}

/// The last error on this thread, which is forgotten.
// SAFETY: likewise.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn elf_errno() -> c_int {
    LAST.replace(0)
}

/// What an error is; null for none.
// SAFETY: likewise.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn elf_errmsg(error: c_int) -> *const c_char {
    // 0 asks for the last one, if there is any; -1 for its words in any case.
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
