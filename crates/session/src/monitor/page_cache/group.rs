//! The unmapped page cache that one control group is charged for, beside page scans of its processes.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context as _;
use isotherm_engine::Nanos;
use isotherm_engine::frames::FrameMap;
use isotherm_engine::page_cache::CachedBytes;
use isotherm_linux::cgroup::GroupNumbers;

use super::CacheView;
use crate::monitor::machine::ram_by_node;

/// Share of a CPU for scans of the page cache, and the same while most ages are unknown.
const SHARE: f64 = 0.01;
const SHARE_AT_FIRST: f64 = 0.05;

/// The page cache of a control group and of those below it.
pub(crate) struct GroupCache {
    view: CacheView,
    nodes: Vec<(u32, Range<u64>)>,
    /// Its path within the hierarchy.
    group: String,
    bytes: Option<CachedBytes>,
}

impl GroupCache {
    /// Prepares scans for the group at `directory`.
    pub(crate) fn new(now: Nanos, directory: &Path) -> anyhow::Result<Self> {
        let inode = fs::metadata(directory)
            .with_context(|| format!("cannot look at {}", directory.display()))?
            .ino();
        let group = GroupNumbers::by_inode().remove(&inode);
        let group = group.context("the group has no memory controller")?;
        let mut view = CacheView::new(now)?;
        view.only_group = Some(group.clone());
        Ok(Self {
            view,
            nodes: ram_by_node()?,
            group,
            bytes: None,
        })
    }

    /// Continues to scan, within its share of a CPU.
    pub(crate) fn step(&mut self, now: Nanos) -> anyhow::Result<()> {
        let mapped = FrameMap::default();
        let share = |is_little_known| {
            if is_little_known {
                SHARE_AT_FIRST
            } else {
                SHARE
            }
        };
        self.view.step(now, share, Nanos(0), &self.nodes, &mapped)?;
        if let Some(sample) = self.view.reported.take() {
            let mut bytes = CachedBytes::default();
            let of_group = sample.memory.iter().filter(|memory| {
                let name = memory.group.as_deref().unwrap_or_default();
                is_within(name, &self.group)
            });
            of_group.for_each(|memory| bytes.add(&memory.bytes));
            self.bytes = Some(bytes);
        }
        Ok(())
    }

    /// Returns the group's page cache at the end of the last scan; `None` before.
    pub(crate) fn bytes(&self) -> Option<CachedBytes> {
        self.bytes
    }
}

pub(super) fn is_within(name: &str, group: &str) -> bool {
    name.strip_prefix(group.trim_end_matches('/'))
        .is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_below_belong_to_it_and_longer_names_do_not() {
        assert!(is_within("/a/b", "/a/b") && is_within("/a/b/c", "/a/b"));
        assert!(!is_within("/a/bc", "/a/b") && !is_within("/a", "/a/b"));
        assert!(is_within("/a", "/"));
    }
}
