//! The project's own tasks: `cargo run -p xtask -- TASK`.

mod book;
mod circles;
mod docs;
mod files;
mod picture;
mod suites;
mod tally;
mod tidy;
mod weight;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

const CHORES: &str = "\
Chores:
  tidy    check the rules of the house: who imports whom, file sizes, where unsafe may be, links of documents
  book    write the source of the book, or check its pages (see `book --help`; scripts/book does both)
  test    run every suite of tests and end with one line of totals (see `test --help`)";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let result = match args.peek().map(String::as_str) {
        Some("tidy") => tidy::run(&root()),
        Some("book") => book::run(&root(), &book::Args::parse_from(args)),
        // These are parts of suites, as processes of their own.
        Some("build-tests") => suites::executables::build(&root()),
        Some("run-tests") => {
            suites::executables::run(&root(), &suites::executables::Args::parse_from(args))
        }
        Some("test") => suites::run(&root(), &suites::Args::parse_from(args)),
        _ => {
            eprintln!("usage: cargo run -p xtask -- CHORE\n{CHORES}");
            return ExitCode::from(2);
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// Returns the top of the checkout that this program was built from.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_owned()
}
