//! Compiles each BPF program with clang into one object for all kernels (CO-RE), and embeds it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Source names, without `.bpf.c`.
const PROGRAMS: [&str; 4] = ["page_table", "page_cache", "damon_trace", "faults"];

fn main() {
    println!("cargo:rerun-if-changed=src/probe/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    for program in PROGRAMS {
        compile(program);
    }
}

fn compile(program: &str) {
    let source = format!("src/probe/bpf/{program}.bpf.c");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
        .join(format!("{program}.bpf.o"));
    let include = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    let directory = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let architecture = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "-D__TARGET_ARCH_arm64",
        _ => "-D__TARGET_ARCH_x86",
    };
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf"])
        .arg(architecture)
        .arg(format!("-I{include}"))
        // The file names of lines in BTF are the same wherever it is built.
        .arg(format!("-ffile-prefix-map={directory}=crates/linux"))
        .arg(format!("-ffile-prefix-map={include}=libbpf"))
        .args(["-c", &source, "-o"])
        .arg(&out)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            panic!("{clang} could not compile {source} ({status}); clang 11 or later is needed")
        }
        Err(error) => panic!(
            "cannot run {clang} to compile {source}: {error}; install it (Debian: apt-get install clang) \
             or name it in the environment variable CLANG"
        ),
    }
}
