//! A comparison as a table for people: a column for each world.

use std::fmt::Write as _;

use isotherm_engine::units::{format_bytes, format_share};

use super::{Comparison, Turn, WorldReport};
use crate::columns::columns;

type Measure = fn(&Turn) -> Option<f64>;

impl Comparison {
    /// Returns the table's lines, without the head: a quantity, then its value in each world, or `-`.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let row = |what: String, of: &dyn Fn(&WorldReport) -> Option<String>| -> Vec<String> {
            let value = |world: &WorldReport| of(world).unwrap_or_else(|| "-".to_owned());
            std::iter::once(what)
                .chain(self.worlds.iter().map(value))
                .collect()
        };
        let idle = format!("idle for {:.0} s", self.idle_seconds);
        let mut rows = vec![
            row("turns".into(), &|world| Some(world.turns.len().to_string())),
            row("snapshots a turn".into(), &|world| {
                world
                    .median(|t| Some(t.snapshots as f64))
                    .map(|n| format!("{n:.0}"))
            }),
            row("regions".into(), &|world| {
                world
                    .median(|t| Some(t.regions as f64))
                    .map(|n| format!("{n:.0}"))
            }),
            row("CPU of watching".into(), &|world| {
                world.median(|t| Some(t.cpu_share)).map(format_share)
            }),
            row("  of it the kdamond's".into(), &|world| {
                world.median(|t| t.kdamond_cpu_share).map(format_share)
            }),
        ];
        let shares: [(String, Measure); 5] = [
            ("in use: precision".into(), |t| t.accessed_precision),
            ("in use: recall".into(), |t| t.accessed_recall),
            (format!("{idle}: precision"), |t| t.idle_precision),
            (format!("{idle}: recall"), |t| t.idle_recall),
            ("nothing said of".into(), |t| t.unknown_share),
        ];
        for (what, of) in shares {
            rows.push(row(what, &|world| spread(world, of)));
        }
        let schemes = { self.worlds.iter() }.find_map(|world| Some(&world.turns.first()?.schemes));
        for (at, scheme) in schemes.into_iter().flatten().enumerate() {
            let name = format!("scheme {at}, {}", scheme.action);
            rows.push(row(format!("{name}: is about"), &|world| {
                let bytes = world.median(|t| Some(t.schemes.get(at)?.bytes as f64))?;
                Some(format_bytes(bytes as u64))
            }));
            rows.push(row("  of that in use".into(), &|world| {
                let bytes = world.median(|t| Some(t.schemes.get(at)?.accessed_bytes as f64))?;
                Some(format_bytes(bytes as u64))
            }));
        }
        rows
    }

    /// Returns the table and the remarks as text.
    pub fn text(&self) -> String {
        let names = self.worlds.iter().map(|world| world.world.name());
        let head = std::iter::once("world").chain(names);
        let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
        rows.extend(self.rows());
        let mut text = columns(&rows);
        for line in self.remarks() {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Returns the remarks on the numbers, one sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let first = self.worlds.iter().flat_map(|world| &world.turns).next();
        if let Some(turn) = first {
            let truth = turn.truth;
            let known = truth.accessed + truth.idle;
            remarks.push(format!(
                "By exact scans before and after, in the first turn: {} in use, {} idle; left out as it changed {}, as \
                 it is not known {}.",
                format_bytes(truth.accessed),
                format_bytes(truth.idle),
                format_bytes(truth.changed),
                format_bytes(truth.unknown),
            ));
            if truth.changed > known {
                remarks.push(
                    "Most of the memory changed meanwhile: what is said of accuracy is of the rest only.".to_owned(),
                );
            }
        }
        for world in &self.worlds {
            if let Some(error) = &world.error {
                remarks.push(format!("{}: {error}", world.world.name()));
            }
        }
        remarks.extend(self.notes.iter().cloned());
        remarks
    }
}

/// Returns the median, and the least and most value where turns differ.
fn spread(world: &WorldReport, of: fn(&Turn) -> Option<f64>) -> Option<String> {
    let values: Vec<f64> = world.turns.iter().filter_map(of).collect();
    let median = world.median(of)?;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if format!("{least:.3}") == format!("{most:.3}") {
        return Some(format!("{median:.3}"));
    }
    Some(format!("{median:.3} [{least:.3}..{most:.3}]"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use isotherm_policy::scheme::Action;

    use super::super::{ComparedWorld, SchemeTurn, TruthBytes};
    use super::*;

    #[test]
    fn worlds_stand_side_by_side() {
        let turn = |recall: f64| Turn {
            snapshots: 10,
            regions: 42,
            cpu_share: 0.013,
            kdamond_cpu_share: None,
            truth: TruthBytes {
                accessed: 8 << 20,
                idle: 24 << 20,
                changed: 64 << 20,
                unknown: 0,
            },
            accessed_precision: Some(1.0),
            accessed_recall: Some(recall),
            idle_precision: None,
            idle_recall: None,
            unknown_share: Some(0.0),
            schemes: vec![SchemeTurn {
                action: Action::Pageout,
                bytes: 24 << 20,
                accessed_bytes: 0,
            }],
        };
        let world = |world, turns, error: Option<&str>| WorldReport {
            world,
            error: error.map(str::to_owned),
            turns,
        };
        let comparison = Comparison {
            processes: BTreeMap::new(),
            window_seconds: 20.0,
            idle_seconds: 5.0,
            worlds: vec![
                world(
                    ComparedWorld::Linux,
                    vec![turn(0.5), turn(1.0), turn(0.9)],
                    None,
                ),
                world(ComparedWorld::Kernel, Vec::new(), Some("there is none")),
            ],
            notes: vec!["a note".into()],
        };
        assert_eq!(
            comparison.text(),
            "\
world                                       linux  kernel
turns                                           3       0
snapshots a turn                               10       -
regions                                        42       -
CPU of watching                             1.3 %       -
  of it the kdamond's                           -       -
in use: precision                           1.000       -
in use: recall               0.900 [0.500..1.000]       -
idle for 5 s: precision                         -       -
idle for 5 s: recall                            -       -
nothing said of                             0.000       -
scheme 0, pageout: is about                24 MiB       -
  of that in use                              0 B       -
By exact scans before and after, in the first turn: 8 MiB in use, 24 MiB idle; left out as it changed 64 MiB, as it is not known 0 B.
Most of the memory changed meanwhile: what is said of accuracy is of the rest only.
kernel: there is none
a note
"
        );
    }
}
