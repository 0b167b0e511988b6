//! Sizes as text, tables, SVG and HTML.

use std::fmt::Write as _;
use std::io::{self, Write};

use isotherm_engine::{Nanos, units};
use isotherm_render::page;
use isotherm_render::plot::{Bar, bars};
use isotherm_render::table::Table;
use isotherm_report::ColumnType::{Name, U64};
use isotherm_report::render::page::subject;
use isotherm_report::{Column, ColumnValue, Render, Style, Tabulate, column};

use crate::charge::UNSEEN_MIN;
use crate::report::{SizeAdvice, SizeEstimate, SizeReport, TrialsEnd, Verified};

/// Growth below this share of the memory in an hour is not worth a line.
const GROWS: f64 = 0.01;

/// Longer watches are not proposed.
const LONGEST: Nanos = Nanos(30 * 86_400_000_000_000);

/// Names of what to set, in the order of [`SizeAdvice`].
const SETTINGS: [&str; 4] = ["request", "memory.high", "memory.max", "swap"];

impl SizeAdvice {
    fn values(&self) -> [SizeEstimate; 4] {
        [self.request, self.high, self.limit, self.swap]
    }
}

impl Tabulate for SizeReport {
    /// The columns of a row for each setting, with swap and without.
    const COLUMNS: &'static [Column] = &[
        column(
            "swap",
            Name,
            "`yes`: swap takes what does not fit. `no`: there is no swap.",
        ),
        column(
            "setting",
            Name,
            "`request`, `memory.high`, `memory.max` or `swap`.",
        ),
        column("bytes", U64, "The estimate."),
        column("low_bytes", U64, "Lower bound."),
        column("high_bytes", U64, "Upper bound."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for (swap, advice) in [("yes", &self.with_swap), ("no", &self.without_swap)] {
            for (name, value) in SETTINGS.iter().zip(advice.values()) {
                push(&[
                    swap.into(),
                    (*name).into(),
                    value.bytes.into(),
                    value.low_bytes.into(),
                    value.high_bytes.into(),
                ]);
            }
        }
    }
}

impl Render for SizeReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}.\n", self.verdict(style))?;
        table(
            "SETTING|WITH SWAP>|FROM>|TO>|WITHOUT SWAP>|FROM>|TO>|NOW>",
            self,
            style,
        )
        .write(out)?;
        for line in self.remarks(style) {
            writeln!(out, "{line}.")?;
        }
        Ok(())
    }

    fn svg(&self) -> String {
        let most = self.memory.peak_bytes.max(1) as f64;
        let advice = SETTINGS.iter().zip(self.advice().0.values());
        let rows = advice.map(|(name, value)| Bar {
            label: (*name).to_owned(),
            value: format!(
                "{} ({})",
                units::format_bytes(value.bytes),
                between(value, &Style::default())
            ),
            share: (value.bytes as f64 / most).min(1.0),
            colour: None,
        });
        bars("What to set", &self.verdict(&Style::default()), rows)
    }

    fn html(&self) -> String {
        let style = Style::default();
        let heads = "Setting|With swap|From|To|Without swap|From|To|Now";
        let mut html = page::begin("Size", &subject(&self.record));
        html += &page::figure("What to set", "", &self.svg());
        html + &table(heads, self, &style).html("What to set", &self.remarks(&style).join(". "))
    }
}

fn table(heads: &str, report: &SizeReport, style: &Style) -> Table {
    let both = report
        .with_swap
        .values()
        .into_iter()
        .zip(report.without_swap.values());
    let today = report.today.map_or([None; 4], |today| {
        [None, today.high_bytes, today.limit_bytes, today.swap_bytes]
    });
    let rows = SETTINGS
        .iter()
        .zip(both)
        .zip(today)
        .map(|((name, (with, without)), today)| {
            let bytes = |value: SizeEstimate| {
                [value.bytes, value.low_bytes, value.high_bytes].map(|bytes| style.bytes(bytes))
            };
            let ([a, b, c], [d, e, f]) = (bytes(with), bytes(without));
            let today = today.map_or_else(|| "-".to_owned(), |bytes| style.bytes(bytes));
            [(*name).to_owned(), a, b, c, d, e, f, today]
        });
    Table::of(heads, rows)
}

fn between(value: SizeEstimate, style: &Style) -> String {
    format!(
        "{} to {}",
        style.bytes(value.low_bytes),
        style.bytes(value.high_bytes)
    )
}

impl SizeReport {
    /// Returns the result in a sentence.
    fn verdict(&self, style: &Style) -> String {
        let names = match &self.names[..] {
            [] => "the targets".to_owned(),
            [one] => one.clone(),
            several => format!("these {} programs", several.len()),
        };
        let verb = if self.names.len() == 1 {
            "needs"
        } else {
            "need"
        };
        let (advice, has_swap) = self.advice();
        let [need, peak] = [advice.request.bytes, self.memory.peak_bytes];
        let without = if has_swap { "" } else { ", without swap" };
        format!(
            "{names} {verb} {} of {} at most, if a loss of {} is allowed{without}",
            style.bytes(need),
            style.bytes(peak),
            units::format_share(self.max_slowdown)
        )
    }

    fn remarks(&self, style: &Style) -> Vec<String> {
        let mut remarks = vec![self.horizon(style), self.cost(style)];
        if let Some(lost) = self
            .present_slowdown
            .filter(|lost| *lost > self.max_slowdown)
        {
            remarks.push(format!(
                "It is short of memory: it lost {} of its time by reading back what the kernel had reclaimed. How much more \
                 it needs is not known: raise its limit, and ask again",
                units::format_share(lost)
            ));
        }
        self.add_memory(&mut remarks, style);
        remarks.extend(self.growth_text(style));
        remarks.extend(self.programs.iter().map(|of| {
            let now = of.now.as_deref();
            let now = now.map_or_else(|| "not found".to_owned(), |now| format!("{now} now"));
            let now = isotherm_record::printable(&now).into_owned();
            format!(
                "{} (pid {}), {}: {now}; {}",
                of.program, of.pid, of.setting, of.advice
            )
        }));
        remarks.extend(
            self.verified
                .as_ref()
                .map(|verified| tried(verified, style)),
        );
        remarks.extend(
            self.saved_per_month
                .map(|saved| format!("The rest costs {saved:.2} a month by your price")),
        );
        remarks
    }

    /// Adds what of the memory is special.
    fn add_memory(&self, remarks: &mut Vec<String>, style: &Style) {
        let memory = &self.memory;
        if memory.unknown_mean_bytes > 0 {
            let unknown = style.bytes(memory.unknown_mean_bytes);
            remarks.push(format!(
                "The use of {unknown} is unknown: it counts as needed"
            ));
        }
        if memory.swapped_peak_bytes > 0 {
            let swapped = style.bytes(memory.swapped_peak_bytes);
            remarks.push(format!(
                "{swapped} were swapped out already: their use is unknown, and counts as none with swap"
            ));
        }
        match memory.unmapped_peak_bytes {
            None => remarks.push(
                "Kernel memory and unmapped page cache are not included: --cgroup, of a group with a memory controller, has them"
                    .to_owned(),
            ),
            Some(0) => {}
            Some(bytes) => {
                let use_of = memory.unmapped_needed.map_or_else(
                    || "its use is unknown, and the range says so".to_owned(),
                    |needed| {
                        let [low, bytes] = [needed.low_bytes, needed.bytes].map(|n| style.bytes(n));
                        format!(
                            "{low} of it were read again, and {bytes} count as needed, with some that is unknown or not written yet"
                        )
                    },
                );
                let bytes = style.bytes(bytes);
                remarks.push(format!("{bytes} of page cache is not mapped: {use_of}"));
            }
        }
        if let Some(unseen) = memory
            .unseen_peak_bytes
            .filter(|bytes| *bytes >= UNSEEN_MIN)
        {
            let bytes = style.bytes(unseen);
            remarks.push(format!(
                "up to {bytes} of processes that end before they are scanned count as needed while they are there"
            ));
        }
        if let Some(foreign) = memory.foreign_bytes.filter(|bytes| *bytes >= UNSEEN_MIN) {
            let bytes = style.bytes(foreign);
            remarks.push(format!(
                "{bytes} that it maps are charged to other control groups, which used them first: a limit of this one does \
                 not count them"
            ));
        }
    }

    fn horizon(&self, style: &Style) -> String {
        let start = if self.has_seen_start {
            "with"
        } else {
            "without"
        };
        let mut text = format!(
            "Watched for {}, {start} a start, at the peak after {}",
            style.duration(self.duration_ns),
            style.duration(self.peak_at_ns)
        );
        if (self.duration_ns..LONGEST).contains(&self.trusted_after_ns) {
            let _ = write!(
                text,
                "; rarer uses were not seen: watch for {} or more",
                units::format_time(round_up(self.trusted_after_ns))
            );
        }
        text
    }

    fn cost(&self, style: &Style) -> String {
        let costs = &self.costs;
        let source = if costs.is_measured {
            "measured with the record"
        } else {
            "not measured here"
        };
        format!(
            "A refault costs {} from swap ({source}), {} from a file",
            style.duration(costs.swap_ns),
            style.duration(costs.file_ns)
        )
    }

    fn growth_text(&self, style: &Style) -> Option<String> {
        let growth = self.growth.filter(|growth| {
            growth.is_certain()
                && growth.bytes_per_hour > GROWS * self.memory.mapped_mean_bytes as f64
        })?;
        let bytes = |bytes: f64| style.bytes(bytes.max(0.0) as u64);
        let mut text = format!(
            "It grows by {} an hour ({} to {})",
            bytes(growth.bytes_per_hour),
            bytes(growth.low_bytes_per_hour),
            bytes(growth.high_bytes_per_hour)
        );
        if self.grown_idle_bytes > 0 {
            let _ = write!(
                text,
                ", and {} of what appeared is idle: `isotherm record --stacks`, then `isotherm report blame`, names \
                 the code",
                style.bytes(self.grown_idle_bytes)
            );
        }
        Some(text)
    }
}

/// Returns what trials have shown.
fn tried(verified: &Verified, style: &Style) -> String {
    let trials = verified.trials.iter().map(|trial| {
        let lost = units::format_share(trial.slowdown);
        format!(
            "at {} it lost {lost} in {:.0} s{}",
            style.bytes(trial.limit_bytes),
            trial.seconds,
            if trial.fits { "" } else { " (not enough)" }
        )
    });
    let trials = trials.collect::<Vec<_>>().join("; ");
    let least = verified.least_bytes.map_or_else(
        || "none of these limits is enough".to_owned(),
        |least| format!("{} is enough", style.bytes(least)),
    );
    let set = verified.applied_bytes.map_or_else(
        || "what was set before is set again".to_owned(),
        |bytes| format!("{} is set now", style.bytes(bytes)),
    );
    let end = match verified.end {
        TrialsEnd::Found => "",
        TrialsEnd::NeverFits => " (it waits for memory without a limit, too)",
        TrialsEnd::Stopped => " (ended before)",
        TrialsEnd::Ended => " (its processes ended)",
        TrialsEnd::Idle => " (it does far less now than while it was watched)",
        TrialsEnd::Enough => " (no more were tried)",
    };
    format!("Tried: {trials}: {least}{end}; {set}")
}

/// Rounds a time up to two digits of seconds or minutes.
fn round_up(time: Nanos) -> Nanos {
    let unit = if time > Nanos::from_millis(600_000) {
        60_000
    } else {
        1_000
    };
    Nanos::from_millis(time.0.div_ceil(unit * 1_000_000) * unit)
}
