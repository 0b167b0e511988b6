//! The temperature report: memory by access rate and age, in one number.
//!
//! The temperature of accessed memory is `rate_weight` for each percent of its access rate and `age_weight` for each
//! second that it has had this rate. The temperature of idle memory is `-age_weight` for each second. This is damo's
//! `temperature` (`damo report access --style temperature-sz-hist`), whose ages are in microseconds: there an age of a
//! second outweighs any access rate.
//!
//! Classes double in width from zero on. As in the idle report, idle memory has been idle for its age and the last
//! interval, and only resident memory counts where the record's source knows it.
//!
//! JSON: [`TemperatureReport`].

use std::collections::BTreeMap;
use std::io::{self, Write};

use isotherm_engine::{Nanos, TargetId, units};
use isotherm_record::item::{Header, Item};
use isotherm_render::plot::{Bar, bars};
use isotherm_render::table::Table;
use serde::Serialize;

use crate::Accumulate;
use crate::context::{RecordContext, RecordEnd, RecordInfo, Scope, TargetInfo};
use crate::latest::{Kept, Latest};
use crate::render::{Render, Style, page};
use crate::rows::ColumnType::{F64, U64};
use crate::rows::{Column, ColumnValue, column, nullable};
use crate::table::{TARGET_OR_TOTAL, Tabulate};

/// Classes end at powers of two up to this one.
const MAX_POWER: i32 = 24;

/// The query: time and weights.
#[derive(Clone, Copy, Debug)]
pub struct TemperatureOptions {
    /// Time since the beginning; `None` means the end.
    pub at: Option<Nanos>,
    /// Points for each percent of access rate.
    pub rate_weight: f64,
    /// Points for each second of age.
    pub age_weight: f64,
}

/// Memory whose temperature is within a class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TemperatureClass {
    /// Lowest temperature of the class; `null`: no limit.
    pub from: Option<f64>,
    /// Highest temperature of the class; `null`: no limit.
    pub to: Option<f64>,
    /// Bytes in the class.
    pub bytes: u64,
}

/// The memory of a target, or of all targets, by temperature.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TargetTemperature {
    #[serde(flatten)]
    pub target: TargetInfo,
    pub time_ns: Nanos,
    /// Bytes of unknown state, which have no temperature.
    pub unknown_bytes: u64,
    /// The classes that hold memory, the coldest first.
    pub classes: Vec<TemperatureClass>,
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TemperatureReport {
    /// `temperature`.
    pub report: &'static str,
    /// Version of this JSON format.
    pub version: u32,
    /// The record that the report is based on.
    pub record: RecordInfo,
    /// Points for each percent of access rate.
    pub rate_weight: f64,
    /// Points for each second of age.
    pub age_weight: f64,
    /// The memory of each target that existed at the time.
    pub targets: Vec<TargetTemperature>,
    /// The sum, if there is more than one target.
    pub total: Option<TargetTemperature>,
    /// Number of targets that had ended before.
    pub ended_targets: usize,
}

/// The accumulator.
#[derive(Debug)]
pub struct TemperatureByTarget {
    context: RecordContext,
    options: TemperatureOptions,
    latest: Latest,
}

impl TemperatureByTarget {
    /// Creates an accumulator for a record that begins with `header`.
    pub fn new(header: &Header, scope: Scope, options: TemperatureOptions) -> Self {
        Self {
            context: RecordContext::new(header, scope),
            options,
            latest: Latest::until(options.at),
        }
    }
}

impl Accumulate for TemperatureByTarget {
    type Report = TemperatureReport;

    fn push(&mut self, item: &Item) {
        self.context.observe(item);
        if let Item::Snapshot(snapshot) = item {
            self.latest.push(&mut self.context, snapshot, 0);
        }
    }

    fn finish_at(mut self, end: RecordEnd) -> TemperatureReport {
        self.context.end(end);
        let (kept, ended_targets) = std::mem::take(&mut self.latest).finish();
        let mut total = Sum::default();
        let mut targets = Vec::with_capacity(kept.len());
        for kept in &kept {
            let mut sum = Sum::default();
            sum.add(kept, &self.options, &mut self.context);
            total.add(kept, &self.options, &mut self.context);
            let target: TargetId = kept.snapshot.target;
            targets.push(sum.finish(self.context.target_info(target)));
        }
        TemperatureReport {
            report: "temperature",
            version: crate::VERSION,
            record: self.context.record_info(),
            rate_weight: self.options.rate_weight,
            age_weight: self.options.age_weight,
            total: (targets.len() > 1).then(|| total.finish(TargetInfo::all())),
            targets,
            ended_targets,
        }
    }
}

#[derive(Default)]
struct Sum {
    time: Nanos,
    unknown: u64,
    /// Bytes by class, see [`class_of`].
    classes: BTreeMap<i32, u64>,
}

impl Sum {
    fn add(&mut self, kept: &Kept, options: &TemperatureOptions, context: &mut RecordContext) {
        let snapshot = &kept.snapshot;
        let interval = snapshot.end.since(snapshot.start);
        self.time = self.time.max(context.offset(snapshot.end));
        for region in &snapshot.regions {
            self.unknown = self.unknown.saturating_add(region.unknown());
            let rate = f64::from(snapshot.access_rate(region).unwrap_or_default());
            let hot_for = (region.age_ns + interval).as_secs_f64();
            let hot = rate * 100.0 * options.rate_weight + hot_for * options.age_weight;
            let cold = kept.idle_for(region).as_secs_f64() * options.age_weight;
            for (class, bytes) in [
                (class_of(hot), region.touched()),
                (-class_of(cold), region.untouched()),
            ] {
                if bytes > 0 {
                    let sum = self.classes.entry(class).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            }
        }
    }

    fn finish(&self, target: TargetInfo) -> TargetTemperature {
        let classes = self.classes.iter().map(|(&class, &bytes)| {
            let (near, far) = limits(class.abs());
            let far = (class.abs() < MAX_POWER + 2).then_some(far);
            let (from, to) = if class < 0 {
                (far.map(|far| -far), Some(0.0 - near))
            } else {
                (Some(near), far)
            };
            TemperatureClass { from, to, bytes }
        });
        TargetTemperature {
            target,
            time_ns: self.time,
            unknown_bytes: self.unknown,
            classes: classes.collect(),
        }
    }
}

/// Returns the class of a temperature's amount: 1 below 1, 2 below 2, 3 below 4, and so on.
fn class_of(amount: f64) -> i32 {
    if amount < 1.0 {
        return 1;
    }
    // The exponent of a number from 1 on is what doubling makes of it.
    (amount.log2() as i32).min(MAX_POWER) + 2
}

/// Returns the least amount of a class and the least of the next.
fn limits(class: i32) -> (f64, f64) {
    let power = |class: i32| 2_f64.powi(class - 2);
    let least = if class == 1 { 0.0 } else { power(class) };
    (least, power(class + 1))
}

impl Tabulate for TemperatureReport {
    /// The columns of a row for each class.
    const COLUMNS: &'static [Column] = &[
        TARGET_OR_TOTAL,
        column("time_ns", U64, "Time of the count."),
        nullable("from", F64, "Lowest temperature; null: no limit."),
        nullable("to", F64, "Highest temperature; null: no limit."),
        column("bytes", U64, "Bytes of this temperature."),
    ];

    fn rows(&self, push: &mut dyn FnMut(&[ColumnValue<'_>])) {
        for of in self.all() {
            let [target, time] = [of.target.target.into(), of.time_ns.into()];
            for class in &of.classes {
                let [from, to] = [class.from.into(), class.to.into()];
                push(&[target, time, from, to, class.bytes.into()]);
            }
        }
    }
}

impl Render for TemperatureReport {
    fn text(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if self.targets.is_empty() {
            return writeln!(out, "no snapshot in this part of the record");
        }
        for of in self.all() {
            let (label, at) = (of.target.label(), style.duration(of.time_ns));
            writeln!(out, "Temperature of {label}, at {at}\n")?;
            let rows = of.bars(style).map(|bar| {
                let hashes = "#".repeat((bar.share * 40.0).round() as usize);
                [bar.label, bar.value, hashes]
            });
            Table::of("TEMPERATURE>|BYTES>|", rows).write(out)?;
            writeln!(out, "unknown: {}\n", style.bytes(of.unknown_bytes))?;
        }
        writeln!(out, "{}", self.weights())
    }

    fn svg(&self) -> String {
        // One file has one picture: the sum, or the only target.
        let bars_of = self.all().last().into_iter();
        let style = Style::default();
        let all = bars_of.flat_map(|of| of.bars(&style));
        bars("Memory by temperature", &self.weights(), all)
    }

    fn html(&self) -> String {
        let mut html = page::start("Temperature", &self.record);
        for of in self.all() {
            let label = of.target.label();
            let picture = bars(&label, &self.weights(), of.bars(&Style::default()));
            html += &page::figure(&label, "", &picture);
        }
        html
    }
}

impl TemperatureReport {
    fn all(&self) -> impl Iterator<Item = &TargetTemperature> {
        self.targets.iter().chain(&self.total)
    }

    fn weights(&self) -> String {
        format!(
            "Temperature: {} for each percent of access rate, and {} for each second of age; below 0, memory is idle.",
            self.rate_weight, self.age_weight
        )
    }
}

impl TargetTemperature {
    fn bars(&self, style: &Style) -> impl Iterator<Item = Bar> {
        let all = self.classes.iter().map(|class| class.bytes as f64);
        let all = all.sum::<f64>().max(1.0);
        self.classes.iter().map(move |class| {
            let share = class.bytes as f64 / all;
            let label = match (class.from, class.to) {
                (Some(from), Some(to)) => format!("{from} to {to}"),
                (from, to) => match from.or(to) {
                    Some(limit) if from.is_some() => format!(">= {limit}"),
                    limit => format!("<= {}", limit.unwrap_or_default()),
                },
            };
            let bytes = style.bytes(class.bytes);
            Bar {
                label,
                value: format!("{bytes} · {}", units::format_share(share)),
                share,
                colour: None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_double() {
        for (amount, class) in [(0.0, 1), (0.99, 1), (1.0, 2), (1.9, 2), (2.0, 3), (4.0, 4)] {
            assert_eq!(class_of(amount), class, "{amount}");
            let (least, next) = limits(class);
            assert!((least..next).contains(&amount), "{amount}");
        }
        assert_eq!(class_of(f64::INFINITY), MAX_POWER + 2);
    }
}
