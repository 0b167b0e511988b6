//! The picture of ARCHITECTURE.md: the crates, and which of them each may import.

/// A crate of the workspace and the rules for it.
pub(crate) struct CrateRule {
    pub(crate) name: &'static str,
    /// The workspace crates that it may import.
    pub(crate) may_import: &'static [&'static str],
    /// The path below which `unsafe` is permitted, if there is one.
    pub(crate) unsafe_under: Option<&'static str>,
}

/// The picture: the single source of permitted imports. A crate that is not here fails.
pub(crate) const CRATES: &[CrateRule] = &[
    crate_rule("isotherm-engine", &[]),
    crate_rule("isotherm-policy", &["isotherm-engine"]),
    crate_rule("isotherm-render", &["isotherm-engine"]),
    crate_rule("isotherm-config", &["isotherm-policy", "isotherm-engine"]),
    CrateRule {
        name: "isotherm-linux",
        may_import: &["isotherm-policy", "isotherm-engine"],
        unsafe_under: Some(""),
    },
    crate_rule("isotherm-record", &["isotherm-policy", "isotherm-engine"]),
    crate_rule("isotherm-damon", &["isotherm-policy", "isotherm-engine"]),
    crate_rule("isotherm-workload", &["isotherm-engine"]),
    crate_rule(
        "isotherm-report",
        &[
            "isotherm-render",
            "isotherm-policy",
            "isotherm-engine",
            "isotherm-record",
        ],
    ),
    crate_rule(
        "isotherm-view",
        &[
            "isotherm-render",
            "isotherm-policy",
            "isotherm-engine",
            "isotherm-record",
            "isotherm-report",
        ],
    ),
    crate_rule("isotherm-sim", &["isotherm-policy", "isotherm-engine"]),
    crate_rule("isotherm-symbols", &["isotherm-record"]),
    crate_rule(
        "isotherm-session",
        &[
            "isotherm-policy",
            "isotherm-engine",
            "isotherm-config",
            "isotherm-damon",
            "isotherm-linux",
            "isotherm-record",
            "isotherm-sim",
            "isotherm-symbols",
            "isotherm-workload",
        ],
    ),
    crate_rule(
        "isotherm-tune",
        &[
            "isotherm-render",
            "isotherm-policy",
            "isotherm-config",
            "isotherm-engine",
            "isotherm-session",
            "isotherm-sim",
        ],
    ),
    crate_rule(
        "isotherm-eval",
        &[
            "isotherm-render",
            "isotherm-config",
            "isotherm-engine",
            "isotherm-linux",
            "isotherm-session",
            "isotherm-tune",
        ],
    ),
    CrateRule {
        name: "isotherm-what-if",
        may_import: &[
            "isotherm-policy",
            "isotherm-engine",
            "isotherm-config",
            "isotherm-record",
            "isotherm-session",
            "isotherm-tune",
        ],
        // These functions keep their names, for a browser.
        unsafe_under: Some("src/abi.rs"),
    },
    // The laboratory: the product runs without it.
    crate_rule(
        "isotherm-reproduce",
        &[
            "isotherm-render",
            "isotherm-policy",
            "isotherm-config",
            "isotherm-engine",
            "isotherm-session",
            "isotherm-sim",
        ],
    ),
    crate_rule(
        "isotherm",
        &[
            "isotherm-render",
            "isotherm-policy",
            "isotherm-engine",
            "isotherm-config",
            "isotherm-linux",
            "isotherm-record",
            "isotherm-report",
            "isotherm-view",
            "isotherm-workload",
            "isotherm-eval",
            "isotherm-session",
            "isotherm-symbols",
            "isotherm-reproduce",
            "isotherm-tune",
        ],
    ),
    crate_rule(
        "isotherm-python",
        &[
            "isotherm-render",
            "isotherm-policy",
            "isotherm-engine",
            "isotherm-config",
            "isotherm-linux",
            "isotherm-record",
            "isotherm-report",
            "isotherm-view",
            "isotherm-session",
            "isotherm-tune",
        ],
    ),
    // This crate tests the product from outside, so it imports only the formats.
    CrateRule {
        name: "isotherm-vm-tests",
        may_import: &[
            "isotherm-policy",
            "isotherm-engine",
            "isotherm-record",
            "isotherm-workload",
        ],
        // The guest's own tool maps memory at chosen addresses.
        unsafe_under: Some("src/bin/vm-guest/memory.rs"),
    },
    // It depends on none of the code that it checks, so it is built first and in seconds.
    crate_rule("xtask", &[]),
    // Benchmarks measure the engine and the probes directly.
    crate_rule(
        "isotherm-bench",
        &[
            "isotherm-policy",
            "isotherm-engine",
            "isotherm-record",
            "isotherm-workload",
        ],
    ),
];

const fn crate_rule(name: &'static str, may_import: &'static [&'static str]) -> CrateRule {
    CrateRule {
        name,
        may_import,
        unsafe_under: None,
    }
}
