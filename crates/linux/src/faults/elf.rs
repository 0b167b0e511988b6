//! Reads an ELF file with code: its build id, its segments and its stack frame information.
//!
//! The file is untrusted: a program runs whatever its section headers contain. No more than [`READ_MAX`] of it is read,
//! however large its parts claim to be. Its frame information is used only if unwinding by it ends. A DWARF expression
//! that jumps may run for ever, and framehop sets no bound. A file with such an expression is unwound by frame
//! pointers, like a file without frame information. Compilers generate no expressions that jump.

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use framehop::ExplicitModuleSectionInfo;
use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, EhFrame, EhFrameHdr, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Operation, UnwindExpression, UnwindSection as _,
};
use object::elf::PF_X;
use object::read::{ReadCache, ReadRef};
use object::{Object as _, ObjectSection as _, ObjectSegment as _, SegmentFlags};

/// Maximum bytes of one section.
const SECTION_MAX: u64 = 64 << 20;
/// Maximum bytes of a file that are read.
const READ_MAX: u64 = 96 << 20;
/// Bytes that a string counts as: it is read in parts of that size.
const STRING: u64 = 256;
/// Maximum number of segments of a file: a linker makes a dozen.
const SEGMENTS_MAX: usize = 1024;
/// Maximum bytes of the information about one function: all of them may be processed for each frame.
const ENTRY_MAX: usize = 256 << 10;

pub(super) struct ElfFacts {
    /// The linker's build id, as hexadecimal digits.
    pub(super) build_id: Option<String>,
    pub(super) segments: Vec<Segment>,
    pub(super) frames: ExplicitModuleSectionInfo<Arc<[u8]>>,
    /// Bytes that `frames` holds.
    pub(super) section_bytes: u64,
}

/// An executable segment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) address: u64,
}

impl ElfFacts {
    /// Reads a file; returns `None` if it is not an ELF file. Skips sections of more than `room` bytes.
    pub(super) fn read(file: &File, room: u64) -> Option<Self> {
        let (cache, left) = (ReadCache::new(file), Cell::new(READ_MAX));
        let bounded = Bounded {
            cache: &cache,
            left: &left,
        };
        let elf = object::File::parse(bounded).ok()?;
        let runs =
            |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.contains(PF_X));
        let segments = elf.segments().filter(|segment| runs(segment.flags()));
        let segments = segments.map(|segment| {
            let (offset, bytes) = segment.file_range();
            Segment {
                offset,
                bytes,
                address: segment.address(),
            }
        });
        let segments = segments.filter(|segment| {
            let ends = [segment.offset, segment.address].map(|at| at.checked_add(segment.bytes));
            ends.iter().all(Option::is_some)
        });
        let segments = segments.take(SEGMENTS_MAX).collect();
        let build_id = elf.build_id().ok().flatten();
        let build_id = build_id.map(|bytes| {
            let digits = bytes.iter().take(64).map(|byte| format!("{byte:02x}"));
            digits.collect()
        });
        let mut section_bytes: u64 = 0;
        let mut take = |name: &str| {
            let section = elf.section_by_name(name)?;
            let (offset, bytes) = section.file_range()?;
            let with_it = section_bytes.checked_add(bytes)?;
            if bytes > SECTION_MAX || with_it > room {
                return None;
            }
            let end = section.address().checked_add(bytes)?;
            let data: Arc<[u8]> = bounded.read_bytes_at(offset, bytes).ok()?.into();
            section_bytes = with_it;
            Some((section.address()..end, data))
        };
        let (eh_frame_svma, eh_frame) = take(".eh_frame").unzip();
        let (eh_frame_hdr_svma, eh_frame_hdr) = take(".eh_frame_hdr").unzip();
        let range = |name: &str| {
            let section = elf.section_by_name(name)?;
            let end = section.address().checked_add(section.size())?;
            Some(section.address()..end)
        };
        let frames = ExplicitModuleSectionInfo {
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..ExplicitModuleSectionInfo::default()
        };
        let ends = ends_always(&frames);
        Some(Self {
            build_id,
            segments,
            section_bytes: if ends { section_bytes } else { 0 },
            frames: if ends {
                frames
            } else {
                ExplicitModuleSectionInfo::default()
            },
        })
    }
}

/// Reads parts of a file up to a common limit.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    cache: &'a ReadCache<&'a File>,
    left: &'a Cell<u64>,
}

impl Bounded<'_> {
    fn count(self, bytes: u64) -> Result<(), ()> {
        let left = self.left.get().checked_sub(bytes).ok_or(())?;
        self.left.set(left);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.count(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.count(STRING)?;
        self.cache.read_bytes_at_until(range, delimiter)
    }
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Whether unwinding by this information always ends soon, whichever function it is asked about. Checks the same
/// entries that framehop may find: those of the table if there is one.
fn ends_always(frames: &ExplicitModuleSectionInfo<Arc<[u8]>>) -> bool {
    let Some(eh_frame) = &frames.eh_frame else {
        return true;
    };
    let start = |range: &Option<Range<u64>>| range.as_ref().map_or(0, |range| range.start);
    let bases = BaseAddresses::default()
        .set_eh_frame(start(&frames.eh_frame_svma))
        .set_eh_frame_hdr(start(&frames.eh_frame_hdr_svma))
        .set_text(start(&frames.text_svma))
        .set_got(start(&frames.got_svma));
    let mut section = EhFrame::new(eh_frame, LittleEndian);
    section.set_address_size(8);
    let found = match &frames.eh_frame_hdr {
        Some(table) => entries_of_table_end(table, &section, &bases),
        None => all_entries_end(&section, &bases),
    };
    // A table that cannot be read to its end may still be used in part.
    found.unwrap_or(false)
}

fn entries_of_table_end(
    table: &[u8],
    section: &EhFrame<Bytes<'_>>,
    bases: &BaseAddresses,
) -> gimli::Result<bool> {
    let Ok(header) = EhFrameHdr::new(table, LittleEndian).parse(bases, 8) else {
        return Ok(true);
    };
    let Some(table) = header.table() else {
        return Ok(true);
    };
    let mut entries = table.iter(bases);
    while let Some((_, entry)) = entries.next()? {
        let offset = table.pointer_to_offset(entry);
        let found =
            offset.and_then(|at| section.fde_from_offset(bases, at, EhFrame::cie_from_offset));
        // framehop cannot find an entry either that is not found here.
        if found.is_ok_and(|found| !ends(&found, section, bases)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn all_entries_end(section: &EhFrame<Bytes<'_>>, bases: &BaseAddresses) -> gimli::Result<bool> {
    let mut entries = section.entries(bases);
    while let Some(entry) = entries.next()? {
        if let CieOrFde::Fde(partial) = entry
            && let Ok(found) = partial.parse(EhFrame::cie_from_offset)
            && !ends(&found, section, bases)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an entry is short and none of its expressions jumps.
fn ends(
    entry: &FrameDescriptionEntry<Bytes<'_>>,
    section: &EhFrame<Bytes<'_>>,
    bases: &BaseAddresses,
) -> bool {
    if entry.entry_len() > ENTRY_MAX || entry.cie().entry_len() > ENTRY_MAX {
        return false;
    }
    let encoding = entry.cie().encoding();
    let jumps = |expression: UnwindExpression<usize>| {
        let Ok(expression) = expression.get(section) else {
            return false;
        };
        let mut operations = expression.operations(encoding);
        // Evaluation also ends at an operation that cannot be parsed.
        while let Ok(Some(operation)) = operations.next() {
            if matches!(operation, Operation::Skip { .. } | Operation::Bra { .. }) {
                return true;
            }
        }
        false
    };
    let mut all = [
        entry.cie().instructions(section, bases),
        entry.instructions(section, bases),
    ];
    all.iter_mut().all(|instructions| {
        while let Ok(Some(instruction)) = instructions.next() {
            let (CallFrameInstruction::DefCfaExpression { expression }
            | CallFrameInstruction::Expression { expression, .. }
            | CallFrameInstruction::ValExpression { expression, .. }) = instruction
            else {
                continue;
            };
            if jumps(expression) {
                return false;
            }
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EH_FRAME: u64 = 0x2000;
    const TABLE: u64 = 0x1000;

    /// Returns frame information of one function that computes the caller's stack pointer by `expression`.
    fn frames(expression: &[u8], has_table: bool) -> ExplicitModuleSectionInfo<Arc<[u8]>> {
        let entry = |content: &[u8]| [&(content.len() as u32).to_le_bytes(), content].concat();
        // Version 1, no augmentation, code by 1 and data by -8, return address in register 16.
        let common = entry(&[0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0]);
        let to_common = (common.len() as u32 + 4).to_le_bytes();
        let numbers = [0x100_u64, 0x40].map(u64::to_le_bytes).concat();
        let rule = [0x0f, expression.len() as u8];
        let function = entry(&[&to_common[..], &numbers, &rule, expression].concat());
        let at = EH_FRAME - TABLE + common.len() as u64;
        let eh_frame = [common, function, vec![0; 4]].concat();
        // Relative to the table, in four bytes each.
        let words = [EH_FRAME - TABLE - 4, 1, 0x100_u64.wrapping_sub(TABLE), at];
        let words = words.map(|word| (word as u32).to_le_bytes()).concat();
        let table = [&[1, 0x1b, 0x03, 0x3b][..], &words].concat();
        let range = |start: u64, bytes: &[u8]| start..start + bytes.len() as u64;
        ExplicitModuleSectionInfo {
            eh_frame_svma: Some(range(EH_FRAME, &eh_frame)),
            eh_frame: Some(eh_frame.into()),
            eh_frame_hdr_svma: has_table.then(|| range(TABLE, &table)),
            eh_frame_hdr: has_table.then(|| table.into()),
            ..ExplicitModuleSectionInfo::default()
        }
    }

    #[test]
    fn frames_whose_expressions_jump_are_not_believed() {
        // The expression that linkers emit for a PLT: rsp + 8 + ((rip & 15) >= 11) * 8.
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        // DW_OP_skip to itself.
        let endless = [0x2f, 0xfd, 0xff];
        // DW_OP_skip into the operand of DW_OP_const8u, which is that same skip.
        let hidden = [0x2f, 1, 0, 0x0e, 0x2f, 0xfd, 0xff, 0, 0, 0, 0, 0];
        let long = vec![0x96; 200];
        for has_table in [false, true] {
            assert!(ends_always(&frames(&plt, has_table)));
            assert!(ends_always(&frames(&long, has_table)));
            assert!(!ends_always(&frames(&endless, has_table)));
            assert!(!ends_always(&frames(&hidden, has_table)));
        }
    }

    #[test]
    fn no_more_is_read_than_there_may_be() {
        let file = tempfile::tempfile().expect("a file");
        // A file of 1 TiB of holes that its sections cover for the most part. `e_shnum` is 0, so the first section
        // holds their number.
        let mut header = vec![0_u8; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        header[40..48].copy_from_slice(&64_u64.to_le_bytes());
        header[52..54].copy_from_slice(&64_u16.to_le_bytes());
        header[58..60].copy_from_slice(&64_u16.to_le_bytes());
        let mut first = vec![0_u8; 64];
        first[32..40].copy_from_slice(&(1_u64 << 32).to_le_bytes());
        std::io::Write::write_all(&mut &file, &[header, first].concat()).expect("written");
        file.set_len(1 << 40).expect("holes");
        let elf = ElfFacts::read(&file, SECTION_MAX);
        assert!(elf.is_none_or(|elf| elf.section_bytes == 0));
    }
}
