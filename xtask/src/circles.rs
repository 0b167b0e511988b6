//! Circles: files of a crate that import each other.
//!
//! An import is a path of a `use` or of the code (`crate::a::B`, `super::a::B`), outside of tests. It leads to the file
//! of the module that it names. What a module takes from modules inside of it does not count: naming them is its task.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemUse, UseTree, Visibility};

/// A module by its path below the crate's root, which is empty.
type Module = Vec<String>;

/// Returns a fault for each circle among the files of a crate, whose root lies in the folder `source`.
pub(crate) fn faults(name: &str, source: &Path, files: &[(PathBuf, File)]) -> Vec<String> {
    let modules = files.iter();
    let modules = modules.filter_map(|(path, file)| Some((module_of(source, path)?, file)));
    let modules: BTreeMap<Module, &File> = modules.collect();
    let mut graph: DiGraph<&Module, ()> = DiGraph::new();
    let nodes: BTreeMap<&Module, _> = modules.keys().map(|of| (of, graph.add_node(of))).collect();
    for (module, file) in &modules {
        let mut imports = Imports::default();
        imports.visit_file(file);
        let to = { imports.paths.iter() }.filter_map(|path| resolve(&modules, module, path));
        for to in to.filter(|to| !to.starts_with(module)) {
            graph.update_edge(nodes[module], nodes[&to], ());
        }
    }
    let circles = tarjan_scc(&graph).into_iter().filter(|of| of.len() > 1);
    let fault = |of: Vec<NodeIndex>| {
        let mut names: Vec<String> = of.iter().map(|node| graph[*node].join("::")).collect();
        names.sort_unstable();
        format!(
            "{name}: {} import each other; move what ties them into one of them, or into a file of its own",
            names.join(", ")
        )
    };
    circles.map(fault).collect()
}

/// Returns the module of a file; `None` if it is a test, or of another program than the crate's root.
fn module_of(source: &Path, file: &Path) -> Option<Module> {
    let inside = file.strip_prefix(source).ok()?.with_extension("");
    let mut module: Module = inside
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if module.iter().any(|part| part == "tests" || part == "bin") {
        return None;
    }
    if matches!(module.last()?.as_str(), "mod" | "lib" | "main") {
        module.pop();
    }
    Some(module)
}

/// Returns the module whose file defines what `path` names, seen from `from`.
fn resolve(modules: &BTreeMap<Module, &File>, from: &Module, path: &[String]) -> Option<Module> {
    let mut at = from.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => at.clear(),
        "super" => _ = at.pop()?,
        "self" => {}
        _ => return None,
    }
    rest = &rest[1..];
    while let Some(("super", left)) = rest
        .split_first()
        .map(|(first, left)| (first.as_str(), left))
    {
        at.pop()?;
        rest = left;
    }
    for part in rest {
        at.push(part.clone());
        if !modules.contains_key(&at) {
            at.pop();
            break;
        }
    }
    modules.contains_key(&at).then_some(at)
}

/// Collects the paths that a file names, outside of its tests.
#[derive(Default)]
struct Imports {
    paths: BTreeSet<Vec<String>>,
}

impl Imports {
    fn add_tree(&mut self, path: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(of) => {
                path.push(of.ident.to_string());
                self.add_tree(path, &of.tree);
                path.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(path, tree);
                }
            }
            UseTree::Name(name) => self.add(path, name.ident.to_string()),
            UseTree::Rename(name) => self.add(path, name.ident.to_string()),
            UseTree::Glob(_) => _ = self.paths.insert(path.clone()),
        }
    }

    fn add(&mut self, path: &[String], last: String) {
        let mut path = path.to_vec();
        if last != "self" {
            path.push(last);
        }
        self.paths.insert(path);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    let is_of_tests = |of: &Attribute| {
        of.path().is_ident("cfg")
            && of
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string() == "test")
    };
    attributes.iter().any(is_of_tests)
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item(&mut self, item: &'ast Item) {
        let is_left_out = match item {
            Item::Mod(of) => is_test(&of.attrs),
            Item::Use(of) => is_test(&of.attrs),
            Item::Impl(of) => is_test(&of.attrs),
            Item::Fn(of) => is_test(&of.attrs),
            _ => false,
        };
        if !is_left_out {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_tree(&mut Vec::new(), &item.tree);
    }

    /// Names in `pub(super)` and the like are no imports.
    fn visit_visibility(&mut self, _visibility: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|of| of.ident.to_string());
        self.paths.insert(names.collect());
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(name, text)| {
            let file = syn::parse_file(text).expect("Rust");
            (Path::new("src").join(name), file)
        });
        faults("c", Path::new("src"), &files.collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_is_found_by_uses_and_by_paths() {
        let b = ("b.rs", "fn f() -> super::a::A { crate::a::A }");
        let of_a = |text| faults_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", text), b]);
        let circle = of_a("use crate::{b::f, c};");
        assert_eq!(circle.len(), 1, "{circle:?}");
        let is_named = circle[0].starts_with("c: a, b import each other");
        assert!(is_named, "{circle:?}");
        assert!(of_a("pub struct A;").is_empty());
        assert!(of_a("#[cfg(test)] mod tests { use crate::b::f; }").is_empty());
    }

    #[test]
    fn a_module_may_name_what_is_inside_of_it() {
        let inside = ("a/b.rs", "use super::A;");
        assert!(
            faults_of(&[("lib.rs", "mod a;"), ("a.rs", "mod b; use b::B;"), inside]).is_empty()
        );
    }
}
