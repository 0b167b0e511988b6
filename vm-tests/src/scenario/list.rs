//! The list of scenarios and of their tests.

/// Calls the macro `with` with every scenario: its name (on the command line with `-` for `_`), its function, the kernels
/// of its tests, and a summary of its checks. A test is called `SCENARIO::on_SERIES`. Those of `first` are part of
/// `make test`, the others make up `make test-vm`. A test that has a reason in parentheses is long: it is part of
/// `make test-long` alone.
#[macro_export]
macro_rules! scenario_tests {
    ($with:ident) => {
        $with! {
            first = record::one_boot [on_6_1, on_6_12, on_6_12_arm64]:
                "doctor says that recording works, and the default monitor finds a scattered hot set"
            boot = boot::boot
                [on_6_1, on_6_12, on_6_1_arm64 ("takes minutes"), on_6_12_arm64 ("takes minutes"), on_6_12_arm64_16k ("takes minutes")]:
                "the kernel boots, has BTF and BPF, and DAMON exactly on 6.12"
            five_levels = boot::levels [on_6_1 ("page tables of five levels are the same on 6.12"), on_6_12]:
                "-cpu max,la57 gives five levels of page tables and addresses above 47 bits"
            two_nodes = boot::nodes
                [on_6_1 ("memory nodes are the same on 6.12"), on_6_12, on_6_12_arm64 ("takes minutes")]:
                "two memory nodes are seen, and NUMA balancing is on as it is by default"
            doctor = doctor::run
                [on_6_1, on_6_12, on_6_1_arm64 ("takes minutes"), on_6_12_arm64 ("takes minutes")]:
                "doctor says what works as root, and why not for a user and under lockdown"
            compact = compact::run [on_6_1 ("compaction has the same interface on 6.12"), on_6_12]:
                "compact brings a fragmented node down to the low threshold and stops there"
            record = record::scattered
                [on_6_1, on_6_12, on_6_1_arm64 ("takes minutes"), on_6_12_arm64 ("takes minutes"), on_6_12_arm64_16k ("takes minutes")]:
                "records a scattered hot set in each mode; precision and recall are checked"
            record_five_levels = record::five [on_6_1 ("page tables of five levels are the same on 6.12"), on_6_12]:
                "records memory above 47 bits under five levels of page tables"
            record_large_folios = record::large_folios [on_6_12]:
                "records memory in folios of 128 KiB (mTHP), and splits none"
            record_no_access_flag = record::without_access_flag
                [on_6_1_arm64 ("takes minutes"), on_6_12_arm64 ("takes minutes")]:
                "records a scattered hot set on a processor that leaves access flags to the kernel"
            record_node = record::physical
                [on_6_1 ("act_physical::on_6_1 reads frames, too"), on_6_12, on_6_12_arm64 ("takes minutes")]:
                "records the physical memory of node 1 of two, and of all processes (record --node 1, --all)"
            page_cache = page_cache::run
                [on_6_1, on_6_12, on_6_1_arm64 ("takes minutes"), on_6_12_arm64 ("takes minutes"), on_6_12_arm64_16k ("takes minutes")]:
                "a scheme drops a file that was read once, and keeps one that is read repeatedly"
            stacks = stacks::run
                [on_6_1 ("in virtual time a fifth to two fifths of what comes back from zram has no stack on 6.1"), on_6_12, on_6_12_arm64 ("takes minutes")]:
                "idle memory is laid to the function that touched it first, in small and huge pages; refaults to who caused them"
            kernel_damon = kernel_damon::records
                [on_6_1, on_6_12, on_6_12_arm64 ("takes minutes"), on_newest ("another kernel each month")]:
                "records by the kernel's DAMON, which another user keeps; restores it after SIGKILL; reports a kernel without it"
            kernel_damon_acts = kernel_damon::act [on_6_12, on_newest ("another kernel each month")]:
                "pages out by the kernel's DAMON what is cold, and in a dry run nothing"
            kernel_damon_daemon = kernel_damon_daemon::run [on_6_12, on_newest ("another kernel each month")]:
                "start --world kernel: tune by commit, a tuning that the kernel lacks, pause, resume, stop; the guard stops the kernel's schemes"
            kernel_damon_compare = kernel_damon_daemon::compare
                [on_6_12 ("takes a minute"), on_newest ("another kernel each month")]:
                "compare: Isotherm by regions, by DAMON's rules, simulated, and the kernel's DAMON in turns between exact scans"
            kernel_damon_migrate = kernel_damon_actions::between_nodes
                [on_6_12, on_newest ("another kernel each month")]:
                "the kernel's DAMON moves cold memory to node 1 and hot memory back, by frames; to two nodes, of a process"
            kernel_damon_lru = kernel_damon_actions::lists
                [on_6_12 ("takes a minute"), on_newest ("another kernel each month")]:
                "the kernel's DAMON puts hot frames on the active list and cold ones off it; cold and willneed of a process"
            kernel_damon_huge = kernel_damon_actions::huge_pages [on_6_12, on_newest ("another kernel each month")]:
                "the kernel's DAMON advises huge pages for what is hot, none for what is cold, and collapses"
            kernel_damon_quotas = kernel_damon_quotas::limited [on_6_12, on_newest ("another kernel each month")]:
                "the kernel's DAMON pages out no more than quotas of bytes and of time let it"
            kernel_damon_goals = kernel_damon_quotas::follow [on_6_12, on_newest ("another kernel each month")]:
                "the kernel's quotas follow their goals: a user's value, pressure, a node's free memory; missing goals are reported"
            kernel_damon_killed = kernel_damon_killed::run [on_6_12, on_newest ("another kernel each month")]:
                "SIGKILL at random moments: the next puts kernel DAMON in order; processes that come and go under it"
            kernel_damon_damo = kernel_damon_damo::run
                [on_6_12 ("fetches damo"), on_newest ("another kernel each month")]:
                "damo 3.4.3 beside ours: the same tree, exports, hot memory; left alone; its record is read"
            act_swap_full = act::more_than_swap [on_6_1 ("swap has the same interface on 6.12"), on_6_12]:
                "more cold memory than swap: what does not fit is refused by name, nothing is lost"
            act_physical = act_tier::whole_machine [on_6_1, on_6_12, on_6_12_arm64 ("takes minutes")]:
                "pprcl pages out what idles on the whole machine, and spares what does not"
            act_psi = act_psi::run [on_6_1 ("pressure has the same interface on 6.12"), on_6_12]:
                "memory pressure stops the schemes (--max-psi); without PSI the limit is refused"
            act = act::actions
                [on_6_1, on_6_12, on_6_1_arm64 ("takes minutes"), on_6_12_arm64 ("takes minutes"), on_6_12_arm64_16k ("takes minutes")]:
                "pageout, cold, stat, hugepage, collapse, nohugepage on a process; its data holds"
            act_migrate = act_tier::between_nodes
                [on_6_1 ("pages are moved by the same system call on 6.12"), on_6_12, on_6_12_arm64 ("takes minutes")]:
                "cold memory moves to node 1 and hot memory back, of a process and as `tier plan` has it"
            size = size::run [on_6_1 ("control groups have the same files on 6.12"), on_6_12 ("takes minutes")]:
                "size tries memory.high and undoes it; park freezes a group and pages it out, wake reads it back in order"
            record_stairs = record::stairs [on_6_1 ("takes a minute"), on_6_12 ("takes a minute")]:
                "records stairs: four regions hot one after the other"
            truth_family = kernel_damon_truth::alone
                [on_6_12 ("takes half an hour"), on_6_1_arm64 ("takes half an hour"), on_6_12_arm64 ("takes half an hour")]:
                "the default monitor on twelve programs of the generated family, on one and two nodes: precision and recall"
            kernel_damon_truth = kernel_damon_truth::run [on_6_12 ("takes an hour")]:
                "kernel DAMON, --faithful and the default at equal CPU on programs of the generated family"
            tiering = tiering::run [on_6_1 ("takes minutes"), on_6_12 ("takes minutes")]:
                "the experiment of redis on two tiers runs as shipped; tiered, redis is back on the fast node"
        }
    };
}
