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
            if let Some((name, true)) = public_name(item) {
                let paths = self.0.entry(name.to_string()).or_default();
                paths.push(path.to_owned());
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

/// Returns the name of an item that is visible outside of its crate, and whether it is a type.
pub(crate) fn public_name(item: &Item) -> Option<(&Ident, bool)> {
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
