//! The list of scenarios and of their tests.

/// Calls the macro `with` with every scenario and its tests. A scenario is a function, its name on the command line and
/// a summary of its checks. A test has a name and a kernel. Tests of the group `first` are part of `make test`, those
/// of `matrix` make up `make test-vm`. A test that is ignored, for the reason given, is part of `make test-long` alone.
#[macro_export]
macro_rules! scenario_tests {
    ($with:ident) => {
        $with! {
            first {
                record::one_boot = "first":
                "doctor says that recording works, and the default monitor finds a scattered hot set" {
                    first_on_6_1: Debian61,
                    first_on_6_12: Debian612,
                }
            }
            matrix {
                boot::boot = "boot": "the kernel boots, has BTF and BPF, and DAMON exactly on 6.12" {
                    boot_on_6_1: Debian61,
                    boot_on_6_12: Debian612,
                }
                boot::levels = "five-levels":
                "-cpu max,la57 gives five levels of page tables and addresses above 47 bits" {
                    #[ignore = "page tables of five levels are the same on 6.12"]
                    five_levels_on_6_1: Debian61,
                    five_levels_on_6_12: Debian612,
                }
                boot::nodes = "two-nodes": "two memory nodes are seen, and NUMA balancing is on as it is by default" {
                    #[ignore = "memory nodes are the same on 6.12"]
                    two_nodes_on_6_1: Debian61,
                    two_nodes_on_6_12: Debian612,
                }
                doctor::run = "doctor": "doctor says what works as root, and why not for a user and under lockdown" {
                    doctor_on_6_1: Debian61,
                    doctor_on_6_12: Debian612,
                }
                compact::run = "compact": "compact brings a fragmented node down to the low threshold and stops there" {
                    #[ignore = "compaction has the same interface on 6.12"]
                    compact_on_6_1: Debian61,
                    compact_on_6_12: Debian612,
                }
                record::scattered = "record":
                "records a scattered hot set in each mode; precision and recall are checked" {
                    record_on_6_1: Debian61,
                    record_on_6_12: Debian612,
                }
                record::five = "record-five-levels": "records memory above 47 bits under five levels of page tables" {
                    #[ignore = "page tables of five levels are the same on 6.12"]
                    record_five_levels_on_6_1: Debian61,
                    record_five_levels_on_6_12: Debian612,
                }
                record::physical = "record-node":
                "records the physical memory of node 1 of two, and of all processes (record --node 1, --all)" {
                    #[ignore = "act_physical_on_6_1 reads frames, too"]
                    record_node_on_6_1: Debian61,
                    record_node_on_6_12: Debian612,
                }
                page_cache::run = "page-cache":
                "a scheme drops a file that was read once, and keeps one that is read repeatedly" {
                    page_cache_on_6_1: Debian61,
                    page_cache_on_6_12: Debian612,
                }
                stacks::run = "stacks":
                "idle memory is laid to the function that touched it first, in small and huge pages; refaults to who caused them" {
                    #[ignore = "in virtual time a fifth to two fifths of what comes back from zram has no stack on 6.1"]
                    stacks_on_6_1: Debian61,
                    stacks_on_6_12: Debian612,
                }
                side_by_side::run = "side-by-side":
                "kernel DAMON (vaddr, sysfs; TLB flushed or not) and Isotherm on the same workload" {
                    #[ignore = "record and kernel_damon assert the same, one by one"]
                    side_by_side_on_6_12: Debian612,
                }
                kernel_damon::records = "kernel-damon":
                "records by the kernel's DAMON, which another user keeps; restores it after SIGKILL; reports a kernel without it" {
                    kernel_damon_on_6_1: Debian61,
                    kernel_damon_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_on_newest: DebianNewest,
                }
                kernel_damon::act = "kernel-damon-acts":
                "pages out by the kernel's DAMON what is cold, and in a dry run nothing" {
                    kernel_damon_acts_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_acts_on_newest: DebianNewest,
                }
                kernel_damon_daemon::run = "kernel-damon-daemon":
                "start --world kernel: tune by commit, a tuning that the kernel lacks, pause, resume, stop; the guard stops the kernel's schemes" {
                    kernel_damon_daemon_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_daemon_on_newest: DebianNewest,
                }
                kernel_damon_daemon::compare = "kernel-damon-compare":
                "compare: Isotherm by regions, by DAMON's rules, simulated, and the kernel's DAMON in turns between exact scans" {
                    #[ignore = "takes a minute"]
                    kernel_damon_compare_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_compare_on_newest: DebianNewest,
                }
                kernel_damon_actions::between_nodes = "kernel-damon-migrate":
                "the kernel's DAMON moves cold memory to node 1 and hot memory back, by frames; to two nodes, of a process" {
                    kernel_damon_migrate_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_migrate_on_newest: DebianNewest,
                }
                kernel_damon_actions::lists = "kernel-damon-lru":
                "the kernel's DAMON puts hot frames on the active list and cold ones off it; cold and willneed of a process" {
                    #[ignore = "takes a minute"]
                    kernel_damon_lru_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_lru_on_newest: DebianNewest,
                }
                kernel_damon_actions::huge_pages = "kernel-damon-huge":
                "the kernel's DAMON advises huge pages for what is hot, none for what is cold, and collapses" {
                    kernel_damon_huge_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_huge_on_newest: DebianNewest,
                }
                kernel_damon_quotas::limited = "kernel-damon-quotas":
                "the kernel's DAMON pages out no more than quotas of bytes and of time let it" {
                    kernel_damon_quotas_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_quotas_on_newest: DebianNewest,
                }
                kernel_damon_quotas::follow = "kernel-damon-goals":
                "the kernel's quotas follow their goals: a user's value, pressure, a node's free memory; missing goals are reported" {
                    kernel_damon_goals_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_goals_on_newest: DebianNewest,
                }
                kernel_damon_killed::run = "kernel-damon-killed":
                "SIGKILL at random moments: the next puts kernel DAMON in order; processes that come and go under it" {
                    kernel_damon_killed_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_killed_on_newest: DebianNewest,
                }
                kernel_damon_damo::run = "kernel-damon-damo":
                "damo 3.4.3 beside ours: the same tree, exports, hot memory; left alone; its record is read" {
                    #[ignore = "fetches damo"]
                    kernel_damon_damo_on_6_12: Debian612,
                    #[ignore = "another kernel each month"]
                    kernel_damon_damo_on_newest: DebianNewest,
                }
                act::more_than_swap = "act-swap-full":
                "more cold memory than swap: what does not fit is refused by name, nothing is lost" {
                    #[ignore = "swap has the same interface on 6.12"]
                    act_swap_full_on_6_1: Debian61,
                    act_swap_full_on_6_12: Debian612,
                }
                act_tier::whole_machine = "act-physical":
                "pprcl pages out what idles on the whole machine, and spares what does not" {
                    act_physical_on_6_1: Debian61,
                    act_physical_on_6_12: Debian612,
                }
                act_psi::run = "act-psi":
                "memory pressure stops the schemes (--max-psi); without PSI the limit is refused" {
                    #[ignore = "pressure has the same interface on 6.12"]
                    act_psi_on_6_1: Debian61,
                    act_psi_on_6_12: Debian612,
                }
                act::actions = "act":
                "pageout, cold, stat, hugepage, collapse, nohugepage on a process; its data holds" {
                    act_on_6_1: Debian61,
                    act_on_6_12: Debian612,
                }
                act_tier::between_nodes = "act-migrate":
                "cold memory moves to node 1 and hot memory back, of a process and as `tier plan` has it" {
                    #[ignore = "pages are moved by the same system call on 6.12"]
                    act_migrate_on_6_1: Debian61,
                    act_migrate_on_6_12: Debian612,
                }
                record::stairs = "record-stairs": "records stairs: four regions hot one after the other" {
                    #[ignore = "takes a minute"]
                    record_stairs_on_6_1: Debian61,
                    #[ignore = "takes a minute"]
                    record_stairs_on_6_12: Debian612,
                }
                kernel_damon_truth::run = "kernel-damon-truth":
                "kernel DAMON, --faithful and the default at equal CPU on programs of the generated family" {
                    #[ignore = "takes an hour"]
                    kernel_damon_truth_on_6_12: Debian612,
                }
                tiering::run = "tiering":
                "the experiment of redis on two tiers runs as shipped; tiered, redis is back on the fast node" {
                    #[ignore = "takes minutes"]
                    tiering_on_6_1: Debian61,
                    #[ignore = "takes minutes"]
                    tiering_on_6_12: Debian612,
                }
            }
        }
    };
}
