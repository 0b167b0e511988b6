//! Runs a shell script with the product inside a VM: `cargo run --example sh -- 6.1 'isotherm doctor'`.

use isotherm_vm_tests::{Kernel, Vm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let series = args.next().unwrap_or_default();
    let kernel = Kernel::EVERY.into_iter().find(|k| k.series() == series);
    let kernel = kernel.ok_or("name a kernel: 6.1, 6.12, 6.1-arm64, 6.12-arm64 or newest")?;
    let script = args.next().ok_or("name a script")?;
    let output = Vm::new(kernel)
        .memory_mib(1024)
        .product()?
        .guest_tool()?
        .text(
            "/w.cfg",
            "a, 32MiB\nb, 32MiB\n\nserve\n600000\na, 1, 64, 1, rw\n",
        )
        .script(&script)
        .run()?;
    println!("{}{}", output.console, output.stdout);
    Ok(())
}
