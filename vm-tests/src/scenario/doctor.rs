//! `isotherm doctor` on each kernel, with and without what it needs.

use serde_json::Value;

use super::Report;
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::vm::Vm;

pub(super) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let vm = Vm::new(kernel).product()?.script(
        "echo 'nobody:x:65534:65534::/:/bin/sh' >/etc/passwd\n\
         isotherm doctor; echo exit=$?\n\
         isotherm doctor --json >/out/root.json; echo root=$?\n\
         su nobody -c 'isotherm doctor --json' >/out/user.json; echo user=$?",
    );
    let open = vm.run_ok()?;
    let locked = vm.cmdline_extra("lockdown=confidentiality").run_ok()?;

    let root: Value = open.json("root")?;
    let release = kernel.image()?.release;
    let kernel = &root["kernel"];
    ensure!(*kernel == release, "doctor takes the kernel for {kernel}");
    for line in open.stdout.lines() {
        report.say(line);
    }
    let (user, locked) = (open.json("user")?, locked.json("root")?);
    for (who, report_of, works) in [
        ("root", root, true),
        ("a user", user, false),
        ("root under lockdown=confidentiality", locked, false),
    ] {
        let (ability, why) = recording(&report_of)?;
        report.say(format!("{who}: record works: {ability}; {why}"));
        ensure!(ability == works, "for {who} recording is to work: {works}");
        let is_told = works || !why.is_empty();
        ensure!(is_told, "doctor does not say why {who} cannot record");
    }
    Ok(())
}

/// Reads from a report whether the first ability (recording processes) works, and the reason if it does not.
fn recording(report: &Value) -> Result<(bool, String)> {
    let ability = &report["abilities"][0];
    let works = ability["works"]
        .as_bool()
        .ok_or_else(|| VmError::Wrong(format!("doctor --json lists no ability: {report}")))?;
    let why = ability["why_not"].as_str().unwrap_or_default();
    Ok((works, why.to_owned()))
}
