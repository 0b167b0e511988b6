//! Boots Debian's own kernels in QEMU and runs the product inside.
//!
//! Problem: Isotherm reads page tables through BPF, so each kernel it claims to work on must be
//! tried, with page-table depths and memory nodes that the machine at hand does not have, and
//! without touching that machine.
//!
//! Approach: a [`Vm`] is Debian's unchanged kernel package ([`Kernel`]), an initramfs made on the
//! spot (busybox, the programs under test with the shared libraries they need, a script), and two
//! serial ports: one is the console, the other carries the exit code and the script's files back as
//! a gzip stream, whose checksum tells a cut answer from a whole one. No disk, no network, no
//! privilege, no KVM. A [`scenario`] is a function from a kernel to a [`scenario::Report`]; the
//! tests under `tests/` and the `vm-tests` command both run those.
//!
//! Machines run in virtual time: the guest's clock counts instructions (`qemu.rs`), so that results do not depend on how busy
//! the host is.
//!
//! Limits: a guest executes some 60 million instructions in a second of its own, so scenarios check function and accuracy,
//! sample every 50 ms or more slowly, and never speak of CPU shares. The emulated TLB keeps what hardware's would evict, so
//! that whoever clears accessed bits without a flush sees less there (the scenario `side-by-side` shows it).
//!
//! What the host lacks (QEMU, a kernel package) is [`VmError::Unavailable`]: tests then print
//! `SKIP name: reason`, which the harness counts.

#![forbid(unsafe_code)]

mod damo;
mod error;
mod image;
mod kernel;
mod module;
mod product;
mod qemu;
pub mod scenario;
mod slot;
mod vm;

pub use error::VmError;
pub use kernel::{Kernel, KernelImage};
pub use product::{guest_tool, isotherm};
pub use vm::{Vm, VmOutput};
