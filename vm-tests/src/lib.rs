//! Boots Debian's own kernels in QEMU and runs the product inside.
//!
//! Problem: Isotherm reads page tables through BPF, so each kernel that it supports must be tried. The tests need
//! page-table depths and memory nodes that the host does not have, and must leave the host alone.
//!
//! Approach: a [`Vm`] consists of Debian's unchanged kernel package ([`Kernel`]), an initramfs and two serial ports.
//! The initramfs is made on the spot: busybox, the programs under test with the shared libraries they need, and a
//! script. One port is the console. The other carries the exit code and the script's files back as a gzip stream, whose
//! checksum shows whether the answer is complete. There is no disk, no network, no privilege, and by default no KVM. A
//! [`scenario`] is a function from a kernel to a [`scenario::Report`]; the tests under `tests/` and the `vm-tests`
//! command both run those.
//!
//! Machines run in virtual time: the guest's clock counts instructions (`qemu.rs`), so that results do not depend on
//! how busy the host is.
//!
//! Limits: by default a guest executes some 60 million instructions in a second of its own time. Scenarios therefore
//! check function and accuracy, and sample every 50 ms or more slowly. They make no statement about CPU shares, except
//! `kernel-damon-truth` in a guest of 500 million instructions a second. The emulated TLB keeps entries that hardware
//! would evict. A monitor that clears accessed bits without a flush therefore sees fewer accesses there.
//!
//! A missing part of the host (QEMU, a kernel package) is reported as [`VmError::Unavailable`]. Tests then print a line
//! `SKIP name: reason`, which the harness counts.

#![forbid(unsafe_code)]

mod cache;
mod damo;
mod error;
mod image;
mod kernel;
mod module;
mod pages;
mod product;
mod qemu;
pub mod scenario;
mod vm;

pub use error::VmError;
pub use kernel::{Kernel, KernelImage};
pub use pages::{Pages, Part};
pub use vm::{Vm, VmOutput};
