//! The machine report as text, CSV, SVG and HTML.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::Nanos;
use isotherm_engine::frames::{AGE_BOUNDS, AgeBytes, NR_AGES};
use isotherm_engine::units::{format_bytes, format_share};

use super::page::escape;
use super::{Render, Style, or_empty, page};
use crate::machine::{MachineCache, MachineReport, MemoryClass};
use crate::rows::ColumnType::{Name, U32, U64};
use crate::rows::{Column, ColumnValue, column, nullable};
use crate::table::Tabulate;
use isotherm_render::table::Table;
use isotherm_render::treemap::{Tile, treemap};

/// Number of processes and groups that text and pages show; JSON and CSV have all.
const SHOWN: usize = 20;
/// The bounds that text shows, as indices in [`AGE_BOUNDS`]: 5 s, 30 s, 2 min and 10 min.
const BOUNDS: [usize; 4] = [1, 2, 3, 4];
/// The age bound from which memory is cold in the picture, as in `prcl`: 5 s.
const COLD: usize = 1;
/// Number of scans after which most ages are known: two rounds, and one that the record may end in.
const NR_LOOKS: u64 = 3;

impl Tabulate for MachineReport {
    /// The columns of a row for each class, zone, process, control group and cached file, and of huge pages.
    const COLUMNS: &'static [Column] = &[
        column("kind", Name, "Kind of memory."),
        nullable("name", Name, "Its name."),
        nullable("pid", U32, "Process id."),
        nullable("group", Name, "Control group."),
        nullable("node", U32, "Number of the node."),
        nullable("bytes", U64, "Its bytes; null: not known."),
        nullable("touched", U64, "Bytes accessed in the last interval."),
        nullable("idle_from_0s", U64, "Bytes idle for less than 1 s."),
        nullable("idle_from_1s", U64, "Bytes idle for 1 s to 5 s."),
        nullable("idle_from_5s", U64, "Bytes idle for 5 s to 30 s."),
        nullable("idle_from_30s", U64, "Bytes idle for 30 s to 2 min."),
        nullable("idle_from_120s", U64, "Bytes idle for 2 min to 10 min."),
        nullable("idle_from_600s", U64, "Bytes idle for 10 min to 1 h."),
        nullable("idle_from_3600s", U64, "Bytes idle for longer."),
        nullable("unknown", U64, "Bytes of unknown age."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        let none = ColumnValue::Null;
        let mut row =
            |kind, at: [ColumnValue<'_>; 4], bytes: Option<u64>, ages: Option<&AgeBytes>| {
                let (kind, bytes) = (ColumnValue::Name(kind), ColumnValue::from(bytes));
                push(&[&[kind][..], &at, &[bytes], &self.age_values(ages)].concat());
            };
        for node in &self.nodes {
            for of in &node.classes {
                let at = [of.class.name().into(), none, none, node.node.into()];
                row("class", at, Some(of.bytes), of.ages.as_ref());
            }
        }
        for zone in &self.zones {
            let at = [zone.zone.as_str().into(), none, none, zone.node.into()];
            row("zone", at, Some(zone.present_bytes), Some(&zone.mapped));
        }
        for process in &self.processes {
            let (name, group) = (process.target.name.as_deref(), process.group.as_deref());
            let at = [name.into(), process.target.pid.into(), group.into(), none];
            row("process", at, Some(process.bytes), Some(&process.ages));
        }
        let several = &self.several;
        row("several", [none; 4], Some(several.total()), Some(several));
        for group in &self.groups {
            let at = [none, none, group.group.as_str().into(), none];
            row("group", at, Some(group.bytes), Some(&group.ages));
        }
        for huge in &self.huge_pages {
            let name = huge.target.name.as_deref().into();
            let at = [name, huge.target.pid.into(), none, none];
            row("huge", at, Some(huge.bytes), None);
            row("huge_read", at, Some(huge.read_bytes), None);
            row("huge_waste", at, huge.waste_bytes, None);
        }
        if let Some(page_cache) = &self.page_cache {
            for of in &page_cache.groups {
                let at = [none, none, of.group.as_deref().into(), none];
                let bytes = Some(of.bytes.total());
                row("page cache group", at, bytes, Some(&of.bytes.ages));
            }
            for file in &page_cache.files {
                let (name, bytes) = (file.name(), Some(file.bytes.total()));
                let at = [name.as_str().into(), none, none, none];
                row("page cache file", at, bytes, Some(&file.bytes.ages));
            }
        }
    }
}

impl Render for MachineReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n", self.headline(style))?;
        self.class_table(style).write(out)?;
        if self.nodes.len() > 1 {
            writeln!(out)?;
            self.node_table(style).write(out)?;
        }
        if self.zones.len() > 1 {
            writeln!(out)?;
            self.zone_table(style).write(out)?;
        }
        writeln!(out, "\nBy process, what each maps alone:")?;
        self.process_table(style).write(out)?;
        tell_more(self.processes.len(), out)?;
        if self.groups.len() > 1 {
            writeln!(out, "\nBy control group, what its processes map alone:")?;
            self.group_table(style).write(out)?;
            tell_more(self.groups.len(), out)?;
        }
        if !self.huge_pages.is_empty() {
            writeln!(out, "\nHuge pages, and what of them was never written:")?;
            self.huge_table(style).write(out)?;
            tell_more(self.huge_pages.len(), out)?;
        }
        match &self.page_cache {
            Some(page_cache) => page_cache.text(style, out),
            None => writeln!(
                out,
                "\nNo look at the whole page cache was complete after {}: its ages are unknown. Record for longer, or \
                 raise --cpu-budget.",
                style.duration(self.time_ns)
            ),
        }
    }

    fn svg(&self) -> String {
        treemap("The machine's memory", &self.picture_note(), &self.tiles())
    }

    fn html(&self) -> String {
        let mut html = page::start("The machine's memory", &self.record);
        let style = Style::default();
        let _ = write!(html, "<p>{}</p>", escape(&self.headline(&style)));
        html += &page::figure("The machine's memory", "", &self.svg());
        let none = "";
        html += &self.class_table(&style).html("By class", none);
        if self.nodes.len() > 1 {
            html += &self.node_table(&style).html("By node", none);
        }
        if self.zones.len() > 1 {
            html += &self.zone_table(&style).html("By zone", none);
        }
        let note = "What each maps alone.";
        html += &self.process_table(&style).html("By process", note);
        html += &self.group_table(&style).html("By control group", note);
        if !self.huge_pages.is_empty() {
            let note = "Waste is what was never written, by what was read so far.";
            html += &self.huge_table(&style).html("Huge pages", note);
        }
        if let Some(page_cache) = &self.page_cache {
            let headline = page_cache.headline(&style);
            let groups = page_cache.group_table(&style);
            html += &groups.html("Page cache by control group", &headline);
            let files = page_cache.file_table(&style);
            html += &files.html("Page cache by file", "The largest.");
        }
        html
    }
}

fn tell_more(nr: usize, out: &mut dyn Write) -> io::Result<()> {
    match nr.saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "and {more} more; --json and --format csv have all"),
    }
}

const AGE_HEADS: &str = "TOUCHED>|IDLE >= 5 s>|>= 30 s>|>= 2 min>|>= 10 min>|UNKNOWN>";

/// Returns table cells of bytes by idle time. Idle times longer than `watched` are unknown, not 0.
fn ages_of(ages: Option<AgeBytes>, watched: Nanos, style: &Style) -> Vec<String> {
    let Some(ages) = ages else {
        return vec!["-".into(); BOUNDS.len() + 2];
    };
    let mut fields = vec![style.bytes(ages.touched)];
    fields.extend(BOUNDS.map(|bound| match ages.idle_from(bound) {
        0 if watched < AGE_BOUNDS[bound] => "?".to_owned(),
        bytes => style.bytes(bytes),
    }));
    fields.push(style.bytes(ages.unknown));
    fields
}

/// Builds a table whose rows end in bytes by idle time.
fn table(
    heads: &str,
    rows: impl IntoIterator<Item = (Vec<String>, Option<AgeBytes>)>,
    watched: Nanos,
    style: &Style,
) -> Table {
    let rows = rows.into_iter().map(|(mut row, ages)| {
        row.extend(ages_of(ages, watched, style));
        row
    });
    Table::of(&format!("{heads}|{AGE_HEADS}"), rows)
}

impl MachineReport {
    /// Returns the values of the last columns. Idle times longer than the record are unknown, not 0.
    fn age_values(&self, ages: Option<&AgeBytes>) -> [ColumnValue<'static>; 2 + NR_AGES] {
        let mut values = [ColumnValue::Null; 2 + NR_AGES];
        let Some(ages) = ages else {
            return values;
        };
        values[0] = ages.touched.into();
        for (class, bytes) in ages.idle.into_iter().enumerate() {
            let bound = class.checked_sub(1);
            let starts = bound.map_or(Nanos(0), |bound| AGE_BOUNDS[bound]);
            if bytes > 0 || starts <= self.time_ns {
                values[1 + class] = bytes.into();
            }
        }
        values[1 + NR_AGES] = ages.unknown.into();
        values
    }

    fn headline(&self, style: &Style) -> String {
        format!(
            "{} of memory, {} of it used, at {}; it is known what for of {}, and of {} of users' memory when it \
             was accessed",
            style.bytes(self.total_bytes),
            style.bytes(self.used_bytes),
            style.duration(self.time_ns),
            format_share(self.known_use),
            format_share(self.known_age),
        )
    }

    fn class_table(&self, style: &Style) -> Table {
        let rows = self.classes.iter();
        let rows = rows.filter(|of| of.bytes > 0 || of.class.is_user());
        let rows = rows.map(|of| {
            let row = vec![of.class.name().to_owned(), style.bytes(of.bytes)];
            (row, of.ages)
        });
        table("CLASS|BYTES>", rows, self.time_ns, style)
    }

    fn node_table(&self, style: &Style) -> Table {
        let rows = self.nodes.iter().map(|node| {
            let ages = node.classes.iter().filter_map(|class| class.ages.as_ref());
            let all: AgeBytes = ages.sum();
            let (total, used) = (style.bytes(node.total_bytes), style.bytes(node.used_bytes));
            (vec![node.node.to_string(), total, used], Some(all))
        });
        table("NODE>|TOTAL>|USED>", rows, self.time_ns, style)
    }

    fn zone_table(&self, style: &Style) -> Table {
        let rows = self.zones.iter().map(|zone| {
            let row = vec![
                zone.node.to_string(),
                zone.zone.clone(),
                style.bytes(zone.present_bytes),
                style.bytes(zone.reserved_bytes),
                style.bytes(zone.free_bytes),
                style.bytes(zone.mapped.total()),
            ];
            (row, Some(zone.mapped))
        });
        let heads = "NODE>|ZONE|BYTES>|RESERVED>|FREE>|MAPPED>";
        table(heads, rows, self.time_ns, style)
    }

    fn process_table(&self, style: &Style) -> Table {
        let rows = self.processes.iter().take(SHOWN).map(|process| {
            let name = process.target.name.clone().unwrap_or_default();
            let (pid, bytes) = (or_empty(process.target.pid), style.bytes(process.bytes));
            (vec![pid, name, bytes], Some(process.ages))
        });
        let several = style.bytes(self.several.total());
        let last = vec![String::new(), "several processes".into(), several];
        let rows = rows.chain([(last, Some(self.several))]);
        table("PID>|NAME|BYTES>", rows, self.time_ns, style)
    }

    fn group_table(&self, style: &Style) -> Table {
        let rows = self.groups.iter().take(SHOWN).map(|group| {
            let (nr, bytes) = (group.nr_processes.to_string(), style.bytes(group.bytes));
            (vec![group.group.clone(), nr, bytes], Some(group.ages))
        });
        table("GROUP|PROCESSES>|BYTES>", rows, self.time_ns, style)
    }

    fn huge_table(&self, style: &Style) -> Table {
        let rows = self.huge_pages.iter().take(SHOWN).map(|huge| {
            // The waste is an estimate if only a part was read.
            let is_estimate = huge.read_bytes < huge.bytes;
            let about = if is_estimate { "~" } else { "" };
            let waste = huge.waste_bytes;
            let waste = waste.map(|waste| format!("{about}{}", style.bytes(waste)));
            [
                or_empty(huge.target.pid),
                huge.target.name.clone().unwrap_or_default(),
                style.bytes(huge.bytes),
                style.bytes(huge.read_bytes),
                waste.unwrap_or_else(|| "unknown".to_owned()),
            ]
        });
        Table::of("PID>|NAME|HUGE>|READ>|WASTE>", rows)
    }

    fn picture_note(&self) -> String {
        format!(
            "{} used; colours say how much of it is known to have been idle for 5 s or more, grey that this is \
             not known",
            format_bytes(self.used_bytes)
        )
    }

    fn tiles(&self) -> Vec<Tile> {
        let mut tiles: Vec<Tile> = Vec::new();
        let mut tile = |name: String, bytes: u64, ages: Option<&AgeBytes>| {
            let known = ages.map(|ages| ages.total().saturating_sub(ages.unknown));
            let cold = ages.map(|ages| ages.idle_from(COLD));
            let known = known.filter(|known| 2 * known > bytes).zip(cold);
            tiles.push(Tile {
                text: format!("{name} · {}", format_bytes(bytes)),
                weight: bytes,
                heat: known.map(|(known, cold)| 1.0 - cold as f64 / known.max(1) as f64),
            });
        };
        for process in &self.processes {
            let name = process.target.name.clone().unwrap_or_default();
            let pid = process.target.pid.map(|pid| format!(" ({pid})"));
            let name = name + &pid.unwrap_or_default();
            tile(name, process.bytes, Some(&process.ages));
        }
        let several = &self.several;
        tile("several processes".into(), several.total(), Some(several));
        for of in &self.classes {
            if let MemoryClass::Anonymous | MemoryClass::MappedFiles | MemoryClass::Free = of.class
            {
                continue;
            }
            // Shared memory that processes map counts for them.
            let mapped = of.ages.filter(|_| of.class == MemoryClass::SharedMemory);
            let mapped = mapped.map_or(0, |ages| ages.total().saturating_sub(ages.unknown));
            let ages = of.ages.filter(|_| of.class == MemoryClass::PageCache);
            let bytes = of.bytes.saturating_sub(mapped);
            tile(of.class.name().into(), bytes, ages.as_ref());
        }
        tiles
    }
}

impl MachineCache {
    /// Returns the length of a record with [`NR_LOOKS`] scans that take as long as the last one.
    fn enough_ns(&self) -> Nanos {
        Nanos(NR_LOOKS.saturating_mul(self.took_ns.0))
    }

    fn headline(&self, style: &Style) -> String {
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

    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
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

    fn group_table(&self, style: &Style) -> Table {
        let rows = self.groups.iter().take(SHOWN).map(|of| {
            let name = of.group.clone().unwrap_or_else(|| "not known".into());
            let row = vec![name, style.bytes(of.bytes.total())];
            (row, Some(of.bytes.ages))
        });
        table("GROUP|BYTES>", rows, self.time_ns, style)
    }

    fn file_table(&self, style: &Style) -> Table {
        let rows = self.files.iter().take(SHOWN).map(|file| {
            let row = vec![file.name(), style.bytes(file.bytes.total())];
            (row, Some(file.bytes.ages))
        });
        table("FILE|BYTES>", rows, self.time_ns, style)
    }
}
