//! Wall times of tests, read from the output of suites.
//!
//! Four forms are known: `TOOK NAME: 1.5 s`, libtest's `--report-time`, Node's `✔ NAME (12.5ms)` and pytest's `0.12s
//! call NAME`. A test prints the first form itself, without the time that it waits for its turn.

use std::collections::BTreeMap;

const SLOWEST: usize = 10;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Times(BTreeMap<String, f64>);

impl Times {
    /// Reads a suite's output. A test that ran twice counts with its longer run.
    pub(super) fn read(output: &str) -> Self {
        let mut times = BTreeMap::new();
        for (name, seconds) in output.lines().filter_map(took) {
            let longest: &mut f64 = times.entry(name.to_owned()).or_default();
            *longest = longest.max(seconds);
        }
        Self(times)
    }

    /// One line for each test: suite, test, seconds.
    pub(super) fn csv(&self, suite: &str) -> String {
        let line = |(name, seconds): (&String, &f64)| {
            format!("{suite},\"{}\",{seconds:.3}\n", name.replace('"', "\"\""))
        };
        self.0.iter().map(line).collect()
    }
}

/// The slowest tests of all suites, slowest first, one line each.
pub(super) fn slowest<'a>(suites: impl Iterator<Item = (&'a str, &'a Times)>) -> Vec<String> {
    let mut all: Vec<(&str, &str, f64)> = suites
        .flat_map(|(suite, times)| {
            let tests = times.0.iter();
            tests.map(move |(name, seconds)| (suite, name.as_str(), *seconds))
        })
        .collect();
    all.sort_by(|a, b| b.2.total_cmp(&a.2));
    let lines = all.iter().take(SLOWEST);
    lines
        .map(|(suite, name, seconds)| format!("{seconds:>7.1} s  {suite}: {name}"))
        .collect()
}

fn took(line: &str) -> Option<(&str, f64)> {
    let line = line.trim();
    if let Some((name, rest)) = line.strip_prefix("TOOK ").and_then(|l| l.rsplit_once(": ")) {
        return Some((name, rest.split_once(" s")?.0.parse().ok()?));
    }
    if let Some((name, result)) = line
        .strip_prefix("test ")
        .and_then(|l| l.split_once(" ... "))
    {
        let (_, time) = result.split_once(" <")?;
        return Some((name, time.strip_suffix("s>")?.parse().ok()?));
    }
    if let Some((name, time)) = line.strip_prefix("✔ ").and_then(|l| l.rsplit_once(" (")) {
        let milliseconds: f64 = time.strip_suffix("ms)")?.parse().ok()?;
        return Some((name, milliseconds / 1e3));
    }
    let (time, name) = line.split_once("s call ")?;
    Some((name.trim(), time.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_output_is_read() {
        let output = "TOOK a::b: 1.5 s, waited 20.0 s\ntest c ... ok <0.250s>\ntest d ... ok\nTOOK a::b: 0.5 s\n\
                      ✔ opens (12.5ms)\n0.75s call     tests/x.py::f\ntest e ... ignored, long\nTOOK nothing\n";
        let times = Times::read(output);
        let csv = "s,\"a::b\",1.500\ns,\"c\",0.250\ns,\"opens\",0.013\ns,\"tests/x.py::f\",0.750\n";
        assert_eq!(times.csv("s"), csv);
        let lines = slowest([("s", &times)].into_iter());
        assert_eq!(lines[0], "    1.5 s  s: a::b");
        assert_eq!(lines.len(), 4);
    }
}
