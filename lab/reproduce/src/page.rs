//! Papers' runs as pages: their figures, and the numbers beside the published ones.

use crate::experiment::compaction::CompactionOutcome;
use crate::experiment::tiering::{self, KeyDistribution, Placement};
use crate::published::compaction::CompactionRun;
use crate::published::{PublishedComparison, Role, tiering as published_tiering};
use isotherm_render::csv_text;
use isotherm_render::figure::{Axis, Plot, PlotSeries};
use isotherm_render::page::{END, begin, escape, figure};

use super::Reproduction;
use super::text::{COMPARISON, SUMMARY, cell_tables, rows, table};

pub(super) fn compaction(
    runs: &[(CompactionRun, CompactionOutcome)],
    all: &Reproduction,
) -> String {
    let mut figures = String::new();
    for (run, outcome) in runs {
        figures += &match run {
            CompactionRun::Driver(_) => latencies(*run, outcome),
            CompactionRun::Java(0) => String::new(),
            CompactionRun::Java(_) | CompactionRun::Unmovable(_) => scores(*run, outcome),
        };
    }
    page(
        "Proactive compaction, simulated",
        "The experiments of Nitin Gupta's Proactive Compaction for the Linux kernel (2020), at their size: \
         1 TiB, 2 nodes. Calibrated: costs were chosen so that the number comes out. Input: it was put in. \
         Predicted: it follows.",
        &figures,
        all,
    )
}

fn page(title: &str, subtitle: &str, figures: &str, all: &Reproduction) -> String {
    let mut html = begin(title, subtitle);
    let notes = all.notes.iter();
    html.extend(notes.map(|note| format!("<p>{}</p>\n", escape(note))));
    html + figures + &numbers(all) + END
}

/// Returns the numbers below the figures: first the summaries.
fn numbers(all: &Reproduction) -> String {
    let mut html = String::new();
    if !all.summaries.is_empty() {
        html += &table(&SUMMARY, &all.summaries).html(
            "What the numbers come to",
            "Means over cells, and their mean absolute difference, beside what that would be if nothing were \
             said to change. Predicted: it follows. Arithmetic: it follows from inputs by adding sizes up. \
             Calibrated: numbers were chosen so that it comes out. Input: it was put in.",
        );
    }
    for (title, cells) in cell_tables(&all.comparisons) {
        html += &cells.html(&title, "");
    }
    let rows = rows(&all.comparisons);
    if !rows.is_empty() {
        html += &table(&COMPARISON, rows).html("Beside the published numbers", "");
    }
    html
}

pub(super) fn reclaim(all: &Reproduction) -> String {
    let figures = [
        ("DAMON v24", "RSS"),
        ("pprcl", "RSS"),
        ("pprcl", "memory used"),
        ("DAMON v24", "run time"),
    ];
    let figures = figures.map(|(of, metric)| beside(&all.comparisons, of, metric));
    page(
        "DAMON's schemes, simulated",
        "Synthetic programs with the sizes of the evaluation of DAMON v24 and of its physical memory patches \
         (2021), and of each what huge pages added and gained. They are no programs: how they access memory \
         is assumed, the same for all.",
        &figures.concat(),
        all,
    )
}

/// Draws predictions against published values: where both agree, a dot is on the diagonal.
fn beside(comparisons: &[PublishedComparison], experiment: &str, metric: &str) -> String {
    let mut series: Vec<PlotSeries> = Vec::new();
    let cells = comparisons.iter().filter(|cell| {
        (cell.experiment, cell.metric.as_str()) == (experiment, metric)
            && cell.role == Role::Predicted
    });
    for cell in cells {
        let Some(point) = cell.published.zip(cell.simulated) else {
            continue;
        };
        match series.iter_mut().find(|of| of.name == cell.configuration) {
            Some(of) => of.points.push(point),
            None => series.push(PlotSeries {
                name: cell.configuration.to_owned(),
                points: vec![point],
                is_line: false,
            }),
        }
    }
    let values = series.iter().flat_map(|of| &of.points);
    let published = values.map(|(published, _)| *published);
    let (least, most) = published.fold((0.0_f64, 0.0_f64), |(l, m), v| (l.min(v), m.max(v)));
    series.push(PlotSeries {
        name: "as published".to_owned(),
        points: vec![(least, least), (most, most)],
        is_line: true,
    });
    let plot = Plot {
        title: format!("{experiment}: {metric}"),
        note: "Change in percent: published across, simulated up; a dot for each program.".into(),
        x: Axis::linear("published"),
        y: Axis::linear("simulated"),
    };
    figure(&plot.title, "", &plot.draw(&series))
}

/// Draws figures 2 and 3: the latency of each huge page.
fn latencies(run: CompactionRun, outcome: &CompactionOutcome) -> String {
    let points = outcome.latencies.iter();
    let series = PlotSeries {
        name: "latency".into(),
        points: points.map(|(s, us)| (*s, us.max(1.0))).collect(),
        is_line: false,
    };
    let plot = Plot {
        title: run.title(),
        note: "Every dot is a huge page: when it was had, and how long that took.".into(),
        x: Axis::linear("s"),
        y: Axis::logarithmic("us"),
    };
    figure(&run.title(), "", &plot.draw(&[series]))
}

/// Draws figure 4: the change of the nodes' scores while a heap grows.
fn scores(run: CompactionRun, outcome: &CompactionOutcome) -> String {
    let of_node = |node: u32| {
        let samples = outcome.scores.iter().filter(|sample| sample.node == node);
        let points = samples.map(|sample| (sample.time.as_secs_f64(), sample.score));
        PlotSeries {
            name: format!("node {node}"),
            points: points.collect(),
            is_line: true,
        }
    };
    let plot = Plot {
        title: format!("{}: scores", run.title()),
        note: "Compaction begins above the high threshold and ends at the low one.".into(),
        x: Axis::linear("s"),
        y: Axis::linear("score"),
    };
    let nodes: Vec<PlotSeries> = outcome.threads.iter().map(|t| of_node(t.node)).collect();
    figure(&plot.title, "", &plot.draw(&nodes))
}

/// Returns the page of the tiering publications: the share of redis' accesses that is slow, by the size of the cold
/// block.
pub(super) fn tiering(
    runs: &[(published_tiering::TieringRun, tiering::TieringOutcome)],
    all: &Reproduction,
) -> String {
    let of = |(distribution, placement): (KeyDistribution, Placement)| PlotSeries {
        name: format!("{}, {}", distribution.name(), placement.name()),
        points: runs
            .iter()
            .filter(|(run, _)| run.distribution == distribution && run.placement == placement)
            .map(|(run, outcome)| (run.cold_gib as f64, 100.0 * outcome.slow_share))
            .collect(),
        is_line: true,
    };
    let plot = Plot {
        title: "Accesses to CXL memory".into(),
        note: "Percent of redis' accesses, by the size of the cold block.".into(),
        x: Axis::linear("GB cold"),
        y: Axis::linear("percent"),
    };
    let placements = [Placement::Default, Placement::Tiered];
    let cells = KeyDistribution::ALL
        .into_iter()
        .flat_map(|distribution| placements.map(|placement| (distribution, placement)));
    let series: Vec<PlotSeries> = cells.map(of).collect();
    let mut figures = figure(&plot.title, "", &plot.draw(&series));
    for published in published_tiering::figures(runs) {
        let plot = Plot {
            title: published.title,
            note: "By the size of the cold block; lines are simulated, dots are published.".into(),
            x: Axis::linear("GB cold"),
            y: Axis::linear(published.unit),
        };
        let series: Vec<PlotSeries> = published.lines.into_iter().map(line).collect();
        figures += &figure(&plot.title, "", &plot.draw(&series));
    }
    page(
        "Tiered memory, simulated",
        "redis with YCSB on 512 GB of DRAM and 96 GB of CXL memory (HMSDK v2.0 Performance Results; DAMON \
         based tiered memory management for CXL memory, RFC v4), at their size. Inputs: DRAM-only \
         and CXL-only; the system's own memory is calibrated on one cell's CXL use.",
        &figures,
        all,
    )
}

fn line((name, points): (&'static str, Vec<(f64, f64)>)) -> PlotSeries {
    PlotSeries {
        name: name.into(),
        points,
        is_line: !name.ends_with("published"),
    }
}

/// Returns the figures' data as CSV: the latency of each huge page (thinned).
pub(super) fn latency_csv(runs: &[(CompactionRun, CompactionOutcome)]) -> String {
    let mut rows = vec![["run", "seconds", "us"].map(String::from)];
    for (run, outcome) in runs
        .iter()
        .filter(|(run, _)| matches!(run, CompactionRun::Driver(_)))
    {
        let row = |(seconds, us): &(f64, f64)| [run.title(), seconds.to_string(), us.to_string()];
        rows.extend(outcome.latencies.iter().map(row));
    }
    csv_text(rows)
}

/// Returns the figures' data as CSV: the nodes' scores at each sample.
pub(super) fn score_csv(runs: &[(CompactionRun, CompactionOutcome)]) -> String {
    let mut rows = vec![["run", "node", "seconds", "score"].map(String::from)];
    for (run, outcome) in runs {
        rows.extend(outcome.scores.iter().map(|sample| {
            [
                run.title(),
                sample.node.to_string(),
                sample.time.as_secs_f64().to_string(),
                sample.score.to_string(),
            ]
        }));
    }
    csv_text(rows)
}
