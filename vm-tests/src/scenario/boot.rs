//! The kernels boot and have the features that the other scenarios rely on.

use super::Report;
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::vm::{FIVE_LEVELS, Vm, VmOutput};

/// Returns the value of the line `KEY=VALUE` that a script printed.
fn fact<'a>(output: &'a VmOutput, key: &str) -> Result<&'a str> {
    output
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        .ok_or_else(|| VmError::Wrong(format!("no line {key}=... in:\n{}", output.stdout)))
}

fn expect(output: &VmOutput, key: &str, want: &str) -> Result<()> {
    let got = fact(output, key)?;
    ensure!(got == want, "{key} is `{got}`, not `{want}`");
    Ok(())
}

pub(super) fn boot(kernel: Kernel, report: &mut Report) -> Result<()> {
    let output = Vm::new(kernel)
        .module("zram")
        .script(
            "echo release=$(uname -r)\n\
             echo btf=$([ -s /sys/kernel/btf/vmlinux ] && echo yes)\n\
             echo bpf=$(cat /proc/sys/kernel/unprivileged_bpf_disabled)\n\
             echo damon=$([ -d /sys/kernel/mm/damon/admin ] && echo yes || echo no)\n\
             echo zram=$([ -b /dev/zram0 ] && echo yes)\n\
             cp /sys/kernel/btf/vmlinux /out/btf\n\
             echo sum=$(sha256sum </out/btf)\n\
             mkdir /out/below && echo text >/out/below/file\n\
             exit 7",
        )
        .run()?;
    let release = kernel.image()?.release;
    expect(&output, "release", &release)?;
    expect(&output, "btf", "yes")?;
    let has_damon = !matches!(
        kernel,
        Kernel::Debian61 | Kernel::Debian61Arm64 | Kernel::DebianNewest
    );
    let damon = if has_damon { "yes" } else { "no" };
    expect(&output, "damon", damon)?;
    expect(&output, "zram", "yes")?;
    // The file exists only where the bpf system call does; 2 is Debian's setting.
    expect(&output, "bpf", "2")?;
    let code = output.exit_code;
    ensure!(code == 7, "the exit code came back as {code}");
    let text = output.text("below/file")?;
    ensure!(text == "text\n", "a file came back changed: {text}");
    let btf = output.bytes("btf")?;
    let is_btf = btf.starts_with(&0xeb9f_u16.to_le_bytes());
    ensure!(is_btf, "the BTF that came back has no BTF magic");
    report.say(format!(
        "{release}: {:.1} s in all, {} bytes of BTF, kernel DAMON: {damon}",
        output.elapsed.as_secs_f64(),
        btf.len(),
    ));
    Ok(())
}

pub(super) fn levels(kernel: Kernel, report: &mut Report) -> Result<()> {
    let vm = Vm::new(kernel).guest_tool()?.script(
        "echo la57=$(grep -m1 -ow la57 /proc/cpuinfo)\n\
             echo high=$(vm-guest map-high)",
    );
    let four = vm.run_ok()?;
    expect(&four, "la57", "")?;
    expect(&four, "high", "refused")?;
    let five = vm.clone().cpu(FIVE_LEVELS).run_ok()?;
    expect(&five, "la57", "la57")?;
    let address = fact(&five, "high")?;
    let is_high = address.starts_with("0x") && address.len() > 14;
    ensure!(is_high, "memory asked for above 47 bits is at {address}");
    let booted_with_no5lvl = vm.cpu(FIVE_LEVELS).cmdline_extra("no5lvl").run_ok()?;
    expect(&booted_with_no5lvl, "high", "refused")?;
    report.say(format!(
        "max,la57=off: four levels; la57=on: five, memory at {address}; and no5lvl: four, la57 in cpuinfo: `{}`",
        fact(&booted_with_no5lvl, "la57")?
    ));
    Ok(())
}

pub(super) fn nodes(kernel: Kernel, report: &mut Report) -> Result<()> {
    let output = Vm::new(kernel)
        .numa_nodes(2)
        .script(
            "echo online=$(cat /sys/devices/system/node/online)\n\
             echo balancing=$(cat /proc/sys/kernel/numa_balancing)\n\
             echo memory=$(grep -h MemTotal /sys/devices/system/node/node*/meminfo | tr -s ' ' | cut -d' ' -f4)\n\
             echo cpus=$(cat /sys/devices/system/node/node*/cpulist)",
        )
        .run_ok()?;
    expect(&output, "online", "0-1")?;
    expect(&output, "balancing", "1")?;
    expect(&output, "cpus", "0 1")?;
    report.say(format!(
        "nodes 0-1 with {} KiB, a processor each, NUMA balancing on",
        fact(&output, "memory")?
    ));
    if kernel.is_arm64() {
        return Ok(());
    }
    let far = Vm::new(kernel)
        .far_node()
        .script(
            "echo cpus=$(cat /sys/devices/system/node/node*/cpulist)\n\
             echo tiers=$(cat /sys/devices/virtual/memory_tiering/memory_tier*/nodelist | sort)",
        )
        .run_ok()?;
    expect(&far, "cpus", "0-1")?;
    // Linux makes tiers of the firmware's latencies since 6.7.
    let tiers = if kernel == Kernel::Debian61 {
        "0-1"
    } else {
        "0 1"
    };
    expect(&far, "tiers", tiers)?;
    report.say(format!("a node declared slower: memory tiers {tiers}"));
    Ok(())
}
