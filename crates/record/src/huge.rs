//! The contents of targets' huge pages, and their encoding in a record: the pages within them that were never written.
//!
//! Problem: only its content shows the waste of a huge page, and the recorder reads a few huge pages a second. Huge
//! pages appear, vanish and are split in between.
//!
//! Approach: an item states for each target the amount of memory in huge pages. It lists the huge pages that were read
//! since the item before. It also lists those that were read earlier and are no longer huge pages. A reader of all
//! items therefore knows the last read content of each huge page. Both lists are packed like samples of stacks
//! ([`crate::stacks`]): base64 of zlib of LEB128 numbers. They are in the order of addresses, as differences in blocks
//! of 2 MiB.
//!
//! Limits: an item lists at most [`READS_MAX`] huge pages.

use std::fmt;

use isotherm_engine::{BLOCK_SIZE, Nanos, PAGES_PER_BLOCK, TargetId};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::packed::{self, Packed, apply, difference, push, take};

/// The largest number of huge pages in an item, read and vanished ones together.
pub const READS_MAX: usize = 64 << 10;
const TOO_MANY: &str = "has more huge pages than an item may tell of";
/// Number of blocks in an address space of 57 bits.
const BLOCKS_END: u64 = (1 << 57) / BLOCK_SIZE;

/// The contents of targets' huge pages that were read since the item before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HugePagesSample {
    /// Time of the scan that showed which pages are huge.
    pub time: Nanos,
    /// Targets with changes, in their order.
    #[serde(deserialize_with = "bounded")]
    pub targets: Vec<TargetHugePages>,
}

/// The huge pages of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetHugePages {
    pub target: TargetId,
    /// Bytes of private anonymous memory in huge pages now, read or not.
    pub bytes: u64,
    /// Huge pages that were read and are still huge pages; packed, each with address, pages and time.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "packed")]
    pub read: Vec<HugePageRead>,
    /// Addresses of pages that were read earlier and are no longer huge pages; packed.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "packed")]
    pub gone: Vec<u64>,
}

/// The content of a huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePageRead {
    /// Address of the huge page.
    pub block: u64,
    /// Number of pages of zeros, which count as never written.
    pub never_written: u32,
    /// Time of the read, by the record's clock.
    pub time: Nanos,
}

impl TargetHugePages {
    /// Returns the number of huge pages in both lists.
    pub fn nr_reported(&self) -> usize {
        self.read.len() + self.gone.len()
    }
}

impl HugePagesSample {
    /// Checks the sample, and returns a description of the first fault.
    pub(crate) fn check(&self) -> Result<(), String> {
        let reported = self.targets.iter().map(TargetHugePages::nr_reported);
        if reported.sum::<usize>() > READS_MAX {
            return Err(TOO_MANY.to_owned());
        }
        if !self.targets.is_sorted_by(|a, b| a.target < b.target) {
            return Err("has huge pages of targets that are not in order".to_owned());
        }
        self.targets.iter().try_for_each(TargetHugePages::check)
    }
}

impl TargetHugePages {
    fn check(&self) -> Result<(), String> {
        let target = self.target.0;
        if !self.bytes.is_multiple_of(BLOCK_SIZE) || self.bytes / BLOCK_SIZE > BLOCKS_END {
            return Err(format!(
                "has {} bytes in huge pages of target {target}",
                self.bytes
            ));
        }
        if self.read.len() as u64 > self.bytes / BLOCK_SIZE {
            return Err(format!(
                "has read more huge pages of target {target} than there are"
            ));
        }
        let is_whole = |read: &HugePageRead| read.never_written as usize <= PAGES_PER_BLOCK;
        if !self.read.iter().all(is_whole) {
            return Err(format!(
                "has a huge page of target {target} with more pages than it can have"
            ));
        }
        Ok(())
    }
}

/// Reads targets within the bound of huge pages for all together, because a few packed bytes can expand to gigabytes.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TargetHugePages>, D::Error> {
    struct Targets;
    impl<'de> Visitor<'de> for Targets {
        type Value = Vec<TargetHugePages>;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("a list of targets")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let (mut targets, mut nr) = (Vec::new(), 0);
            while let Some(target) = list.next_element::<TargetHugePages>()? {
                nr += target.nr_reported();
                if nr > READS_MAX {
                    return Err(de::Error::custom(TOO_MANY));
                }
                targets.push(target);
            }
            Ok(targets)
        }
    }
    deserializer.deserialize_seq(Targets)
}

impl Packed for HugePageRead {
    const CUT: &'static str = "a huge page is cut, or none";
    const LIMIT: (usize, &'static str) = (READS_MAX, TOO_MANY);

    fn push(&self, before: Option<&Self>, bytes: &mut Vec<u8>) -> Result<(), String> {
        self.block.push(before.map(|before| &before.block), bytes)?;
        push(bytes, self.never_written.into());
        // Huge pages are read in turns, not in the order of addresses.
        let time = before.map_or(0, |before| before.time.0);
        push(bytes, difference(time, self.time.0));
        Ok(())
    }

    fn take(rest: &mut &[u8], before: Option<&Self>) -> Option<Self> {
        let time = before.map_or(0, |before| before.time.0);
        Some(Self {
            block: u64::take(rest, before.map(|before| &before.block))?,
            never_written: u32::try_from(take(rest)?).ok()?,
            time: Nanos(apply(time, take(rest)?)),
        })
    }
}

/// The address of a huge page, as the number of blocks between it and the one before.
impl Packed for u64 {
    const CUT: &'static str = "a huge page that has gone is cut, or none";
    const LIMIT: (usize, &'static str) = (READS_MAX, TOO_MANY);

    fn push(&self, before: Option<&Self>, bytes: &mut Vec<u8>) -> Result<(), String> {
        let (number, next) = (self / BLOCK_SIZE, next(before));
        if !self.is_multiple_of(BLOCK_SIZE) || number < next || number >= BLOCKS_END {
            return Err(format!("no huge page, or out of order: {self:#x}"));
        }
        push(bytes, number - next);
        Ok(())
    }

    fn take(rest: &mut &[u8], before: Option<&Self>) -> Option<Self> {
        let number = next(before).checked_add(take(rest)?)?;
        (number < BLOCKS_END).then(|| number * BLOCK_SIZE)
    }
}

/// Returns the number of the first block that may follow this one.
fn next(before: Option<&u64>) -> u64 {
    before.map_or(0, |block| block / BLOCK_SIZE + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packed::pack;

    fn item() -> HugePagesSample {
        let read = |block: u64, never_written, time| HugePageRead {
            block: block * BLOCK_SIZE,
            never_written,
            time: Nanos(time),
        };
        let target = TargetHugePages {
            target: TargetId(3),
            bytes: 9 * BLOCK_SIZE,
            read: vec![
                read(0, 512, 7),
                read(1, 0, 3),
                read(0x3fff_8000, 384, 1 << 40),
            ],
            gone: vec![4 * BLOCK_SIZE, BLOCK_SIZE << 30],
        };
        let nothing = TargetHugePages::default();
        HugePagesSample {
            time: Nanos(9),
            targets: vec![nothing, target],
        }
    }

    #[test]
    fn reads_come_back_as_they_were() {
        let json = serde_json::to_string(&item()).expect("packs");
        let back: HugePagesSample = serde_json::from_str(&json).expect("unpacks");
        assert_eq!(back, item());
        back.check().expect("whole");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let check = |change: fn(&mut HugePagesSample), wanted: &str| {
            let mut broken = item();
            change(&mut broken);
            let said = broken.check().expect_err(wanted);
            assert!(said.contains(wanted), "{said}");
        };
        check(|item| item.targets.reverse(), "not in order");
        check(|item| item.targets[0].target = TargetId(3), "not in order");
        let bytes = "bytes in huge pages";
        check(|item| item.targets[1].bytes += 4096, bytes);
        check(|item| item.targets[1].bytes = 1 << 62, bytes);
        let few = "than there are";
        check(|item| item.targets[1].bytes = 2 * BLOCK_SIZE, few);
        let large = "more pages than it can have";
        check(|item| item.targets[1].read[1].never_written = 513, large);
        let many = "more huge pages than an item";
        check(|item| item.targets[1].gone = vec![0; READS_MAX], many);
        let mut twice = item();
        twice.targets[1].read[1].block = 0;
        serde_json::to_string(&twice).expect_err("out of order");
    }

    #[test]
    fn few_bytes_that_come_to_much_are_refused() {
        let gone = |nr: u64| (0..nr).map(|number| number * BLOCK_SIZE).collect();
        let target = |target, nr| TargetHugePages {
            target: TargetId(target),
            gone: gone(nr),
            ..TargetHugePages::default()
        };
        let half = READS_MAX as u64 / 2;
        for (targets, is_whole) in [
            (vec![target(0, half), target(1, half)], true),
            (vec![target(0, half), target(1, half + 1)], false),
            (vec![target(0, 2 * half + 1)], false),
        ] {
            let time = Nanos(0);
            let json = serde_json::to_string(&HugePagesSample { time, targets }).expect("packs");
            assert!(json.len() < 2000, "{}", json.len());
            let back = serde_json::from_str::<HugePagesSample>(&json);
            assert_eq!(back.is_ok(), is_whole);
        }
    }

    proptest! {
        #[test]
        fn nothing_packed_is_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = pack(&bytes).expect("packs");
            for name in ["read", "gone"] {
                let json = serde_json::json!({"target": 0, "bytes": 1 << 30, name: text});
                if let Ok(target) = serde_json::from_value::<TargetHugePages>(json) {
                    let blocks = || target.read.iter().map(|read| read.block).chain(target.gone.iter().copied());
                    prop_assert!(blocks().all(|block| block % BLOCK_SIZE == 0 && block < 1 << 57));
                    prop_assert!(blocks().is_sorted());
                    let _ = target.check();
                }
            }
        }
    }
}
