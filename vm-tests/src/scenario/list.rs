//! The list of scenarios and of their tests.

/// Calls the macro `with` with every scenario and its tests. A scenario is named by the function that makes it, and a
/// test has a name and a kernel. Tests of the group `first` are part of `make test`, those of `matrix` make up `make
/// test-vm`. A test that is ignored, for the reason given, is part of `make test-long` alone.
#[macro_export]
macro_rules! scenario_tests {
    ($with:ident) => {
        $with! {
            first {
                record::first {
                    first_on_6_1: Debian61,
                    first_on_6_12: Debian612,
                }
            }
            matrix {
                boot::kernel {
                    boot_on_6_1: Debian61,
                    boot_on_6_12: Debian612,
                }
                boot::five_levels {
                    #[ignore = "page tables of five levels are the same on 6.12"]
                    five_levels_on_6_1: Debian61,
                    five_levels_on_6_12: Debian612,
                }
                boot::two_nodes {
                    #[ignore = "memory nodes are the same on 6.12"]
                    two_nodes_on_6_1: Debian61,
                    two_nodes_on_6_12: Debian612,
                }
                doctor::scenario {
                    doctor_on_6_1: Debian61,
                    doctor_on_6_12: Debian612,
                }
                compact::scenario {
                    #[ignore = "compaction has the same interface on 6.12"]
                    compact_on_6_1: Debian61,
                    compact_on_6_12: Debian612,
                }
                record::scattered {
                    record_on_6_1: Debian61,
                    record_on_6_12: Debian612,
                }
                record::five_levels {
                    #[ignore = "page tables of five levels are the same on 6.12"]
                    record_five_levels_on_6_1: Debian61,
                    record_five_levels_on_6_12: Debian612,
                }
                record::node {
                    #[ignore = "act_physical_on_6_1 reads frames, too"]
                    record_node_on_6_1: Debian61,
                    record_node_on_6_12: Debian612,
                }
                page_cache::scenario {
                    page_cache_on_6_1: Debian61,
                    page_cache_on_6_12: Debian612,
                }
                stacks::scenario {
                    #[ignore = "in virtual time a fifth to two fifths of what comes back from zram has no stack on 6.1"]
                    stacks_on_6_1: Debian61,
                    stacks_on_6_12: Debian612,
                }
                side_by_side::scenario {
                    #[ignore = "record and kernel_damon assert the same, one by one"]
                    side_by_side_on_6_12: Debian612,
                }
                kernel_damon::records {
                    kernel_damon_on_6_1: Debian61,
                    kernel_damon_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_on_newest: DebianNewest,
                }
                kernel_damon::acts {
                    kernel_damon_acts_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_acts_on_newest: DebianNewest,
                }
                kernel_damon_daemon::scenario {
                    kernel_damon_daemon_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_daemon_on_newest: DebianNewest,
                }
                kernel_damon_daemon::compares {
                    #[ignore = "takes a minute"]
                    kernel_damon_compare_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_compare_on_newest: DebianNewest,
                }
                kernel_damon_actions::migrate {
                    kernel_damon_migrate_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_migrate_on_newest: DebianNewest,
                }
                kernel_damon_actions::lru {
                    #[ignore = "takes a minute"]
                    kernel_damon_lru_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_lru_on_newest: DebianNewest,
                }
                kernel_damon_actions::huge {
                    kernel_damon_huge_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_huge_on_newest: DebianNewest,
                }
                kernel_damon_quotas::quotas {
                    kernel_damon_quotas_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_quotas_on_newest: DebianNewest,
                }
                kernel_damon_quotas::goals {
                    kernel_damon_goals_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_goals_on_newest: DebianNewest,
                }
                kernel_damon_killed::scenario {
                    kernel_damon_killed_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_killed_on_newest: DebianNewest,
                }
                kernel_damon_damo::scenario {
                    #[ignore = "fetches damo"]
                    kernel_damon_damo_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_damo_on_newest: DebianNewest,
                }
                act::swap_full {
                    #[ignore = "swap has the same interface on 6.12"]
                    act_swap_full_on_6_1: Debian61,
                    act_swap_full_on_6_12: Debian612,
                }
                act_tier::physical {
                    act_physical_on_6_1: Debian61,
                    act_physical_on_6_12: Debian612,
                }
                act_psi::scenario {
                    #[ignore = "pressure has the same interface on 6.12"]
                    act_psi_on_6_1: Debian61,
                    act_psi_on_6_12: Debian612,
                }
                act::scenario {
                    act_on_6_1: Debian61,
                    act_on_6_12: Debian612,
                }
                act_tier::migrate {
                    #[ignore = "pages are moved by the same system call on 6.12"]
                    act_migrate_on_6_1: Debian61,
                    act_migrate_on_6_12: Debian612,
                }
                record::stairs {
                    #[ignore = "takes a minute"]
                    record_stairs_on_6_1: Debian61,
                    #[ignore = "takes a minute"]
                    record_stairs_on_6_12: Debian612,
                }
                kernel_damon_truth::scenario {
                    #[ignore = "takes an hour"]
                    kernel_damon_truth_on_6_12: Debian612,
                }
                tiering::scenario {
                    #[ignore = "takes minutes"]
                    tiering_on_6_1: Debian61,
                    #[ignore = "takes minutes"]
                    tiering_on_6_12: Debian612,
                }
            }
        }
    };
}
