//! The page cache's part of the machine report.

use std::io::{self, Write};

use isotherm_engine::Nanos;

use super::Style;
use super::machine::{SHOWN, table, tell_more};
use crate::machine::MachineCache;
use isotherm_render::table::Table;

/// Number of scans after which most ages are known: two rounds, and one that the record may end in.
const NR_LOOKS: u64 = 3;

impl MachineCache {
    /// Returns the length of a record with [`NR_LOOKS`] scans that take as long as the last one.
    fn enough_ns(&self) -> Nanos {
        Nanos(NR_LOOKS.saturating_mul(self.took_ns.0))
    }

    pub(super) fn headline(&self, style: &Style) -> String {
        format!(
            "{} of {} files that no process maps: {} active, {} not written yet; seen accessed once: {}, again: {}",
            style.bytes(self.bytes.total()),
            self.nr_files,
            style.bytes(self.bytes.active),
            style.bytes(self.bytes.dirty),
            style.bytes(self.bytes.used_once),
            style.bytes(self.bytes.used_again),
        )
    }

    pub(super) fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "\nPage cache at {} (a look at all of it took {}): {}",
            style.duration(self.time_ns),
            style.duration(self.took_ns),
            self.headline(style)
        )?;
        if 2 * self.bytes.ages.unknown > self.bytes.total() {
            writeln!(
                out,
                "More than half of it is of unknown age: ages are known from the second look on. Record for {} or \
                 longer, or raise --cpu-budget.",
                style.duration(self.enough_ns())
            )?;
        }
        self.group_table(style).write(out)?;
        tell_more(self.groups.len(), out)?;
        writeln!(out, "\nThe largest cached files:")?;
        self.file_table(style).write(out)?;
        tell_more(self.files.len(), out)
    }

    pub(super) fn group_table(&self, style: &Style) -> Table {
        let rows = self.groups.iter().take(SHOWN).map(|of| {
            let name = of.group.clone().unwrap_or_else(|| "not known".into());
            (
                vec![name, style.bytes(of.bytes.total())],
                Some(of.bytes.ages),
            )
        });
        table("GROUP|BYTES>", rows, self.time_ns, style)
    }

    pub(super) fn file_table(&self, style: &Style) -> Table {
        let rows = self.files.iter().take(SHOWN).map(|file| {
            let row = vec![file.name(), style.bytes(file.bytes.total())];
            (row, Some(file.bytes.ages))
        });
        table("FILE|BYTES>", rows, self.time_ns, style)
    }
}
