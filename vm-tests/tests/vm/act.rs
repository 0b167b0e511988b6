//! The product acting inside the kernels.

use isotherm_vm_tests::{Kernel, scenario::test};

#[test]
fn act_on_6_1() {
    test("act", Kernel::Debian61);
}

#[test]
fn act_on_6_12() {
    test("act", Kernel::Debian612);
}

#[test]
fn act_migrate_on_6_1() {
    test("act-migrate", Kernel::Debian61);
}

#[test]
fn act_migrate_on_6_12() {
    test("act-migrate", Kernel::Debian612);
}

#[test]
fn act_physical_on_6_1() {
    test("act-physical", Kernel::Debian61);
}

#[test]
fn act_physical_on_6_12() {
    test("act-physical", Kernel::Debian612);
}

#[test]
fn act_psi_on_6_1() {
    test("act-psi", Kernel::Debian61);
}

#[test]
fn act_psi_on_6_12() {
    test("act-psi", Kernel::Debian612);
}

#[test]
fn act_swap_full_on_6_1() {
    test("act-swap-full", Kernel::Debian61);
}

#[test]
fn act_swap_full_on_6_12() {
    test("act-swap-full", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn tiering_on_6_1() {
    test("tiering", Kernel::Debian61);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn tiering_on_6_12() {
    test("tiering", Kernel::Debian612);
}
