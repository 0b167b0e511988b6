//! Runs a shell script with the product inside a VM: `cargo run --example sh -- 6.1 'isotherm doctor'`.

use isotherm_vm_tests::{Kernel, Vm, guest_tool, isotherm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let kernel = match args.next().as_deref() {
        Some("6.12") => Kernel::Debian612,
        _ => Kernel::Debian61,
    };
    let script = args.next().ok_or("name a script")?;
    let output = Vm::new(kernel)
        .memory_mib(1024)
        .program(isotherm()?, "isotherm")
        .program(guest_tool()?, "vm-guest")
        .text(
            "/w.cfg",
            "a, 32MiB\nb, 32MiB\n\nserve\n600000\na, 1, 64, 1, rw\n",
        )
        .script(&script)
        .run()?;
    println!("{}", output.console);
    Ok(())
}
