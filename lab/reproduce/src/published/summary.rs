//! Summaries of a table's cells: the mean beside the mean error, the worst cell, and how many cells say nothing.

use serde::Serialize;

use super::{PublishedComparison, Role};

/// All cells of one configuration and metric whose numbers have the same origin.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// The experiment.
    pub experiment: &'static str,
    /// Its configuration.
    pub configuration: &'static str,
    /// The measured quantity.
    pub metric: String,
    /// Unit of all numbers here.
    pub unit: &'static str,
    /// Origin of the simulated numbers.
    pub role: Role,
    /// Cells with a simulated and a published number.
    pub cells: usize,
    /// Mean of the published numbers of these cells.
    pub published_mean: f64,
    /// Mean of the simulated numbers of these cells.
    pub simulated_mean: f64,
    /// Mean of the absolute differences.
    pub mean_error: f64,
    /// Mean error of a prediction of no change; `None` where numbers are no changes.
    pub mean_error_of_no_change: Option<f64>,
    /// The case with the largest error.
    pub worst_case: String,
    /// Its error: simulated less published.
    pub worst_error: f64,
    /// Cells that come out as 0.00: a mechanism that did nothing.
    pub zeros: usize,
    /// Cells with a published number that is not modelled.
    pub not_modelled: usize,
}

/// Limit below which a number is shown as 0.00.
const SHOWN_AS_ZERO: f64 = 0.005;

/// Summarises all configurations and metrics with several cases, in their order. Cases that are not modelled are
/// counted with the others of their configuration and metric.
pub fn summaries(comparisons: &[PublishedComparison]) -> Vec<Summary> {
    let mut groups: Vec<(&PublishedComparison, Vec<&PublishedComparison>)> = Vec::new();
    let is_modelled = |row: &&PublishedComparison| row.role != Role::NotModelled;
    for row in comparisons.iter().filter(is_modelled) {
        let same = |(first, _): &&mut (&PublishedComparison, _)| {
            is_same(first, row) && first.role == row.role
        };
        match groups.iter_mut().find(same) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((row, vec![row])),
        }
    }
    let of = |(first, rows): (&PublishedComparison, Vec<&PublishedComparison>)| {
        let missing = comparisons
            .iter()
            .filter(|row| row.role == Role::NotModelled && is_same(first, row));
        summary(first, &rows, missing.count())
    };
    groups.into_iter().filter_map(of).collect()
}

fn is_same(a: &PublishedComparison, b: &PublishedComparison) -> bool {
    (a.experiment, a.configuration, &a.metric) == (b.experiment, b.configuration, &b.metric)
}

/// Summarises cells; `None` for fewer than two.
fn summary(
    first: &PublishedComparison,
    rows: &[&PublishedComparison],
    not_modelled: usize,
) -> Option<Summary> {
    let cells = rows
        .iter()
        .filter_map(|row| Some((row.case.as_str(), row.simulated?, row.published?)));
    let cells: Vec<(&str, f64, f64)> = cells.collect();
    if cells.len() < 2 {
        return None;
    }
    let mean =
        |of: fn(&(&str, f64, f64)) -> f64| cells.iter().map(of).sum::<f64>() / cells.len() as f64;
    let further = |a: &&(&str, f64, f64), b: &&(&str, f64, f64)| {
        (a.1 - a.2).abs().total_cmp(&(b.1 - b.2).abs())
    };
    let (worst_case, worst, published) = cells.iter().max_by(further).copied()?;
    let is_change = first.unit.starts_with('%');
    Some(Summary {
        experiment: first.experiment,
        configuration: first.configuration,
        metric: first.metric.clone(),
        unit: first.unit,
        role: first.role,
        cells: cells.len(),
        published_mean: mean(|cell| cell.2),
        simulated_mean: mean(|cell| cell.1),
        mean_error: mean(|cell| (cell.1 - cell.2).abs()),
        mean_error_of_no_change: is_change.then(|| mean(|cell| cell.2.abs())),
        worst_case: worst_case.to_owned(),
        worst_error: worst - published,
        zeros: cells
            .iter()
            .filter(|cell| cell.1.abs() < SHOWN_AS_ZERO)
            .count(),
        not_modelled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::tests::comparison;

    fn row(case: &str, simulated: Option<f64>, published: f64) -> PublishedComparison {
        PublishedComparison {
            unit: "% change",
            ..comparison(case, simulated, Some(published))
        }
    }

    #[test]
    fn what_a_mean_hides_is_said() {
        let rows = [
            row("a", Some(0.0), -20.0),
            row("b", Some(-30.0), -20.0),
            row("c", None, -50.0),
            row("d", Some(-20.0), -10.0),
        ];
        let all = summaries(&rows);
        assert_eq!(all.len(), 1);
        let of = &all[0];
        assert_eq!((of.cells, of.zeros, of.not_modelled), (3, 1, 1));
        assert!((of.simulated_mean - of.published_mean).abs() < 1e-9);
        assert!((of.mean_error - 40.0 / 3.0).abs() < 1e-9);
        assert!((of.mean_error_of_no_change.unwrap_or_default() - 50.0 / 3.0).abs() < 1e-9);
        assert_eq!(of.worst_case, "a");
        assert!((of.worst_error - 20.0).abs() < 1e-9);
    }

    #[test]
    fn cells_of_different_origin_are_apart() {
        let mut rows = vec![row("a", Some(1.0), 2.0), row("b", Some(1.0), 2.0)];
        let other = |case| PublishedComparison {
            role: Role::Input,
            ..row(case, Some(2.0), 2.0)
        };
        rows.extend([other("c"), other("d")]);
        let roles: Vec<Role> = summaries(&rows).iter().map(|s| s.role).collect();
        assert_eq!(roles, [Role::Predicted, Role::Input]);
        assert!(summaries(&rows[..1]).is_empty(), "one cell is no table");
    }
}
