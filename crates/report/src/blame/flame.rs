//! Stacks as a tree of calls: what flame graphs and the text show.

use std::collections::BTreeMap;

use serde::Serialize;

use super::StackBytes;

/// A function, called by those above it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlameNode {
    /// What it is called.
    pub name: String,
    /// The file that it is in; `null` for code that was made at run time.
    pub library: Option<String>,
    /// Bytes that it and what it called touched.
    pub bytes: u64,
    /// What it called, most bytes first.
    pub children: Vec<FlameNode>,
}

#[derive(Default)]
struct Growing {
    bytes: u64,
    children: BTreeMap<(String, Option<String>), Growing>,
}

impl FlameNode {
    /// The tree of all stacks; its root is nobody.
    pub fn tree(stacks: &[StackBytes]) -> Self {
        let mut root = Growing::default();
        for stack in stacks {
            let mut at = &mut root;
            at.bytes += stack.bytes;
            for (name, library) in stack.stack.iter().zip(&stack.libraries) {
                at = at
                    .children
                    .entry((name.clone(), library.clone()))
                    .or_default();
                at.bytes += stack.bytes;
            }
        }
        root.finish(String::new(), None)
    }
}

impl Growing {
    /// Stacks are of bounded depth: a recorder takes 127 frames, each with the functions that were inlined there.
    fn finish(self, name: String, library: Option<String>) -> FlameNode {
        let children = self.children.into_iter();
        let children = children.map(|((name, library), node)| node.finish(name, library));
        let mut children: Vec<FlameNode> = children.collect();
        children.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        FlameNode {
            name,
            library,
            bytes: self.bytes,
            children,
        }
    }
}
