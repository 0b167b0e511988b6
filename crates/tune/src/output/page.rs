//! Results of a search, as a page: the front, and for each of its points the scheme and the memory over time.
//!
//! The page has no script: a point of the picture is a link to its part of the page, and style shows the linked part.
//! It thus works without a network, under any content policy, with a keyboard, with the browser's way back, and as a
//! shared link.

use std::fmt::Write as _;

use isotherm_config::to_yaml;
use isotherm_engine::units::{format_bytes, format_share, format_time};
use isotherm_render::page::{END, begin, escape, figure};

use crate::format::{percent, signed};
use crate::plan::TuningPlan;
use crate::predict::Prediction;
use crate::result::{HEADS, Trial, Tuned, fields};
use isotherm_render::figure::{Axis, Plot, PlotPlaces, PlotSeries};

/// Shows the part that is linked to; before any link is followed, that of the recommended setting.
const STYLE: &str = "<style>.tune-part{display:none}.tune-part:target{display:block}\
    main:not(:has(.tune-part:target)) .tune-part.best{display:block}\
    section{overflow-x:auto}td{white-space:nowrap}pre{overflow-x:auto;font-size:13px}\
    a circle{cursor:pointer}a:focus circle,a:hover circle{stroke:var(--fg);stroke-width:3}\
    a{color:inherit}tr.best td{font-weight:600}</style>\n";

/// Maximum number of points: more cannot be distinguished.
const POINTS_MAX: usize = 100;

const MIB: f64 = (1 << 20) as f64;

/// Returns the result as a page, with the configuration that `plan` makes of each setting of the front.
pub fn page(tuned: &Tuned, plan: &TuningPlan) -> String {
    let title = format!("Tuning {}", isotherm_name(&tuned.program));
    let subtitle = format!(
        "{} of replay{}; {} resident on average without schemes. Sought: {}. {}.",
        format_time(tuned.trace_duration_ns),
        if tuned.is_guarded {
            ", guarded"
        } else {
            ", without a guard"
        },
        format_bytes(tuned.base.resident_mean_bytes as u64),
        tuned.sought,
        tuned.effort(),
    );
    let shown = shown(tuned);
    let mut html = begin(&title, &subtitle);
    html += STYLE;
    let note = "Each point is a setting; those that no other beats are links. Bars: between which bounds, where that is \
                known.";
    html += &figure("Memory saved and time lost", note, &picture(tuned, &shown));
    let why = escape(&tuned.found.why);
    let _ = writeln!(html, "<section><p>{why}</p></section>");
    if let Some(live) = &tuned.live {
        let text = escape(&live.text());
        let _ = writeln!(html, "<section><pre>{text}</pre></section>");
    }
    for (number, trial) in shown.iter().enumerate() {
        html += &part(number, trial, tuned, plan);
    }
    html + &table(tuned, &shown) + END
}

/// Returns the program's name, cut to 64 characters: a record may come from any source.
fn isotherm_name(name: &str) -> String {
    if name.is_empty() {
        "a program".to_owned()
    } else {
        name.chars().take(64).collect()
    }
}

/// Returns the points that are links: the front, the recommended setting and the given one.
fn shown(tuned: &Tuned) -> Vec<&Trial> {
    let every = tuned.front.len().div_ceil(POINTS_MAX).max(1);
    let mut shown: Vec<&Trial> = tuned.front.iter().step_by(every).collect();
    let beside = [&tuned.found.recommended, &tuned.found.nearest, &tuned.given];
    for trial in beside.into_iter().flatten() {
        if !shown.contains(&trial) {
            shown.push(trial);
        }
    }
    shown
}

fn is_best(tuned: &Tuned, trial: &Trial) -> bool {
    tuned.found.best() == Some(trial)
}

fn picture(tuned: &Tuned, shown: &[&Trial]) -> String {
    let plot = Plot {
        title: "Memory saved against time lost".to_owned(),
        note: "Up: less memory. Left: less time lost. Ringed: recommended.".to_owned(),
        x: Axis::linear("program slower, %"),
        y: Axis::linear("of the resident memory saved, %"),
    };
    let at = |slowdown: f64, saved: f64| (100.0 * slowdown, 100.0 * saved);
    let tried = tuned.tried.iter();
    let tried = tried.map(|one| at(one.slowdown.value, one.saved_share.value));
    let mut points: Vec<(f64, f64)> = tried.collect();
    let ends = shown.iter().map(|trial| &trial.prediction);
    let ends = ends.map(|p| at(p.slowdown.most(), p.saved_share.most()));
    let extent: Vec<(f64, f64)> = points.iter().copied().chain(ends).collect();
    let (mut svg, places) = plot.open(&extent);
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    points.dedup();
    for point in points {
        let (x, y) = places.of(point);
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" fill=\"var(--dim)\" opacity=\".5\"/>"
        );
    }
    if let Some(limit) = tuned.objective.max_slowdown() {
        let (x, top) = places.of((
            100.0 * limit,
            extent.iter().map(|p| p.1).fold(0.0, f64::max),
        ));
        let bottom = places.of((0.0, 0.0)).1;
        if extent.iter().any(|point| point.0 >= 100.0 * limit) {
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#d55e00\" stroke-dasharray=\"5 4\"><title>limit: {} \
                 slower</title></path>",
                format_share(limit)
            );
        }
    }
    draw_links(&mut svg, &places, tuned, shown);
    // A screen reader skips the contents of an image, and this one has links.
    svg.replacen("role=\"img\"", "role=\"group\"", 1) + "</svg>\n"
}

/// Draws the settings that are links, with their known bounds.
fn draw_links(svg: &mut String, places: &PlotPlaces, tuned: &Tuned, shown: &[&Trial]) {
    for (number, trial) in shown.iter().enumerate() {
        let p = &trial.prediction;
        let (across, up) = (
            |share: f64| places.of((100.0 * share, 0.0)).0,
            |share: f64| places.of((0.0, 100.0 * share)).1,
        );
        let (x, y) = (across(p.slowdown.value), up(p.saved_share.value));
        let slowdown = p.slowdown.low.zip(p.slowdown.high);
        let saved = p.saved_share.low.zip(p.saved_share.high);
        let bars = [
            slowdown.map(|(low, high)| format!("M{:.1} {y:.1}H{:.1}", across(low), across(high))),
            saved.map(|(low, high)| format!("M{x:.1} {:.1}V{:.1}", up(low), up(high))),
        ];
        for bar in bars.into_iter().flatten() {
            let _ = writeln!(svg, "<path d=\"{bar}\" stroke=\"#0b7fc4\" opacity=\".5\"/>");
        }
        let ring = if is_best(tuned, trial) {
            " stroke=\"#d55e00\" stroke-width=\"3\""
        } else {
            ""
        };
        let tip = escape(&summary(trial));
        let _ = writeln!(
            svg,
            "<a href=\"#setting-{number}\" aria-label=\"{tip}\"><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" fill=\"#0b7fc4\"{ring}>\
             <title>{tip}</title></circle></a>"
        );
    }
}

fn summary(trial: &Trial) -> String {
    let p = &trial.prediction;
    let settings = &trial.settings;
    let saved = signed(p.saved_mean_bytes, |bytes| format_bytes(bytes as u64));
    let share = signed(p.saved_share.value, format_share);
    let slower = percent(p.slowdown.value);
    format!("{settings}: {saved} saved ({share}), {slower} slower")
}

/// Returns the part of one setting: its memory over time, and its scheme.
fn part(number: usize, trial: &Trial, tuned: &Tuned, plan: &TuningPlan) -> String {
    let best = if is_best(tuned, trial) { " best" } else { "" };
    let series = |name: &str, of: &Prediction| {
        let parts = of.resident_bytes.len().max(1) as f64;
        let step = of.seconds / parts;
        let points = (0..).zip(&of.resident_bytes);
        PlotSeries {
            name: name.to_owned(),
            points: points
                .map(|(i, bytes)| ((f64::from(i) + 0.5) * step, *bytes as f64 / MIB))
                .collect(),
            is_line: true,
        }
    };
    let plot = Plot {
        title: trial.settings.to_string(),
        note: "Resident memory as predicted.".to_owned(),
        x: Axis::linear("seconds"),
        y: Axis::linear("MiB resident"),
    };
    let svg = plot.draw(&[
        series("with it", &trial.prediction),
        series("without schemes", &tuned.base),
    ]);
    let p = &trial.prediction;
    let (summary, acting) = (summary(trial), p.acting_cpu_seconds.value);
    let (watching, refaults, stops) = (p.monitor_cpu_seconds, p.refaults, p.guard_stops);
    let details = format!(
        "{summary}. Acting takes {acting:.2} s of CPU time, watching {watching:.2} s; {refaults} pages come back; the guard stops it {stops} time(s)."
    );
    format!(
        "<div class=\"tune-part{best}\" id=\"setting-{number}\">{}<section><h2>The configuration</h2><p>for isotherm run -c, \
         damo and HMSDK</p><pre>{}</pre></section></div>\n",
        figure("Memory over time", &details, &svg),
        escape(&to_yaml(&plan.configuration(&trial.settings)))
    )
}

fn table(tuned: &Tuned, shown: &[&Trial]) -> String {
    let mut html = "<section><h2>The front, as a table</h2><p>From the least slowdown to the most; BETWEEN: where it is \
                    taken to lie; STEADY: without the beginning, in which no memory could reach the minimum age; ?: not \
                    known</p><table><tr><th>setting</th>"
        .to_owned();
    for head in HEADS {
        let _ = write!(html, "<th>{head}</th>");
    }
    for (number, trial) in shown.iter().enumerate() {
        let class = if is_best(tuned, trial) {
            " class=\"best\""
        } else {
            ""
        };
        let name = escape(&trial.settings.to_string());
        let _ = write!(
            html,
            "</tr>\n<tr{class}><td><a href=\"#setting-{number}\">{name}</a></td>"
        );
        for field in fields(&trial.prediction) {
            let _ = write!(html, "<td>{}</td>", escape(&field));
        }
    }
    html + "</tr></table></section>\n"
}
