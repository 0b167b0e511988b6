//! The kernels boot and are what the other scenarios take them for.

use isotherm_vm_tests::{Kernel, scenario::test};

#[test]
fn boot_on_6_1() {
    test("boot", Kernel::Debian61);
}

#[test]
fn boot_on_6_12() {
    test("boot", Kernel::Debian612);
}

#[test]
fn five_levels_on_6_1() {
    test("five-levels", Kernel::Debian61);
}

#[test]
fn five_levels_on_6_12() {
    test("five-levels", Kernel::Debian612);
}

#[test]
fn two_nodes_on_6_1() {
    test("two-nodes", Kernel::Debian61);
}

#[test]
fn two_nodes_on_6_12() {
    test("two-nodes", Kernel::Debian612);
}
