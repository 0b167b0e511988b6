//! Words that reports of sessions and of simulations share.

use std::collections::{BTreeMap, BTreeSet};

use isotherm_config::SessionSpec;
use isotherm_engine::units::format_bytes;
use isotherm_policy::Refusal;
#[cfg(feature = "live")]
use isotherm_policy::guard::Limit;

#[cfg(feature = "live")]
pub(crate) fn limit_words(limit: Limit) -> &'static str {
    match limit {
        Limit::Slowdown => "slowdown",
        Limit::Refaults => "refaults",
        Limit::Psi => "pressure",
        Limit::RefaultWait => "a long wait",
    }
}

/// Returns refused bytes with their reasons, separated by commas.
pub(crate) fn refused_words(refused: &BTreeMap<Refusal, u64>) -> String {
    let parts = refused.iter();
    let parts =
        parts.map(|(why, bytes)| format!("{} {}", format_bytes(*bytes), refusal_words(*why)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns a reason as the end of a sentence.
fn refusal_words(why: Refusal) -> &'static str {
    match why {
        Refusal::NoSwap => "for want of swap",
        Refusal::SwapFull => "as swap is full",
        Refusal::Shared => "mapped more than once (shared)",
        Refusal::Dirty => "not written to their files yet",
        Refusal::Locked => "locked or special",
        Refusal::NotOurFile => "of files that are not ours",
        Refusal::Unmapped => "not mapped",
        Refusal::NotPresent => "not in memory, or as wanted already",
        Refusal::Kept => "touched meanwhile, or kept by the kernel",
        Refusal::Refaulted => "kept, as it refaulted before",
        Refusal::Incompressible => "that compressed swap does not make smaller",
        Refusal::Sparse => "in blocks too sparse for huge pages",
        Refusal::Wasteful => "in blocks of which huge pages would waste too much",
        Refusal::Written => "data of huge pages, which stay",
        Refusal::NoRoom => "for want of room",
        Refusal::Exited => "of targets that ended",
        Refusal::Unsupported => "that this machine cannot act on",
        Refusal::Denied => "not permitted",
        Refusal::Unobservable => "as not all accesses to it can be seen (KVM guest, device)",
        Refusal::Other => "for other reasons",
    }
}

/// Returns the operations of all contexts, each once, for a header.
pub(crate) fn operations(spec: &SessionSpec) -> String {
    let contexts = spec.contexts.iter();
    let names: BTreeSet<&str> = contexts.map(|of| of.targets.operations()).collect();
    names.into_iter().collect::<Vec<_>>().join("+")
}
