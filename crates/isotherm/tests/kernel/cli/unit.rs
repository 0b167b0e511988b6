//! The service file under systemd: its permissions are sufficient, and what it forbids fails.
//!
//! A systemd of the test's own, with no units but the test's, runs in namespaces and a control group that end with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{
    Finished, Running, free_address, http_get, pause, python_path, run, scratch, shared, skip,
    until, until_so,
};

/// Arguments: a control group, a directory that becomes /run/test, systemd.
const BOOT: &str = r#"
echo $$ >"$1/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --mount-proc --uts --ipc --cgroup \
    --propagation private sh -euc '
        umount -R /sys/fs/cgroup
        mount -t cgroup2 none /sys/fs/cgroup
        mount --bind "$1" /mnt
        mount -t tmpfs -o mode=755 none /run
        mkdir /run/test
        cp -r /mnt/. /run/test
        for hidden in /etc/systemd /usr/lib/systemd/system-generators; do
            [ ! -d $hidden ] || mount -t tmpfs none $hidden
        done
        mount --bind /run/test/units /usr/lib/systemd/system
        exec env -i container=other "PATH=$PATH" "$2" --system --show-status=no
    ' sh "$2" "$3"
"#;

/// Maps 64 MiB, of which an eighth is in use.
const TARGET: &str = "
import mmap, time
memory = mmap.mmap(-1, 64 << 20)
for at in range(0, 64 << 20, 4096): memory[at] = 1
while True:
    for at in range(0, 8 << 20, 4096): memory[at] = 1
    time.sleep(0.05)
";

const TARGET_UNIT: &str = "\
[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=PYTHON /run/test/target.py\n";

const SCHEMES: &str = "4K max 0 0 2s max cold\n";

const SHIPPED: &str = include_str!("../../../../../contrib/isotherm.service");

/// A running systemd.
struct Systemd {
    _unshare: Running,
    init: u32,
    group: PathBuf,
    /// Address of its metrics.
    address: String,
    _files: TempDir,
}

impl Systemd {
    fn boot() -> Option<Self> {
        let binary = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];
        let binary = binary.into_iter().find(|path| Path::new(path).exists());
        let cgroups = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let has_controllers = |path: &&Path| path.join("cgroup.controllers").exists();
        let cgroups = cgroups.into_iter().find(has_controllers);
        let (Some(binary), Some(cgroups)) = (binary, cgroups) else {
            skip("there is no systemd, or no cgroup v2");
            return None;
        };
        let group = cgroups.join(format!("isotherm-test-{}", std::process::id()));
        let unshare = "--mount --pid --fork --mount-proc --uts --ipc --cgroup true";
        let mut namespaces = Command::new("unshare");
        let can_unshare = run(namespaces.args(unshare.split(' '))).code() == 0;
        if !can_unshare || fs::create_dir(&group).is_err() {
            skip("namespaces or control groups cannot be made here");
            return None;
        }
        let files = scratch();
        let address = free_address();
        write_files(files.path(), &address);
        let mut command = Command::new("sh");
        command.args(["-euc", BOOT, "sh"]).arg(&group);
        let mut unshare = Running::start(command.arg(files.path()).arg(binary));
        let children = format!("/proc/{0}/task/{0}/children", unshare.pid());
        let init = until("systemd", || {
            assert!(unshare.is_running(), "{}", unshare.stderr());
            let init = fs::read_to_string(&children).ok()?.trim().parse().ok()?;
            let name = fs::read_to_string(format!("/proc/{init}/comm")).ok()?;
            (name.trim() == "systemd").then_some(init)
        });
        Some(Self {
            _unshare: unshare,
            init,
            group,
            address,
            _files: files,
        })
    }

    /// Runs a command in systemd's namespaces.
    fn run(&self, words: &[&str]) -> Finished {
        let init = self.init.to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &init, "-m", "-p", "-u", "-i", "-C"]);
        run(command.args(words))
    }

    fn property(&self, name: &str) -> String {
        let shown = self.run(&["systemctl", "show", "-P", name, "isotherm"]);
        shown.stdout.trim().to_owned()
    }

    fn status(&self) -> Option<Value> {
        let said = self.run(&["/run/test/isotherm", "status", "--json"]);
        serde_json::from_str(&said.stdout).ok()
    }

    /// Returns the daemon's output.
    fn said(&self) -> String {
        let path = format!("/proc/{}/root/run/test/said", self.init);
        fs::read_to_string(path).unwrap_or_default()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // This fails only if it has ended already.
        kill(Pid::from_raw(self.init as i32), Signal::SIGKILL).ok();
        // The groups are removed with the last of their processes.
        let mut remove = Command::new("find");
        remove.arg(&self.group);
        remove.args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]);
        for _ in 0..50 {
            if !self.group.exists() || run(&mut remove).code() == 0 {
                return;
            }
            pause(0.1);
        }
    }
}

/// Writes the files of /run/test.
fn write_files(directory: &Path, address: &str) {
    let units = directory.join("units");
    fs::create_dir(&units).expect("a directory");
    let unit = |name: &str, text: &str| fs::write(units.join(name), text).expect("a unit");
    for target in ["basic", "sysinit", "local-fs", "shutdown", "umount"] {
        let text = format!("[Unit]\nDescription={target}\nDefaultDependencies=no\n");
        unit(&format!("{target}.target"), &text);
    }
    let wanted = "[Unit]\nRequires=isotherm.service\nDefaultDependencies=no\n";
    unit("default.target", wanted);
    let target = TARGET_UNIT.replace("PYTHON", &python_path());
    unit("target.service", &target);
    let mut service = SHIPPED.to_owned();
    for (path, here) in [
        ("/usr/local/bin/isotherm", "/run/test/isotherm"),
        ("/etc/isotherm/isotherm.yaml", "/run/test/schemes.damos"),
        ("/etc/default/isotherm", "/run/test/default"),
        (
            "After=local-fs.target",
            "After=target.service\nRequires=target.service",
        ),
        (
            "[Service]\n",
            "[Service]\nStandardError=append:/run/test/said\n",
        ),
    ] {
        assert!(service.contains(path), "the service file names no {path}");
        service = service.replace(path, here);
    }
    unit("isotherm.service", &service);
    let file = |name: &str, text: &str| fs::write(directory.join(name), text).expect("a file");
    file("target.py", TARGET);
    file("schemes.damos", SCHEMES);
    let arguments = "--cgroup system.slice/target.service --no-guard --metrics";
    let arguments = format!("ISOTHERM_ARGS={arguments} {address}\n");
    file("default", &arguments);
    let binary = env!("CARGO_BIN_EXE_isotherm");
    fs::copy(binary, directory.join("isotherm")).expect("a copy of the binary");
}

#[test]
fn the_service_works_under_systemd() {
    let Some(_turn) = shared() else { return };
    let Some(systemd) = Systemd::boot() else {
        return;
    };
    until("the daemon to act", || {
        let status = systemd.status()?;
        let applied = &status["contexts"][0]["schemes"][0]["stats"]["sz_applied"];
        (applied.as_u64()? > 40 << 20).then_some(())
    });
    let pid = systemd.property("MainPID");
    let process = systemd.run(&["cat", &format!("/proc/{pid}/status")]).stdout;
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1"] {
        assert!(process.contains(line), "{process}");
    }
    let answer = http_get(&systemd.address, "/metrics").expect("metrics");
    assert!(answer.contains("isotherm_scheme_applied_bytes"), "{answer}");

    systemd.run(&["systemctl", "reload", "isotherm"]).success();
    until_so("the reload", || systemd.said().contains("are in force"));
    assert_eq!(systemd.property("SubState"), "running");
    systemd.run(&["systemctl", "stop", "isotherm"]).success();
    assert_eq!(systemd.property("Result"), "success");
    assert!(systemd.said().contains("were acted on"));
}
