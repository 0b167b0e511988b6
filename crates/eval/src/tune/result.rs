//! What a search found, for people and for programs.

use std::fmt::Write as _;

use isotherm_engine::Nanos;
use isotherm_engine::units::{format_bytes, format_share, format_time};
use isotherm_report::render::table::{Align, Table};
use serde::Serialize;

use super::live::Live;
use super::objective::{Objective, damoos_score};
use super::param::TraceTimes;
use super::plan::Plan;
use super::predict::{Estimate, Prediction};
use super::search::Search;
use super::space::{Point, Settings};
use super::{Completion, Parameter};

/// What a search found. Serialised, it is what `isotherm tune --json` prints.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tuned {
    /// `tune`.
    pub report: &'static str,
    /// The program's name.
    pub program: String,
    /// From the first scan of the trace to the last.
    pub trace_duration_ns: Nanos,
    /// Mean time between two scans.
    pub scan_interval_ns: Nanos,
    /// What was sought.
    pub objective: Objective,
    /// The same in words.
    pub sought: String,
    /// Whether the guard stood over the replays, as it does over `isotherm run`.
    pub is_guarded: bool,
    /// What was tuned, and over which values.
    pub parameters: Vec<Parameter>,
    /// How many points the space has.
    pub nr_points: usize,
    /// Number of points replayed in full.
    pub nr_tried: usize,
    /// Limit of that number.
    pub nr_most: usize,
    /// The search on a sample of the blocks that came first; `null` where there was none.
    pub coarse: Option<Coarse>,
    /// The search was broken off.
    pub was_stopped: bool,
    /// The program without schemes: watched, as under them.
    pub base: Prediction,
    /// The schemes as they were given; `null` where that is not in the space.
    pub given: Option<Trial>,
    /// What is recommended, and why.
    #[serde(flatten)]
    pub found: Found,
    /// The settings that no other beats in memory and time, from the least slowdown to the most.
    pub front: Vec<Trial>,
    /// Everything that was tried, in the order of the space.
    pub tried: Vec<Tried>,
    /// What live runs came to, by which all predictions above are corrected; `null` where there were none.
    pub live: Option<Live>,
}

/// A search on a sample of the blocks, whose best settings are then replayed in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Coarse {
    /// One block of this many was replayed.
    pub one_in: u32,
    /// Number of points replayed on the sample.
    pub nr_tried: usize,
}

/// What is recommended.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Found {
    /// The best setting within the limit; `null`: there is none.
    pub recommended: Option<Trial>,
    /// The best of those beyond it, where none is within.
    pub nearest: Option<Trial>,
    /// Why, in a sentence or two.
    pub why: String,
}

/// A setting that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Trial {
    /// What the knobs are set to.
    pub settings: Settings,
    /// What is foretold.
    pub prediction: Prediction,
    /// DAMOOS' score of that.
    pub damoos_score: f64,
    /// What a month of it costs, where there are prices.
    pub cost_per_month: Option<f64>,
}

/// A setting that was tried, in short.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tried {
    /// What the knobs are set to, as text.
    pub settings: String,
    /// Saved, a share of what is resident without schemes.
    pub saved_share: Estimate,
    /// How much longer the program takes, a share of that time.
    pub slowdown: Estimate,
}

/// What a search was about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The program's name.
    pub program: &'a str,
    /// Of its trace.
    pub times: TraceTimes,
    /// What was tuned.
    pub plan: &'a Plan,
    /// What was sought.
    pub objective: Objective,
    /// The program without schemes.
    pub base: &'a Prediction,
    /// The search on some of the blocks that was before.
    pub coarse: Option<Coarse>,
    /// What live runs came to. Where some were made, only what was run is recommended.
    pub live: Option<&'a Live>,
}

/// Rows of the front that are printed.
const ROWS: usize = 24;

impl Tuned {
    /// What `search` found.
    pub fn of(subject: &Subject<'_>, search: &Search, completion: Completion) -> Self {
        let trial = |point: &Point| {
            let prediction = search.observed()[point].clone();
            let cost_per_month = match subject.objective {
                Objective::Cost { prices, .. } => Some(prices.of(&prediction)),
                _ => None,
            };
            Trial {
                settings: search.space().settings(point),
                damoos_score: damoos_score(&prediction),
                cost_per_month,
                prediction,
            }
        };
        let front: Vec<Trial> = search.front().into_iter().map(trial).collect();
        let (within, beyond) = match subject.live {
            Some(live) => live.best(search),
            None => search.settled(),
        };
        let recommended = within.map(trial);
        let nearest = beyond.filter(|_| within.is_none()).map(trial);
        let given = search.space().point_of(subject.plan.contexts());
        let given = given.filter(|point| search.observed().contains_key(point));
        let tried = search.observed().iter().map(|(point, prediction)| Tried {
            settings: search.space().settings(point).to_string(),
            saved_share: prediction.saved_share,
            slowdown: prediction.slowdown,
        });
        Self {
            report: "tune",
            program: subject.program.to_owned(),
            trace_duration_ns: subject.times.duration,
            scan_interval_ns: subject.times.interval,
            objective: subject.objective,
            sought: subject.objective.words(),
            is_guarded: subject.plan.is_guarded(),
            parameters: search.space().parameters().to_vec(),
            nr_points: search.space().len(),
            nr_tried: search.observed().len(),
            nr_most: search.nr_most(),
            coarse: subject.coarse,
            was_stopped: completion == Completion::Stopped,
            base: subject.live.map_or_else(
                || subject.base.clone(),
                |live| Prediction {
                    resident_mean_bytes: live.base_resident_mean_bytes,
                    ..subject.base.clone()
                },
            ),
            given: given.as_ref().map(trial),
            found: Found {
                why: why(subject, recommended.as_ref(), nearest.as_ref(), &front),
                recommended,
                nearest,
            },
            tried: tried.collect(),
            live: subject.live.cloned(),
            front,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{}: {} of {}, {} resident on average without schemes; sought: {}",
            self.program,
            format_time(self.trace_duration_ns),
            if self.is_guarded {
                "replay, guarded"
            } else {
                "replay, without a guard"
            },
            format_bytes(self.base.resident_mean_bytes as u64),
            self.sought,
        );
        let _ = writeln!(text, "{}", self.effort());
        if let Some(live) = &self.live {
            text.push('\n');
            text += &live.text();
        }
        if !self.front.is_empty() {
            text.push('\n');
            text += &self.table().text();
            text += "STEADY: without the beginning, in which nothing could be idle for so long yet; ?: not known\n";
        }
        let _ = writeln!(text, "\n{}", self.found.why);
        if let Some(needed) = self.needed() {
            let _ = writeln!(
                text,
                "the record is too short to tell what that saves in the long run; record {} to answer this",
                format_time(needed)
            );
        }
        text
    }

    /// Number of settings and the way they were replayed, in words.
    pub(super) fn effort(&self) -> String {
        let tried = match (self.nr_points <= self.nr_most, self.coarse) {
            (_, Some(Coarse { one_in, nr_tried })) if self.nr_tried == 0 => {
                format!("{nr_tried} settings tried on one block in {one_in}, none in full")
            }
            (_, Some(Coarse { one_in, nr_tried })) => format!(
                "{nr_tried} settings tried on one block in {one_in}, the {} best of them in full",
                self.nr_tried
            ),
            (true, None) => format!("{} of {} settings tried", self.nr_tried, self.nr_most),
            (false, None) => format!(
                "{} of at most {} settings tried",
                self.nr_tried, self.nr_most
            ),
        };
        if self.was_stopped {
            tried + ", then stopped"
        } else {
            tried
        }
    }

    /// Record length that the recommended setting's steady state needs, if this record is too short.
    fn needed(&self) -> Option<Nanos> {
        let shown = self
            .found
            .recommended
            .as_ref()
            .or(self.found.nearest.as_ref());
        shown?.prediction.needed_ns
    }

    /// As a page, with the configuration that `plan` makes of each setting of the front.
    pub fn page(&self, plan: &Plan) -> String {
        super::page::page(self, plan)
    }

    /// The front, with what is recommended marked, and what was given.
    fn table(&self) -> Table {
        let right = |head| (head, Align::Right);
        let mut heads = vec![("", Align::Left)];
        heads.extend(self.parameters.iter().map(|p| right(p.knob.head())));
        heads.extend(HEADS.map(right));
        heads.extend(beside(&self.objective).map(|(head, _)| right(head)));
        let mut table = Table::new(&heads);
        let recommended = self.found.recommended.as_ref();
        let is_marked = |trial: &Trial| recommended == Some(trial);
        for trial in thinned(&self.front, ROWS, is_marked) {
            table.row(row(
                if is_marked(trial) { "*" } else { "" },
                trial,
                &self.objective,
            ));
        }
        if let Some(trial) = recommended.filter(|trial| !self.front.contains(trial)) {
            table.row(row("*", trial, &self.objective));
        }
        if let Some(given) = self
            .given
            .as_ref()
            .filter(|given| recommended != Some(given))
        {
            table.row(row("given", given, &self.objective));
        }
        table
    }
}

/// What a setting comes to, by its columns.
pub(super) const HEADS: [&str; 8] = [
    "SAVED", "OF IT", "BETWEEN", "STEADY", "SLOWER", "BETWEEN", "ACTING", "REFAULTS",
];

/// The same of one.
pub(super) fn fields(prediction: &Prediction) -> [String; 8] {
    [
        signed(prediction.saved_mean_bytes, |bytes| {
            format_bytes(bytes as u64)
        }),
        signed(prediction.saved_share.value, format_share),
        bounds(&prediction.saved_share),
        steady(prediction),
        percent(prediction.slowdown.value),
        bounds(&prediction.slowdown),
        format!("{:.2} s", prediction.acting_cpu_seconds.value),
        prediction.refaults.to_string(),
    ]
}

/// Saved share in steady state; `?` where it is not known.
fn steady(prediction: &Prediction) -> String {
    let share = prediction.steady_share;
    share.map_or_else(|| "?".to_owned(), |share| signed(share, format_share))
}

/// A column that only some objectives have: its head, and what stands in it.
type Beside = (&'static str, fn(&Trial) -> String);

fn beside(objective: &Objective) -> Option<Beside> {
    match objective {
        Objective::Cost { .. } => Some(("A MONTH", |trial| {
            let cost = trial.cost_per_month;
            cost.map_or_else(|| "?".to_owned(), |cost| format!("{cost:.2}"))
        })),
        Objective::Damoos => Some(("SCORE", |trial| format!("{:.2}", trial.damoos_score))),
        Objective::Huge { .. } => Some(("HUGE", |trial| {
            format_bytes(trial.prediction.huge_mean_bytes as u64)
        })),
        Objective::Memory { .. } | Objective::Slowdown { .. } => None,
    }
}

fn row(mark: &str, trial: &Trial, objective: &Objective) -> Vec<String> {
    let mut row = vec![mark.to_owned()];
    row.extend(trial.settings.iter().map(|setting| setting.text.clone()));
    row.extend(fields(&trial.prediction));
    row.extend(beside(objective).map(|(_, show)| show(trial)));
    row
}

/// Some of them, in order, the ends and the marked among them.
fn thinned<T>(all: &[T], most: usize, is_marked: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
    let last = all.len().saturating_sub(1);
    let is_step = move |at: usize| {
        all.len() <= most
            || at == last
            || at * (most - 1) / last != (at.max(1) - 1) * (most - 1) / last
    };
    let shown = all.iter().enumerate();
    shown.filter_map(move |(at, one)| (at == 0 || is_step(at) || is_marked(one)).then_some(one))
}

/// A loss, to the hundredth: limits are of one per cent and less.
pub(super) fn percent(share: f64) -> String {
    signed(share, |share| format!("{:.2} %", 100.0 * share))
}

/// A number that may be below zero.
pub(super) fn signed(value: f64, show: impl Fn(f64) -> String) -> String {
    let text = show(value.abs());
    let is_none = text.starts_with("0 ");
    if value < 0.0 && !is_none {
        format!("-{text}")
    } else {
        text
    }
}

/// Between which bounds; `?` where nobody knows.
pub(super) fn bounds(estimate: &Estimate) -> String {
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => format!(
            "{}..{}",
            signed(low, format_share),
            signed(high, format_share)
        ),
        _ => "?".to_owned(),
    }
}

fn why(
    subject: &Subject<'_>,
    recommended: Option<&Trial>,
    nearest: Option<&Trial>,
    front: &[Trial],
) -> String {
    let says = |trial: &Trial| {
        let p = &trial.prediction;
        let huge = match subject.objective {
            Objective::Huge { .. } => {
                format!("makes {} huge, ", format_bytes(p.huge_mean_bytes as u64))
            }
            _ => String::new(),
        };
        format!(
            "{} {huge}saves {} ({} of the memory{}) and makes the program {} slower",
            trial.settings,
            signed(p.saved_mean_bytes, |bytes| format_bytes(bytes as u64)),
            signed(p.saved_share.value, format_share),
            p.steady_share.map_or_else(String::new, |share| {
                format!("; {} in steady state", signed(share, format_share))
            }),
            percent(p.slowdown.value),
        )
    };
    let Some(best) = recommended else {
        return match nearest {
            None => "nothing was tried, so nothing can be recommended".to_owned(),
            Some(nearest) => format!(
                "no setting is within the limit ({}); the nearest: {}. Allow more, or widen what is tuned with --param",
                subject.objective.words(),
                says(nearest)
            ),
        };
    };
    let mut why = format!("recommended: {}: {}", says(best), subject.objective.words());
    let runs = subject.live.into_iter().flat_map(Live::settings);
    match runs.filter(|settings| **settings == best.settings).count() {
        0 => {}
        nr => {
            let _ = write!(
                why,
                " (run {nr} {} live)",
                if nr == 1 { "time" } else { "times" }
            );
        }
    }
    if subject.objective.max_slowdown().is_some() && !best.prediction.slowdown.has_bounds() {
        why += " (by the value alone: how far off it may be is not known)";
    }
    if best.prediction.saved_mean_bytes <= 0.0 && subject.objective.is_about_memory() {
        why += "; nothing that was tried saves anything";
    }
    let is_further =
        |trial: &&Trial| trial.prediction.resident_mean_bytes < best.prediction.resident_mean_bytes;
    if let Some(next) = front.iter().find(is_further) {
        let p = &next.prediction;
        let _ = write!(
            why,
            "; {} would save {} more and be {} slower",
            next.settings,
            format_bytes((best.prediction.resident_mean_bytes - p.resident_mean_bytes) as u64),
            percent(p.slowdown.value),
        );
    }
    why
}
