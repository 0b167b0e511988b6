//! Builds `isotherm-what-if` as WebAssembly, packed, to embed it in the page. Where Rust has no such target, the page
//! is built without it and reports that.
//!
//! Only release profiles embed it: it is a build of a dozen crates with LTO, which would run at nearly every change. A
//! build for development reads the module from the target folder when it runs; `scripts/what-if` puts it there.
//!
//! The inner build has a folder of its own under the target folder, which all profiles share. It therefore runs once,
//! and waits for no lock that its caller holds.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

const TARGET: &str = "wasm32-unknown-unknown";
/// The crates that the module consists of.
const CRATES: [&str; 11] = [
    "what-if", "tune", "session", "sim", "engine", "policy", "config", "record", "render",
    "report", "workload",
];

fn main() -> std::io::Result<()> {
    let variable = |name| PathBuf::from(env::var_os(name).unwrap_or_default());
    let out = variable("OUT_DIR");
    let root = variable("CARGO_MANIFEST_DIR").join("../..");
    // target/PROFILE/build/NAME/out
    let folder = out.ancestors().nth(4).unwrap_or(&out).join("what-if");
    println!("cargo:rerun-if-changed=build.rs");
    println!(
        "cargo:rustc-env=ISOTHERM_WHAT_IF={}",
        folder.join("what-if.wasm.gz").display()
    );
    println!("cargo:rustc-check-cfg=cfg(what_if_at_run_time)");
    let is_wanted = env::var_os("CARGO_FEATURE_WHAT_IF").is_some();
    if is_wanted && env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        println!("cargo:rustc-cfg=what_if_at_run_time");
        return Ok(());
    }
    let wasm = if is_wanted {
        for name in CRATES {
            let path = root.join("crates").join(name);
            println!("cargo:rerun-if-changed={}", path.display());
        }
        let lock = root.join("Cargo.lock");
        println!("cargo:rerun-if-changed={}", lock.display());
        build(&root, &folder)
    } else {
        Vec::new()
    };
    let file = out.join("what-if.wasm.gz");
    if wasm.is_empty() {
        return fs::write(file, b"");
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&wasm)?;
    fs::write(file, packed.finish()?)
}

/// Builds the module; returns nothing where it cannot be built.
fn build(root: &Path, target: &Path) -> Vec<u8> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--locked", "--lib"])
        .args(["--package", "isotherm-what-if"])
        .args(["--profile", "wasm", "--target", TARGET, "--target-dir"])
        .arg(target)
        .current_dir(root);
    // The inner build must not inherit the outer one's flags, wrappers (clippy) and features.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let is_of_cargo =
            name.starts_with("CARGO_") && name != "CARGO_HOME" && !name.starts_with("CARGO_NET");
        let is_of_rust = name.starts_with("RUSTC") || name == "RUSTFLAGS" || name == "CARGO";
        let of_c = "TARGET HOST PROFILE OUT_DIR OPT_LEVEL DEBUG";
        let is_of_c = of_c.split(' ').any(|known| known == name);
        if is_of_cargo || is_of_rust || is_of_c {
            cargo.env_remove(&name);
        }
    }
    let module = target.join(TARGET).join("wasm/isotherm_what_if.wasm");
    let why = match cargo.output() {
        Ok(done) if done.status.success() => match fs::read(&module) {
            Ok(wasm) => return wasm,
            Err(error) => format!("{}: {error}", module.display()),
        },
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            said.lines()
                .find(|line| line.contains("error"))
                .unwrap_or("it failed")
                .to_owned()
        }
        Err(error) => error.to_string(),
    };
    println!(
        "cargo:warning=the page is built without its what-if ({why}); what it mostly lacks is `rustup target add {TARGET}`, after which crates/view/build.rs has to be touched"
    );
    Vec::new()
}
