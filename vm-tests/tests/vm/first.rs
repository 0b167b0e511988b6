//! One boot of each kernel, in which the product says what it can do and records: `make test` runs these two,
//! `make test-vm` all others.

use isotherm_vm_tests::{Kernel, scenario::test};

#[test]
fn first_on_6_1() {
    test("first", Kernel::Debian61);
}

#[test]
fn first_on_6_12() {
    test("first", Kernel::Debian612);
}
