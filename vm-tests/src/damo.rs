//! damo and a Python to run it: fetched once into `vm-tests/cache/`, as kernels are, and brought into a guest as trees.
//!
//! damo is pure Python and needs nothing but the standard library. Python is Debian's own package, so that it fits the
//! shared libraries of the host, which come along.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::VmError;
use crate::kernel::{cache_dir, lock};
use crate::vm::Vm;

/// The version that everything is compared with, as in `tests/interop/requirements.txt`.
const VERSION: &str = "3.4.3";
const PACKAGES: [&str; 3] = [
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
];
/// `damo`, and stand-ins for programs that it calls and that busybox lacks or implements differently.
const PROGRAMS: [(&str, &str); 3] = [
    (
        "/bin/damo",
        "#!/bin/sh\nexec /usr/bin/python3.11 /damo/damo/damo.py \"$@\"\n",
    ),
    // damo asks `file` for the type of a record.
    (
        "/bin/file",
        "#!/bin/sh\ncase $(head -c 1 \"$2\" | od -An -tx1) in\n*78) echo 'zlib compressed data';;\n\
         *5b | *7b) echo 'JSON data';;\n*) echo 'ASCII text';;\nesac\n",
    ),
    // damo asks `ps` whether a process lives, and for its children, of which there are none.
    (
        "/bin/ps",
        "#!/bin/sh\n[ \"$1\" = --pid ] && [ -d /proc/$2 ]\n",
    ),
];

/// Returns the machine with damo added as `/bin/damo`.
pub(crate) fn with_damo(vm: Vm) -> Result<Vm, VmError> {
    let (damo, python) = (damo()?, python()?);
    let library = python.join("usr/lib/python3.11");
    let vm = vm
        .program_at(python.join("usr/bin/python3.11"), "usr/bin/python3.11")
        .tree(library, "/usr/lib/python3.11")
        .tree(damo, "/damo");
    Ok(PROGRAMS
        .iter()
        .fold(vm, |vm, (path, text)| vm.text(path, text)))
}

fn damo() -> Result<PathBuf, VmError> {
    fetched(&format!("damo_{VERSION}"), |work, tree| {
        let wanted = format!("damo=={VERSION}");
        let options = [
            "download",
            "-q",
            "--no-deps",
            "--disable-pip-version-check",
            "-d",
        ];
        let mut pip = Command::new("python3");
        output(pip.args(["-m", "pip"]).args(options).arg(work).arg(wanted))?;
        let wheel = work.join(format!("damo-{VERSION}-py3-none-any.whl"));
        let mut unzip = Command::new("python3");
        output(unzip.args(["-m", "zipfile", "-e"]).arg(wheel).arg(tree))?;
        output(&mut compile(tree, &python()?))
    })
}

fn python() -> Result<PathBuf, VmError> {
    fetched("python3.11", |work, tree| {
        let mut apt = Command::new("apt-get");
        output(
            apt.args(["download", "-q"])
                .args(PACKAGES)
                .current_dir(work),
        )?;
        for deb in fs::read_dir(work).map_err(VmError::io("list", work))? {
            let deb = deb.map_err(VmError::io("list", work))?.path();
            if deb.extension().is_some_and(|is| is == "deb") {
                output(Command::new("dpkg-deb").arg("-x").arg(deb).arg(tree))?;
            }
        }
        output(&mut compile(&tree.join("usr/lib/python3.11"), tree))
    })
}

/// Returns the command that writes byte code beside each source below `tree`. An emulated processor takes a quarter of
/// a minute for it. Files have no times in a guest, so none are compared.
fn compile(tree: &Path, python: &Path) -> Command {
    let mut command = Command::new(python.join("usr/bin/python3.11"));
    command
        .env("PYTHONHOME", python.join("usr"))
        .args([
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode",
            "unchecked-hash",
        ])
        .arg(tree);
    command
}

/// Returns the tree of this name in the cache, and makes it there first if it is missing.
fn fetched(
    name: &str,
    make: impl FnOnce(&Path, &Path) -> Result<(), VmError>,
) -> Result<PathBuf, VmError> {
    let cache = cache_dir()?;
    let _guard = lock(&cache.join(format!("{name}.lock")))?;
    let dir = cache.join(name);
    if dir.is_dir() {
        return Ok(dir);
    }
    let work = tempfile::tempdir_in(&cache).map_err(VmError::io("make a directory in", &cache))?;
    let tree = work.path().join("tree");
    fs::create_dir(&tree).map_err(VmError::io("make", &tree))?;
    make(work.path(), &tree)?;
    // Only a complete tree gets the final name.
    fs::rename(&tree, &dir).map_err(VmError::io("rename into place", &dir))?;
    Ok(dir)
}

fn output(command: &mut Command) -> Result<(), VmError> {
    let unavailable = |why: String| {
        VmError::Unavailable {
        what: format!("damo {VERSION} with a Python"),
        why,
        fix: "needed are Debian 12's apt-get and dpkg-deb, python3 with pip, and the network once; or unpack damo's \
              wheel to vm-tests/cache/damo_3.4.3/ and the packages to vm-tests/cache/python3.11/"
            .to_owned(),
    }
    };
    let output = command
        .output()
        .map_err(|error| unavailable(format!("{command:?}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(unavailable(format!("{command:?}: {words}")))
}
