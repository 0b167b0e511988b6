//! damo and a Python to run it: fetched once into `vm-tests/cache/`, as kernels are, and brought into a guest as trees.
//!
//! damo is pure Python and needs nothing but the standard library. Python is Debian's own package, so that it fits the
//! shared libraries of the host, which come along.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{cache_dir, fetched, lock, unpack_packages};
use crate::error::{self, Result, VmError};
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

pub(crate) fn with_damo(vm: Vm) -> Result<Vm> {
    let _guard = lock(&cache_dir()?.join("damo.lock"))?;
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

fn damo() -> Result<PathBuf> {
    fetched(&format!("damo_{VERSION}"), |work, tree| {
        let wanted = format!("damo=={VERSION}");
        let download = "-m pip download -q --no-deps --disable-pip-version-check -d";
        let mut pip = Command::new("python3");
        output(pip.args(download.split(' ')).arg(work).arg(wanted))?;
        let wheel = work.join(format!("damo-{VERSION}-py3-none-any.whl"));
        let mut unzip = Command::new("python3");
        output(unzip.args(["-m", "zipfile", "-e"]).arg(wheel).arg(tree))?;
        output(&mut compile(tree, &python()?)).map(drop)
    })
}

fn python() -> Result<PathBuf> {
    fetched("python3.11", |work, tree| {
        unpack_packages(&[], &PACKAGES.map(str::to_owned), work, tree, output)?;
        output(&mut compile(&tree.join("usr/lib/python3.11"), tree)).map(drop)
    })
}

/// Returns the command that writes byte code beside each source below `tree`. An emulated processor takes a quarter of
/// a minute for it. Files have no times in a guest, so none are compared.
fn compile(tree: &Path, python: &Path) -> Command {
    let mut command = Command::new(python.join("usr/bin/python3.11"));
    command
        .env("PYTHONHOME", python.join("usr"))
        .args("-m compileall -q --invalidation-mode unchecked-hash".split(' '))
        .arg(tree);
    command
}

fn output(command: &mut Command) -> Result<Vec<u8>> {
    error::output(command).map_err(|error| {
        VmError::Unavailable {
        what: format!("damo {VERSION} with a Python"),
        why: error.to_string(),
        fix: "needed are Debian 12's apt-get and dpkg-deb, python3 with pip, and the network once; or unpack damo's \
              wheel to vm-tests/cache/damo_3.4.3/ and the packages to vm-tests/cache/python3.11/"
            .to_owned(),
    }
    })
}
