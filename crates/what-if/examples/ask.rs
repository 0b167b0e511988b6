//! Asks a trace natively: `ask RECORD [ONE-IN] < QUESTIONS`, with a question in JSON on each line, and an answer on
//! each. A test compares the page's answers with these (`tests/page/what-if.test.mjs`).

use std::io::{BufRead, Write};

use anyhow::Context as _;
use isotherm_what_if::WhatIf;

fn main() -> anyhow::Result<()> {
    let path = std::env::args_os()
        .nth(1)
        .context("ask RECORD < QUESTIONS")?;
    let one_in = std::env::args().nth(2).map_or(Ok(1), |word| word.parse())?;
    let what_if = WhatIf::open(&std::fs::read(path)?, one_in, |_| {})?;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &what_if.facts()?)?;
    writeln!(out)?;
    for line in std::io::stdin().lock().lines() {
        let question = serde_json::from_str(&line?)?;
        serde_json::to_writer(&mut out, &what_if.predict(&question)?)?;
        writeln!(out)?;
    }
    Ok(())
}
