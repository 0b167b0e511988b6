//! Memory moves between nodes: bytes by source and destination.
//!
//! Users who watch memory of several tiers want to see promotions and demotions separately. The faster one of two nodes
//! is not known here, so no move is called a promotion.

use serde::{Deserialize, Serialize};

/// Bytes that moved from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeMove {
    /// Source node.
    pub from: u32,
    /// Destination node.
    pub to: u32,
    /// Number of bytes.
    pub bytes: u64,
}

/// Bytes by both nodes, in the order of nodes; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct NodeMoves(Vec<NodeMove>);

/// Largest number of distinct pairs: those of 32 nodes. A record of unknown origin may name more.
const WAYS_MAX: usize = 1024;

impl NodeMoves {
    /// Adds `bytes` that moved from `from` to `to`.
    pub fn add(&mut self, from: u32, to: u32, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let key = (from, to);
        match self.0.binary_search_by_key(&key, |way| (way.from, way.to)) {
            Ok(at) => self.0[at].bytes = self.0[at].bytes.saturating_add(bytes),
            Err(at) if self.0.len() < WAYS_MAX => self.0.insert(at, NodeMove { from, to, bytes }),
            Err(_) => {}
        }
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for way in &other.0 {
            self.add(way.from, way.to, way.bytes);
        }
    }

    /// Returns whether nothing moved.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the moves, in the order of nodes.
    pub fn iter(&self) -> std::slice::Iter<'_, NodeMove> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a NodeMoves {
    type Item = &'a NodeMove;
    type IntoIter = std::slice::Iter<'a, NodeMove>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_summed_by_way() {
        let mut moves = NodeMoves::default();
        for (from, to, bytes) in [(1, 0, 3), (0, 1, 5), (1, 0, 4), (0, 2, 0)] {
            moves.add(from, to, bytes);
        }
        let mut twice = moves.clone();
        twice.merge(&moves);
        let ways = twice.iter().map(|way| (way.from, way.to, way.bytes));
        assert!(ways.eq([(0, 1, 10), (1, 0, 14)]));
    }
}
