//! The product inside the kernels.

use isotherm_vm_tests::{Kernel, scenario::test};

#[test]
fn doctor_on_6_1() {
    test("doctor", Kernel::Debian61);
}

#[test]
fn doctor_on_6_12() {
    test("doctor", Kernel::Debian612);
}

#[test]
fn compact_on_6_1() {
    test("compact", Kernel::Debian61);
}

#[test]
fn compact_on_6_12() {
    test("compact", Kernel::Debian612);
}

#[test]
fn record_on_6_1() {
    test("record", Kernel::Debian61);
}

#[test]
fn record_on_6_12() {
    test("record", Kernel::Debian612);
}

#[test]
fn record_five_levels_on_6_1() {
    test("record-five-levels", Kernel::Debian61);
}

#[test]
fn record_five_levels_on_6_12() {
    test("record-five-levels", Kernel::Debian612);
}

#[test]
fn record_node_on_6_1() {
    test("record-node", Kernel::Debian61);
}

#[test]
fn record_node_on_6_12() {
    test("record-node", Kernel::Debian612);
}

#[test]
fn page_cache_on_6_1() {
    test("page-cache", Kernel::Debian61);
}

#[test]
fn page_cache_on_6_12() {
    test("page-cache", Kernel::Debian612);
}

#[test]
fn stacks_on_6_1() {
    test("stacks", Kernel::Debian61);
}

#[test]
fn stacks_on_6_12() {
    test("stacks", Kernel::Debian612);
}

#[test]
fn side_by_side_on_6_12() {
    test("side-by-side", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn record_stairs_on_6_1() {
    test("record-stairs", Kernel::Debian61);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn record_stairs_on_6_12() {
    test("record-stairs", Kernel::Debian612);
}

#[test]
fn kernel_damon_on_6_1() {
    test("kernel-damon", Kernel::Debian61);
}

#[test]
fn kernel_damon_on_6_12() {
    test("kernel-damon", Kernel::Debian612);
}

#[test]
fn kernel_damon_acts_on_6_12() {
    test("kernel-damon-acts", Kernel::Debian612);
}

#[test]
fn kernel_damon_daemon_on_6_12() {
    test("kernel-damon-daemon", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_compare_on_6_12() {
    test("kernel-damon-compare", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_compare_on_newest() {
    test("kernel-damon-compare", Kernel::DebianNewest);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_daemon_on_newest() {
    test("kernel-damon-daemon", Kernel::DebianNewest);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_on_newest() {
    test("kernel-damon", Kernel::DebianNewest);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_acts_on_newest() {
    test("kernel-damon-acts", Kernel::DebianNewest);
}

#[test]
fn kernel_damon_migrate_on_6_12() {
    test("kernel-damon-migrate", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_lru_on_6_12() {
    test("kernel-damon-lru", Kernel::Debian612);
}

#[test]
fn kernel_damon_huge_on_6_12() {
    test("kernel-damon-huge", Kernel::Debian612);
}

#[test]
fn kernel_damon_quotas_on_6_12() {
    test("kernel-damon-quotas", Kernel::Debian612);
}

#[test]
fn kernel_damon_goals_on_6_12() {
    test("kernel-damon-goals", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_migrate_on_newest() {
    test("kernel-damon-migrate", Kernel::DebianNewest);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_lru_on_newest() {
    test("kernel-damon-lru", Kernel::DebianNewest);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_huge_on_newest() {
    test("kernel-damon-huge", Kernel::DebianNewest);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_quotas_on_newest() {
    test("kernel-damon-quotas", Kernel::DebianNewest);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_goals_on_newest() {
    test("kernel-damon-goals", Kernel::DebianNewest);
}

#[test]
fn kernel_damon_killed_on_6_12() {
    test("kernel-damon-killed", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_damo_on_6_12() {
    test("kernel-damon-damo", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_damo_on_newest() {
    test("kernel-damon-damo", Kernel::DebianNewest);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_truth_on_6_12() {
    test("kernel-damon-truth", Kernel::Debian612);
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn kernel_damon_killed_on_newest() {
    test("kernel-damon-killed", Kernel::DebianNewest);
}
