//! A record without what identifies its machine, its programs and its files, for publication.
//!
//! Names become numbers, the same name the same number. Virtual addresses of a target move by one distance, so that the
//! lowest is [`BEGIN`]: distances, alignment and what is mapped beside what stay. Stacks, functions and notes are left
//! out.
//!
//! A published record keeps sizes, times of day, access patterns, costs, the kernel's release, kinds of mappings
//! (`[heap]`) and physical addresses. Readers may recognise a program that they know by these.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, BLOCK_SIZE, TargetId};

use crate::convert::{Conversion, LeftOut};
use crate::item::{Header, Item};
use crate::machine::MachineSample;
use crate::stacks::{HUGE_PAGES_SETTING, STACKS_SETTING};

/// Lowest address of every target in a published record.
const BEGIN: u64 = 1 << 36;

/// Replaces names and addresses.
#[derive(Debug, Default)]
pub struct Publisher {
    names: BTreeMap<&'static str, BTreeMap<String, usize>>,
    /// Distance by which the addresses of each target move down; `None` for physical memory.
    moved: BTreeMap<TargetId, Option<u64>>,
    pids: BTreeMap<u32, u32>,
    left_out: LeftOut,
}

impl Publisher {
    /// Returns a header without names: the command and the host's name are left out.
    pub fn header(&self, header: &Header) -> Header {
        let mut header = Header {
            host: String::new(),
            command: Vec::new(),
            ..header.clone()
        };
        for of_code in [STACKS_SETTING, HUGE_PAGES_SETTING] {
            header.settings.remove(of_code);
        }
        header
    }

    /// Adds the numbers of different names that were replaced, by kind, and of items that were left out.
    pub fn tell(self, conversion: &mut Conversion) {
        let replaced = self.names.iter().map(|(kind, names)| (*kind, names.len()));
        conversion.replaced = replaced.collect();
        for (kind, count) in self.left_out.others {
            conversion.left_out.add(kind, count);
        }
    }

    fn rename(&mut self, kind: &'static str, name: &str) -> String {
        let names = self.names.entry(kind).or_default();
        let next = names.len() + 1;
        let number = *names.entry(name.to_owned()).or_insert(next);
        format!("{kind} {number}")
    }

    /// Returns the name of a mapping: kinds that the kernel names stay, files and programs' own names become numbers.
    fn mapping(&mut self, name: &str) -> String {
        match name.split_once(':') {
            _ if name.starts_with('/') => format!("/{}", self.rename("file", name)),
            Some((kind @ ("[anon" | "[anon_shmem"), own)) => {
                format!("{kind}:{}]", self.rename("area", own.trim_end_matches(']')))
            }
            _ if name.starts_with('[') || name.is_empty() => name.to_owned(),
            _ => self.rename("area", name),
        }
    }

    /// Moves an address of a target. The first one decides how far.
    fn address(&mut self, target: TargetId, address: &mut u64) {
        let first = *address;
        let down = || Some((first - first % BLOCK_SIZE).wrapping_sub(BEGIN));
        let moved = self.moved.entry(target).or_insert_with(down);
        *address = address.wrapping_sub(moved.unwrap_or(0));
    }

    fn range(&mut self, target: TargetId, range: &mut AddressRange) {
        self.address(target, &mut range.start);
        self.address(target, &mut range.end);
    }

    /// Returns an item without names; `None` if it holds nothing else.
    pub fn item(&mut self, mut item: Item) -> Option<Item> {
        match &mut item {
            Item::TargetStart(start) => {
                let is_physical = start.pid == 0;
                if is_physical {
                    self.moved.insert(start.target, None);
                } else {
                    start.name = self.rename("program", &start.name);
                    let next = self.pids.len() as u32 + 1;
                    start.pid = *self.pids.entry(start.pid).or_insert(next);
                }
                self.context(&mut start.context);
            }
            Item::Mappings(change) => {
                let target = change.target;
                // The lowest mapping comes first, and decides how far addresses move.
                change.added.sort_by_key(|mapping| mapping.range);
                for mapping in &mut change.added {
                    self.range(target, &mut mapping.range);
                    mapping.name = self.mapping(&mapping.name);
                }
                for range in &mut change.removed {
                    self.range(target, range);
                }
            }
            Item::Snapshot(snapshot) => {
                let target = snapshot.target;
                for region in &mut snapshot.regions {
                    self.range(target, &mut region.range);
                }
                for block in &mut snapshot.blocks {
                    self.address(target, &mut block.block);
                }
            }
            Item::Pages(pages) => {
                let target = pages.target;
                for block in &mut pages.blocks {
                    self.address(target, &mut block.block);
                }
            }
            Item::Calibration(sample) => {
                for (target, ranges) in &mut sample.shared {
                    let target = TargetId(*target);
                    for range in ranges {
                        self.range(target, range);
                    }
                }
            }
            Item::Machine(sample) => self.machine(sample),
            Item::Action(sample) => self.context(&mut sample.context),
            Item::Guard(sample) => self.context(&mut sample.context),
            Item::Stacks(_) | Item::Symbols(_) | Item::HugePages(_) | Item::Note { .. } => {
                self.left_out.add(item.plural(), 1);
                return None;
            }
            Item::Blocks(_)
            | Item::TargetExit(_)
            | Item::Usage(_)
            | Item::Cost(_)
            | Item::Fragmentation(_)
            | Item::Compaction(_) => {}
        }
        Some(item)
    }

    fn context(&mut self, context: &mut Option<String>) {
        if let Some(name) = context {
            *name = self.rename("context", name);
        }
    }

    fn machine(&mut self, sample: &mut MachineSample) {
        for group in &mut sample.groups {
            group.group = self.rename("group", &group.group);
        }
        if let Some(charged) = &mut sample.charged {
            charged.group = self.rename("group", &charged.group);
        }
        self.context(&mut sample.context);
        let Some(cache) = &mut sample.page_cache else {
            return;
        };
        for memory in &mut cache.memory {
            if let Some(group) = &mut memory.group {
                *group = self.rename("group", group);
            }
        }
        for file in &mut cache.files {
            let name = file.name();
            file.path = Some(format!("/{}", self.rename("file", &name)));
            file.inode = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::Nanos;

    use super::*;
    use crate::item::{Mapping, MappingChange, TargetStart};

    #[test]
    fn names_become_numbers_and_addresses_move_together() {
        let mut publisher = Publisher::default();
        let header = Header {
            host: "secret".to_owned(),
            command: vec!["--pid".to_owned(), "77".to_owned()],
            ..Header::default()
        };
        assert!(publisher.header(&header).command.is_empty());
        let target = TargetId(4);
        let (low, high) = (0x5555_0000_1000, 0x7fff_0000_0000);
        let range = |start| AddressRange::new(start, start + 0x3000);
        let mappings = vec![
            Mapping::private(range(high), "[anon:secret]"),
            Mapping::private(range(low), "/home/secret/lib.so"),
            Mapping::private(range(low + 0x10_0000), "[heap]"),
        ];
        let items = [
            Item::TargetStart(TargetStart::new(Nanos(0), target, 77, "secret")),
            Item::Mappings(MappingChange::adding(Nanos(0), target, mappings)),
            Item::Note {
                time: Nanos(1),
                text: "secret".to_owned(),
            },
        ];
        let written: Vec<Item> = items
            .into_iter()
            .filter_map(|item| publisher.item(item))
            .collect();
        let text = serde_json::to_string(&written).expect("JSON");
        assert!(!text.contains("secret") && !text.contains("77"), "{text}");
        let Item::Mappings(change) = &written[1] else {
            panic!("{written:?}");
        };
        let starts: Vec<u64> = change
            .added
            .iter()
            .map(|mapping| mapping.range.start)
            .collect();
        assert_eq!(starts[0], BEGIN + 0x1000);
        assert_eq!(
            (starts[1] - starts[0], starts[2] - starts[0]),
            (0x10_0000, high - low)
        );
        assert_eq!(change.added[1].name, "[heap]");
        let mut conversion = Conversion::default();
        publisher.tell(&mut conversion);
        assert_eq!(conversion.left_out.others["notes"], 1);
        assert_eq!(conversion.replaced["file"], 1);
    }
}
