//! Observations and actions of the daemon, as a record for its followers.
//!
//! Problem: a record reports targets and their mappings once, when they begin; a client that connects later needs them
//! as well. The daemon must serve many followers at little cost.
//!
//! Approach: the items of live targets are kept ([`Roster`]). Each client gets a record of its own that begins with
//! these items. Later items are encoded once for all, as batches that fit any record with the same header.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use isotherm_engine::{AddressRange, Nanos, TargetId};
use isotherm_policy::Unreclaimable;
use isotherm_record::stacks::{HUGE_PAGES_SETTING, STACKS_SETTING};
use isotherm_record::{Header, Item, Mapping, MappingChange, RecordError, TargetStart, Writer};

/// Mappings of one item; a message of a record holds some.
const MAPPINGS_AT_A_TIME: usize = 4096;

/// Record for all followers.
pub struct Feed {
    header: Header,
    roster: Roster,
    /// Writer of the shared batches; `None` without followers.
    writer: Option<(Writer<Shared>, Shared)>,
}

/// Bytes that a writer has written.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Shared {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Feed {
    /// Makes the feed of a session with this header.
    pub fn new(mut header: Header) -> Self {
        for setting in [STACKS_SETTING, HUGE_PAGES_SETTING] {
            header.settings.remove(setting);
        }
        Self {
            header,
            roster: Roster::default(),
            writer: None,
        }
    }

    /// Takes an item of the session.
    ///
    /// # Errors
    /// Fails if a record cannot hold the item; no follower gets it then.
    pub fn push(&mut self, item: &Item) -> Result<(), RecordError> {
        if matches!(
            item,
            Item::Stacks(_) | Item::Symbols(_) | Item::HugePages(_)
        ) {
            // They refer to the session's beginning, which a later follower lacks.
            return Ok(());
        }
        self.roster.push(item);
        match &mut self.writer {
            Some((writer, _)) => writer.write(item),
            None => Ok(()),
        }
    }

    /// Takes the bytes of all items since the last call, for all followers.
    ///
    /// # Errors
    /// Fails only if Arrow does.
    pub fn take(&mut self) -> Result<Vec<u8>, RecordError> {
        let Some((writer, written)) = &mut self.writer else {
            return Ok(Vec::new());
        };
        writer.flush()?;
        Ok(written.take())
    }

    /// Begins a record for a client that follows from `now` on; the bytes of [`Feed::take`] continue it.
    ///
    /// # Errors
    /// Fails if the header is too long.
    pub fn begin(&mut self, now: Nanos) -> Result<Vec<u8>, RecordError> {
        if self.writer.is_none() {
            let written = Shared::default();
            let writer = Writer::create(written.clone(), &self.header)?;
            // Each follower has the header at the beginning of its own record.
            written.take();
            self.writer = Some((writer, written));
        }
        let begun = Shared::default();
        let header = Header {
            started: now,
            ..self.header.clone()
        };
        let mut writer = Writer::create(begun.clone(), &header)?;
        for item in self.roster.items(now) {
            writer.write(&item)?;
        }
        writer.flush()?;
        Ok(begun.take())
    }

    /// Stops writing: there are no followers.
    pub fn rest(&mut self) {
        self.writer = None;
    }
}

#[derive(Debug, Default)]
struct Roster {
    targets: BTreeMap<TargetId, Present>,
    /// Shared names and permissions: many mappings have the same.
    words: BTreeSet<Arc<str>>,
}

/// End, permissions and name of a mapping, and the reason if it cannot be reclaimed.
type PresentMapping = (u64, Arc<str>, Arc<str>, Option<Unreclaimable>);

#[derive(Debug, Default)]
struct Present {
    start: TargetStart,
    /// Mappings by start address.
    mappings: BTreeMap<u64, PresentMapping>,
}

impl Roster {
    fn push(&mut self, item: &Item) {
        match item {
            Item::TargetStart(start) => {
                // After exec, items for its old mappings follow.
                self.targets.entry(start.target).or_default().start = start.clone();
            }
            Item::TargetExit(exit) => {
                self.targets.remove(&exit.target);
                self.words.retain(|word| Arc::strong_count(word) > 1);
            }
            Item::Mappings(change) => self.change(change),
            _ => {}
        }
    }

    fn change(&mut self, change: &MappingChange) {
        let Some(present) = self.targets.get_mut(&change.target) else {
            return;
        };
        for range in &change.removed {
            present.mappings.remove(&range.start);
        }
        for mapping in &change.added {
            let [permissions, name] = [&*mapping.permissions, &*mapping.name].map(|word| {
                if let Some(known) = self.words.get(word) {
                    return Arc::clone(known);
                }
                let word: Arc<str> = word.into();
                self.words.insert(Arc::clone(&word));
                word
            });
            let range = mapping.range;
            let value = (range.end, permissions, name, mapping.unreclaimable);
            present.mappings.insert(range.start, value);
        }
    }

    /// Returns items for all live targets and mappings as if they had begun at `now`.
    fn items(&self, now: Nanos) -> Vec<Item> {
        let mut items = Vec::new();
        for (&target, present) in &self.targets {
            items.push(Item::TargetStart(TargetStart {
                time: now,
                ..present.start.clone()
            }));
            let mappings = present.mappings.iter();
            let all: Vec<Mapping> = mappings
                .map(|(start, (end, permissions, name, unreclaimable))| Mapping {
                    range: AddressRange::new(*start, *end),
                    permissions: permissions.to_string(),
                    name: name.to_string(),
                    unreclaimable: *unreclaimable,
                })
                .collect();
            items.extend(
                all.chunks(MAPPINGS_AT_A_TIME)
                    .map(|some| Item::Mappings(MappingChange::adding(now, target, some.to_vec()))),
            );
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::{RegionSnapshot, Snapshot};
    use isotherm_record::{Reader, TargetExit};

    use super::*;

    fn start(target: u32, name: &str) -> Item {
        let pid = 100 + target;
        Item::TargetStart(TargetStart::new(Nanos(0), TargetId(target), pid, name))
    }

    fn change(target: u32, removed: &[(u64, u64)], added: &[(u64, u64, &str)]) -> Item {
        let range = |from: &u64, to: &u64| AddressRange::new(from << 12, to << 12);
        let removed = removed.iter().map(|(from, to)| range(from, to));
        let added = added.iter();
        let added = added.map(|(from, to, name)| Mapping::private(range(from, to), *name));
        Item::Mappings(MappingChange {
            removed: removed.collect(),
            ..MappingChange::adding(Nanos(0), TargetId(target), added.collect())
        })
    }

    fn snapshot(target: u32, at: u64) -> Item {
        let (start, length) = (Nanos::from_millis(at), Nanos::from_millis(100));
        let region = RegionSnapshot::new(AddressRange::new(0x1000, 0x5000), Some(3.0));
        let (times, regions) = ((start, start + length), vec![region.aged(1, length)]);
        Item::Snapshot(Snapshot::new(TargetId(target), times, 20, regions))
    }

    fn items(bytes: &[u8]) -> Vec<Item> {
        let reader = Reader::open(bytes).expect("a record");
        reader.map(|item| item.expect("whole")).collect()
    }

    #[test]
    fn who_comes_late_is_told_what_is_there_and_then_what_comes() {
        let mut feed = Feed::new(Header::default());
        let exit = Item::TargetExit(TargetExit {
            target: TargetId(1),
            ..TargetExit::default()
        });
        let before = [
            start(0, "a"),
            change(0, &[], &[(1, 5, "[heap]"), (8, 9, "lib")]),
            start(1, "gone"),
            snapshot(0, 0),
            change(0, &[(8, 9)], &[(8, 12, "lib"), (20, 21, "")]),
            exit,
        ];
        for item in &before {
            feed.push(item).expect("written");
        }
        assert!(feed.take().expect("nobody follows").is_empty());
        let mut first = feed.begin(Nanos(7)).expect("a beginning");
        feed.push(&snapshot(0, 100)).expect("written");
        let batch = feed.take().expect("written");
        first.extend(&batch);
        let mut second = feed.begin(Nanos(8)).expect("a beginning");
        feed.push(&snapshot(0, 200)).expect("written");
        let batch = feed.take().expect("written");
        first.extend(&batch);
        second.extend(&batch);
        let first = items(&first);
        let Item::Mappings(reported) = &first[1] else {
            panic!("{:?}", first[1]);
        };
        let names: Vec<&str> = reported.added.iter().map(|m| &*m.name).collect();
        assert_eq!(names, ["[heap]", "lib", ""]);
        let grown = AddressRange::new(8 << 12, 12 << 12);
        assert_eq!(reported.added[1].range, grown);
        assert_eq!(first.len(), 4);
        assert_eq!(first[2..], [snapshot(0, 100), snapshot(0, 200)]);
        assert_eq!(items(&second)[2..], [snapshot(0, 200)]);
        feed.rest();
        feed.push(&snapshot(0, 300)).expect("nobody is reported");
        assert!(feed.take().expect("nothing").is_empty());
    }
}
