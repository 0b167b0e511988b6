//! Stacks as a tree of calls, for flame graphs and for the text.
//!
//! A recorder samples 127 frames, each with all functions that were inlined there. The tree is walked by recursion, so
//! the middle of a deep stack is left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::StackBytes;

/// The largest number of a stack's functions in the tree.
const DEPTH_MAX: usize = 512;
const LEFT_OUT: &str = "[functions left out]";

/// A function, called by the functions above it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlameNode {
    /// Name of the function.
    pub name: String,
    /// The file of the function; `null` for code that was generated at run time.
    pub library: Option<String>,
    /// Bytes that the function and its callees touched.
    pub bytes: u64,
    /// Bytes of these that count for the nearer of two stacks.
    pub likely_bytes: u64,
    /// The callees, the most bytes first.
    pub children: Vec<FlameNode>,
}

/// A node and its position in a picture.
#[derive(Clone, Copy, Debug)]
pub struct PlacedNode<'a> {
    pub node: &'a FlameNode,
    /// Bytes to the left of the node.
    pub left: u64,
    /// Number of callers above the node.
    pub depth: usize,
}

/// Nodes by their bytes; among equals, callers come after their callees, and those further left last.
type BySize<'a> = BTreeMap<(u64, Reverse<usize>, Reverse<u64>), PlacedNode<'a>>;

#[derive(Default)]
struct Growing {
    bytes: u64,
    likely_bytes: u64,
    children: BTreeMap<(String, Option<String>), Growing>,
}

impl FlameNode {
    /// Builds the tree of all stacks; its root has no name.
    pub fn tree(stacks: &[StackBytes]) -> Self {
        let mut root = Growing::default();
        for stack in stacks {
            let mut at = &mut root;
            at.take(stack);
            for function in functions(stack) {
                at = at.children.entry(function).or_default();
                at.take(stack);
            }
        }
        root.finish(String::new(), None)
    }

    /// Returns the largest nodes below this one, at most `most` and of at least `least` bytes: row by row, from the
    /// left. A caller is at least as large as its callees, so every node has its caller.
    pub fn largest(&self, most: usize, least: u64) -> Vec<PlacedNode<'_>> {
        let mut waiting = BySize::new();
        self.open(0, 0, least, &mut waiting);
        let mut placed = Vec::new();
        while placed.len() < most
            && let Some((_, largest)) = waiting.pop_last()
        {
            let PlacedNode { node, left, depth } = largest;
            node.open(left, depth + 1, least, &mut waiting);
            placed.push(largest);
        }
        placed.sort_by_key(|placed| (placed.depth, placed.left));
        placed
    }

    /// Adds the callees of a node with their positions, the largest first. Only one of them begins at a place.
    fn open<'a>(&'a self, mut left: u64, depth: usize, least: u64, waiting: &mut BySize<'a>) {
        let drawn = self.children.iter();
        for node in drawn.take_while(|node| node.bytes >= least.max(1)) {
            let rank = (node.bytes, Reverse(depth), Reverse(left));
            waiting.insert(rank, PlacedNode { node, left, depth });
            left += node.bytes;
        }
    }
}

/// Iterates over a stack's functions and their libraries, the outermost first.
fn functions(stack: &StackBytes) -> impl Iterator<Item = (String, Option<String>)> {
    let deep = stack.stack.len() > DEPTH_MAX;
    let (outer, inner) = if deep {
        (DEPTH_MAX / 2, DEPTH_MAX / 2 - 1)
    } else {
        (stack.stack.len(), 0)
    };
    let all = || {
        let all = stack.stack.iter().cloned();
        all.zip(stack.libraries.iter().cloned())
    };
    let middle = deep.then(|| (LEFT_OUT.to_owned(), None));
    let rest = all().skip(stack.stack.len() - inner);
    all().take(outer).chain(middle).chain(rest)
}

impl Growing {
    fn take(&mut self, stack: &StackBytes) {
        self.bytes += stack.bytes;
        self.likely_bytes += stack.likely_bytes;
    }

    fn finish(self, name: String, library: Option<String>) -> FlameNode {
        let children = self.children.into_iter();
        let children = children.map(|((name, library), node)| node.finish(name, library));
        let mut children: Vec<FlameNode> = children.collect();
        children.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        FlameNode {
            name,
            library,
            bytes: self.bytes,
            likely_bytes: self.likely_bytes,
            children,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::stack;
    use super::*;

    #[test]
    fn callers_have_the_bytes_of_what_they_called() {
        let stacks = [
            stack(&["main", "load"], 5, 2),
            stack(&["main", "serve"], 7, 0),
        ];
        let tree = FlameNode::tree(&stacks);
        let [main] = &tree.children[..] else {
            panic!("one main: {tree:?}");
        };
        assert_eq!((main.bytes, main.likely_bytes), (12, 2));
        let names: Vec<&str> = main.children.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["serve", "load"]);
    }

    #[test]
    fn the_middle_of_a_deep_stack_is_left_out() {
        let names: Vec<String> = (0..127 * 64).map(|at| format!("f{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut at = &FlameNode::tree(&[stack(&names, 4096, 0)]);
        let mut found = Vec::new();
        while let [child] = &at.children[..] {
            found.push(child.name.as_str());
            at = child;
        }
        assert_eq!(found.len(), DEPTH_MAX);
        assert_eq!((found[0], found[DEPTH_MAX / 2]), ("f0", LEFT_OUT));
        assert_eq!(found.last(), Some(&"f8127"));
    }
}
