//! Names of public types: none occurs twice in the workspace, so that a reader knows which is meant.

use std::collections::BTreeMap;

use syn::{File, Ident, Item, Visibility};

/// Public types by name, with the files that define them.
#[derive(Default)]
pub(crate) struct PublicTypes(BTreeMap<String, Vec<String>>);

impl PublicTypes {
    /// Adds the types of a file, which is shown as `path`. Types of tests and of programs are not seen from outside.
    pub(crate) fn add(&mut self, path: &str, file: &File) {
        if !path.contains("/src/") || path.contains("/tests") {
            return;
        }
        for item in &file.items {
            if let Some(name) = public_type(item) {
                self.0
                    .entry(name.to_string())
                    .or_default()
                    .push(path.to_owned());
            }
        }
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        let twice = self.0.iter().filter(|(_, paths)| paths.len() > 1);
        let fault = |(name, paths): (&String, &Vec<String>)| {
            format!(
                "{name}: a public type in {}; a name occurs once",
                paths.join(" and ")
            )
        };
        twice.map(fault).collect()
    }
}

/// Returns the name of a type that is visible outside of its crate.
fn public_type(item: &Item) -> Option<&Ident> {
    let (visibility, name) = match item {
        Item::Struct(of) => (&of.vis, &of.ident),
        Item::Enum(of) => (&of.vis, &of.ident),
        Item::Trait(of) => (&of.vis, &of.ident),
        Item::Type(of) => (&of.vis, &of.ident),
        _ => return None,
    };
    matches!(visibility, Visibility::Public(_)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(source: &str) -> File {
        syn::parse_file(source).expect("Rust")
    }

    #[test]
    fn a_name_that_occurs_twice_is_found() {
        let mut types = PublicTypes::default();
        let mut add = |path: &str, source: &str| types.add(path, &parsed(source));
        add(
            "crates/a/src/lib.rs",
            "pub struct Table; pub(crate) enum Row {}",
        );
        add("crates/b/src/lib.rs", "pub trait Row {}");
        add("crates/b/tests/it.rs", "pub struct Table;");
        assert!(types.faults().is_empty());
        types.add("lab/c/src/lib.rs", &parsed("pub type Table = u8;"));
        assert_eq!(types.faults().len(), 1);
    }
}
