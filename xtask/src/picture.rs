//! The picture of ARCHITECTURE.md: the crates, and which of them each may import.

pub(crate) struct CrateRule {
    pub(crate) name: &'static str,
    /// The workspace crates that it may import, by their names without `isotherm-`.
    may_import: &'static str,
    /// The path below which `unsafe` is permitted, if there is one.
    pub(crate) unsafe_under: Option<&'static str>,
}

impl CrateRule {
    pub(crate) fn imports(&self) -> impl Iterator<Item = String> {
        let names = self.may_import.split_whitespace();
        names.map(|name| format!("isotherm-{name}"))
    }
}

/// The picture: the single source of permitted imports. A crate that is not here fails.
pub(crate) const CRATES: &[CrateRule] = &[
    crate_rule("isotherm-engine", ""),
    crate_rule("isotherm-policy", "engine"),
    crate_rule("isotherm-render", "engine"),
    crate_rule("isotherm-config", "policy engine"),
    with_unsafe("isotherm-linux", "policy engine", ""),
    crate_rule("isotherm-record", "policy engine"),
    crate_rule("isotherm-damon", "policy engine"),
    crate_rule("isotherm-workload", "engine"),
    crate_rule("isotherm-report", "render policy engine record"),
    crate_rule("isotherm-fleet", "engine"),
    crate_rule("isotherm-park", "engine linux"),
    crate_rule("isotherm-size", "render engine linux record report"),
    crate_rule("isotherm-view", "render policy engine record report size"),
    crate_rule("isotherm-sim", "policy engine"),
    crate_rule("isotherm-symbols", "record"),
    crate_rule(
        "isotherm-session",
        "policy engine config damon linux record sim symbols workload",
    ),
    crate_rule("isotherm-tune", "render policy config engine session sim"),
    crate_rule("isotherm-eval", "render config engine linux session tune"),
    // These functions keep their names, for a browser.
    with_unsafe(
        "isotherm-what-if",
        "policy engine config record session tune",
        "src/abi.rs",
    ),
    // The laboratory: the product runs without it.
    crate_rule(
        "isotherm-reproduce",
        "render policy config engine session sim",
    ),
    crate_rule(
        "isotherm",
        "render policy engine config linux record report size park fleet view workload eval session symbols reproduce tune",
    ),
    crate_rule(
        "isotherm-python",
        "render policy engine config linux record report size view session tune",
    ),
    // This crate tests the product from outside, so it imports only the formats. The guest's own tool maps memory at
    // chosen addresses.
    with_unsafe(
        "isotherm-vm-tests",
        "policy engine record workload",
        "src/bin/vm-guest/memory.rs",
    ),
    // It depends on none of the code that it checks, so it is built first and in seconds.
    crate_rule("xtask", ""),
    // Benchmarks measure the engine and the probes directly.
    crate_rule(
        "isotherm-bench",
        "render policy engine linux workload record",
    ),
];

const fn crate_rule(name: &'static str, may_import: &'static str) -> CrateRule {
    CrateRule {
        name,
        may_import,
        unsafe_under: None,
    }
}

const fn with_unsafe(
    name: &'static str,
    may_import: &'static str,
    path: &'static str,
) -> CrateRule {
    CrateRule {
        name,
        may_import,
        unsafe_under: Some(path),
    }
}
