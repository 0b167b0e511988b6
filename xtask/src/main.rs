//! The project's own chores: `cargo run --release -p xtask -- CHORE`.

mod bench;

use std::process::ExitCode;

const CHORES: &str = "\
Chores:
  bench   measure accuracy, overhead and speed (see `bench --help`)";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let result = match args.peek().map(String::as_str) {
        Some("bench") => bench::main(args),
        // How bench runs a command whose memory is to be measured alone.
        Some("measure") => bench::measure::main(args.skip(1)),
        _ => {
            eprintln!("usage: cargo run --release -p xtask -- CHORE\n{CHORES}");
            return ExitCode::from(2);
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
