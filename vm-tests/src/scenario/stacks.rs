//! Functions that made idle memory (`record --stacks`), of a program of known truth (`vm-guest blamed`). The program
//! has memory in small pages and in huge ones, memory in use, and memory that was read back from swap. It is recorded
//! with and without tracing of the kernel's function that maps huge pages. Then `record --stacks` must be refused to a
//! user, in a container, and to root under lockdown.

use isotherm_record::Reader;
use isotherm_record::stacks::HUGE_PAGES_SETTING;
use serde_json::Value;

use super::Report;
use super::acting::mib;
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::vm::{Vm, VmOutput};

/// Bytes that each function touches.
const PART: u64 = 32 << 20;
/// Bytes that may be attributed to another function.
const SLACK: u64 = PART / 10;
/// Options of the recorder; samples take longer under emulation.
const BUDGET: &str = "--stacks=20% --cpu-budget 20%";

/// Cases in which recording must be refused, and a part of the message in each.
const REFUSED: [(&str, &str); 3] = [
    ("user", "isotherm doctor"),
    ("container", "hostPID: true"),
    ("lockdown", "isotherm doctor"),
];

pub(super) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "isotherm swap zram --size 128M || exit 1\n\
         echo madvise >/sys/kernel/mm/transparent_hugepage/enabled\n\
         # record NAME SECONDS OPTIONS: of a program that touches its memory in functions of its own.\n\
         record() {{\n\
             name=$1; seconds=$2; shift 2\n\
             taskset $other_cpu isotherm record {BUDGET} --duration $seconds --stop-command -o /out/$name.isotherm -- \
                 taskset 1 vm-guest blamed \"$@\" || exit 1\n\
         }}\n\
         say() {{\n\
             isotherm report blame /out/$1.isotherm --of $2 --at-least 2s --json >/out/$1-$2.json || exit 1\n\
         }}\n\
         # Then what is attached to functions is not called.\n\
         echo 0 >/proc/sys/kernel/ftrace_enabled\n\
         record plain 8s && say plain resident\n\
         echo 1 >/proc/sys/kernel/ftrace_enabled\n\
         record traced 10s --swap && say traced idle && say traced refaulted\n\
         echo 'nobody:x:65534:65534::/:/bin/sh' >/etc/passwd\n\
         su nobody -c 'isotherm record --stacks -o /tmp/user -- true' >/out/user 2>&1 && exit 1\n\
         unshare -m -p -f --mount-proc isotherm record --stacks -o /tmp/container -- true >/out/container 2>&1 && exit 1\n\
         mount -t securityfs security /sys/kernel/security\n\
         echo confidentiality >/sys/kernel/security/lockdown || exit 1\n\
         isotherm record --stacks -o /tmp/lockdown -- true >/out/lockdown 2>&1 && exit 1\n\
         exit 0\n"
    );
    let vm = Vm::new(kernel)
        // In a slower guest the program leaves memory that it uses untouched for seconds.
        .instruction_ns_log2(2)
        .product()?
        .guest_tool()?
        .zram()
        .script(&script);
    let output = vm.run_ok()?;
    for (name, how) in [("plain", "page table"), ("traced", "tracing")] {
        let setting = huge_pages_setting(&output, name)?;
        report.say(format!("{name}: huge pages are seen by: {setting}"));
        ensure!(setting.contains(how), "{name}: not by {how}");
    }
    let mut wrong = Vec::new();
    for (of, function, bytes) in WANTED {
        let json: Value = output.json(of)?;
        let found = blamed(&json, function);
        let (is, wanted) = (mib(found), mib(bytes));
        report.say(format!("{of:<18} {function:<12} {is} of {wanted}"));
        if found.abs_diff(bytes) > SLACK {
            wrong.push(format!("{of}: {function}: {}", json["blamed"]));
        }
    }
    ensure!(wrong.is_empty(), "something else: {}", wrong.join("\n"));
    for (who, wanted) in REFUSED {
        let said = output.text(who)?;
        report.say(format!("{who}: {}", said.trim()));
        let is_said = said.contains(wanted);
        ensure!(is_said, "the refusal of {who} lacks `{wanted}`");
    }
    Ok(())
}

/// Reports, and the bytes that each attributes to a function.
const WANTED: [(&str, &str, u64); 8] = [
    ("plain-resident", "fill_index", PART),
    ("plain-resident", "fill_table", PART),
    ("plain-resident", "fill_cache", PART),
    ("traced-idle", "fill_index", PART),
    ("traced-idle", "fill_table", PART),
    ("traced-idle", "fill_cache", 0),
    ("traced-refaulted", "read_log", PART),
    ("traced-refaulted", "write_log", 0),
];

/// Sums the bytes of a function of `vm-guest`.
fn blamed(report: &Value, function: &str) -> u64 {
    let blamed = report["blamed"].as_array().into_iter().flatten();
    let is_it = |of: &&Value| {
        let name = of["name"].as_str().unwrap_or_default();
        name.rsplit("::").next() == Some(function)
    };
    blamed
        .filter(is_it)
        .filter_map(|of| of["bytes"].as_u64())
        .sum()
}

fn huge_pages_setting(output: &VmOutput, name: &str) -> Result<String> {
    let file = format!("{name}.isotherm");
    let reader = Reader::open(output.bytes(&file)?);
    let reader = reader.map_err(|e| VmError::Wrong(format!("{file}: {e}")))?;
    let setting = reader.header().settings.get(HUGE_PAGES_SETTING).cloned();
    setting.ok_or_else(|| VmError::Wrong(format!("{file} does not say how huge pages are seen")))
}
