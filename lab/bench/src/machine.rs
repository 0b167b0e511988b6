//! The machine of a measurement: without it, numbers mean nothing.

use std::process::Command;

use serde_json::{Value, json};

use super::BenchContext;

pub(super) fn describe(context: &BenchContext) -> Value {
    let read = |path: &str| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, model)| model.trim());
    json!({
        "time": output(Command::new("date").args(["-u", "+%FT%TZ"])),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "cpu": model,
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_bytes": meminfo("MemTotal:").unwrap_or(0),
        "hypervisor": cpuinfo.contains(" hypervisor"),
        "transparent_hugepage": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_average": read("/proc/loadavg"),
        "isotherm": output(Command::new(&context.isotherm).arg("--version")),
        "commit": output(Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(&context.root)),
    })
}

pub(super) fn line(machine: &Value) -> String {
    let text = |name: &str| machine[name].as_str().unwrap_or("?").to_owned();
    format!(
        "{} {} ({}), kernel {}, {} CPUs ({}), {:.1} GiB, huge pages {}, load {}",
        text("time"),
        text("isotherm"),
        text("commit"),
        text("kernel"),
        machine["cpus"],
        text("cpu"),
        machine["memory_bytes"].as_f64().unwrap_or(0.0) / (1u64 << 30) as f64,
        text("transparent_hugepage"),
        text("load_average"),
    )
}

pub(super) fn meminfo(name: &str) -> Option<u64> {
    Some(number("/proc/meminfo", name)? << 10)
}

/// Returns the number after `name` in a file of `/proc`.
pub(super) fn number(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the output of a command, or the reason why there is none.
pub(super) fn output(command: &mut Command) -> String {
    match command.output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        Ok(output) => format!("unknown ({})", output.status),
        Err(error) => format!("unknown ({error})"),
    }
}
