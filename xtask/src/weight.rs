//! Weight of the workspace: lines, files beside each other, and public items of a crate. No name of a public type occurs
//! twice in the workspace, so that a reader knows which is meant.
//!
//! Each limit falls when the workspace gets lighter. New code is paid for by what it replaces; the lines rise only by
//! what an issue grants to a new capability (the temperature report: 250 of 5,000; the guard's prediction and loans, and
//! `thp`: all of 2,000; `size`, `park` and `fleet`: all of 6,000; arm64: 1,440 of 4,000; peers: all of 5,000). 1,860 lines
//! of these are not paid for yet.

use std::collections::BTreeMap;

use syn::{File, Ident, Item, Visibility};

const LINES_MAX: usize = 184_343;
const FILES_MAX: usize = 20;
/// Public items of a crate: types, traits, functions, constants.
const PUBLIC_MAX: usize = 150;

#[derive(Default)]
pub(crate) struct Weight {
    lines: usize,
    files: BTreeMap<String, usize>,
    public: BTreeMap<String, usize>,
    types: BTreeMap<String, Vec<String>>,
}

impl Weight {
    /// Adds a file of this crate, which is shown as `path`. Items of tests are not seen from outside, and those of
    /// `fuzz.rs` only while parsers are fuzzed.
    pub(crate) fn add(&mut self, package: &str, path: &str, source: &str, file: &File) {
        self.lines += source.lines().count();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *self.files.entry(folder.to_owned()).or_default() += 1;
        if !path.contains("/src/") || path.contains("/tests") {
            return;
        }
        for (name, is_type) in file.items.iter().filter_map(public_name) {
            if !path.ends_with("/fuzz.rs") {
                *self.public.entry(package.to_owned()).or_default() += 1;
            }
            if is_type {
                let paths = self.types.entry(name.to_string()).or_default();
                paths.push(path.to_owned());
            }
        }
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, paths) in self.types.iter().filter(|(_, paths)| paths.len() > 1) {
            let paths = paths.join(" and ");
            faults.push(format!(
                "{name}: a public type in {paths}; a name occurs once"
            ));
        }
        if self.lines > LINES_MAX {
            faults.push(format!(
                "{} lines of Rust; at most {LINES_MAX}: take away as much as you add",
                self.lines
            ));
        }
        for (folder, nr) in self.files.iter().filter(|(_, nr)| **nr > FILES_MAX) {
            faults.push(format!(
                "{folder}: {nr} files beside each other; at most {FILES_MAX}, group them by subject"
            ));
        }
        for (package, nr) in self.public.iter().filter(|(_, nr)| **nr > PUBLIC_MAX) {
            faults.push(format!(
                "{package}: {nr} public items; at most {PUBLIC_MAX}, split the crate by subject"
            ));
        }
        faults
    }

    pub(crate) fn summary(&self) -> String {
        let most = self.public.iter().max_by_key(|(_, nr)| **nr);
        let most = most.map_or_else(String::new, |(package, nr)| {
            format!(", at most {nr} public items a crate ({package})")
        });
        format!("{} lines of Rust{most}", self.lines)
    }
}

/// Returns the name of an item that is visible outside of its crate, and whether it is a type.
fn public_name(item: &Item) -> Option<(&Ident, bool)> {
    let (visibility, name, is_type) = match item {
        Item::Struct(of) => (&of.vis, &of.ident, true),
        Item::Enum(of) => (&of.vis, &of.ident, true),
        Item::Union(of) => (&of.vis, &of.ident, true),
        Item::Trait(of) => (&of.vis, &of.ident, true),
        Item::Type(of) => (&of.vis, &of.ident, true),
        Item::Fn(of) => (&of.vis, &of.sig.ident, false),
        Item::Const(of) => (&of.vis, &of.ident, false),
        Item::Static(of) => (&of.vis, &of.ident, false),
        _ => return None,
    };
    matches!(visibility, Visibility::Public(_)).then_some((name, is_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_fault() {
        let source = "pub struct A;\npub(crate) fn b() {}\npub const C: u8 = 0;\n";
        let file = syn::parse_file(source).expect("Rust");
        let mut weight = Weight::default();
        weight.add("a", "crates/a/src/lib.rs", source, &file);
        weight.add("a", "crates/a/tests/it.rs", source, &file);
        let summary = "6 lines of Rust, at most 2 public items a crate (a)";
        assert_eq!(weight.summary(), summary);
        assert!(weight.faults().is_empty());
        let file = syn::parse_file("pub trait B {}\npub const C: u8 = 0;\n").expect("Rust");
        weight.add("b", "lab/b/src/lib.rs", source, &file);
        assert!(weight.faults().is_empty());
        weight.add("b", "lab/b/src/a.rs", source, &file);
        assert_eq!(weight.faults().len(), 1);
        let file = syn::parse_file("pub const C: u8 = 0;\npub const D: u8 = 0;\n").expect("Rust");
        for nr in 0..PUBLIC_MAX / 2 {
            weight.add("a", &format!("crates/a/src/{nr}.rs"), source, &file);
        }
        weight.lines = LINES_MAX + 1;
        assert_eq!(weight.faults().len(), 4);
    }
}
