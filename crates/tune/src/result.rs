//! Results of a search, for people and for programs.

use std::fmt::Write as _;

use isotherm_engine::Nanos;
use isotherm_engine::units::{format_bytes, format_share, format_time};
use isotherm_render::table::{Align, Table};
use serde::Serialize;

use super::bounds::narrowest;
use super::format::{percent, signed};
use super::live::Live;
use super::objective::{Objective, damoos_score};
use super::param::TraceTimes;
use super::plan::TuningPlan;
use super::predict::{Estimate, Prediction};
use super::search::Search;
use super::space::{SearchPoint, Settings};
use super::{Parameter, SearchCompletion};

/// Result of a search. Serialised, it is what `isotherm tune --json` prints.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tuned {
    /// Kind of this report: `tune`.
    pub report: &'static str,
    /// Name of the program.
    pub program: String,
    /// Time from the first scan of the trace to the last.
    pub trace_duration_ns: Nanos,
    /// Mean time between two scans.
    pub scan_interval_ns: Nanos,
    /// Objective of the search.
    pub objective: Objective,
    /// The objective in words.
    pub sought: String,
    /// Whether the replays ran under the guard, as `isotherm run` does.
    pub is_guarded: bool,
    /// Knobs that were tuned, and the values of each.
    pub parameters: Vec<Parameter>,
    /// Number of points in the space.
    pub nr_points: usize,
    /// Number of points replayed in full.
    pub nr_tried: usize,
    /// Maximum number of points replayed in full.
    pub nr_most: usize,
    /// The search on a sample of the blocks that came first; `null` if there was none.
    pub coarse: Option<Coarse>,
    /// `true` if the search was stopped before its end.
    pub was_stopped: bool,
    /// Prediction without schemes, watched as under them.
    pub base: Prediction,
    /// The schemes as they were given; `null` if they are not in the space.
    pub given: Option<Trial>,
    /// Recommended setting, and the reason.
    #[serde(flatten)]
    pub found: Found,
    /// The settings that no other beats in memory and time, from the least slowdown to the most.
    pub front: Vec<Trial>,
    /// All settings that were tried, in the order of the space.
    pub tried: Vec<Tried>,
    /// Results of live runs, by which all predictions above are corrected; `null` if there were none.
    pub live: Option<Live>,
}

/// A search on a sample of the blocks, whose best settings are then replayed in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Coarse {
    /// One block in this many was replayed.
    pub one_in: u32,
    /// Number of points replayed on the sample.
    pub nr_tried: usize,
}

/// The recommendation of a search.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Found {
    /// The best setting within the limit; `null`: there is none.
    pub recommended: Option<Trial>,
    /// The best setting beyond the limit, if none is within.
    pub nearest: Option<Trial>,
    /// Reason for the recommendation, in a sentence or two.
    pub why: String,
}

impl Found {
    /// Returns the recommended setting, or the nearest if there is none.
    pub(crate) fn best(&self) -> Option<&Trial> {
        self.recommended.as_ref().or(self.nearest.as_ref())
    }
}

/// A setting that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Trial {
    /// Values of the knobs.
    pub settings: Settings,
    /// Predicted results.
    pub prediction: Prediction,
    /// DAMOOS' score of the prediction.
    pub damoos_score: f64,
    /// Cost per month, if prices were given.
    pub cost_per_month: Option<f64>,
}

/// A setting that was tried, in short.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tried {
    /// Values of the knobs, as text.
    pub settings: String,
    /// Memory saved, a share of what is resident without schemes.
    pub saved_share: Estimate,
    /// Additional running time against the program without Isotherm, as a share of that time.
    pub slowdown: Estimate,
}

/// Input of a search.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Name of the program.
    pub program: &'a str,
    /// Times of the trace.
    pub times: TraceTimes,
    /// Schemes that were tuned.
    pub plan: &'a TuningPlan,
    /// Objective of the search.
    pub objective: Objective,
    /// Prediction without schemes.
    pub base: &'a Prediction,
    /// The search on some of the blocks that came first.
    pub coarse: Option<Coarse>,
    /// Results of live runs. If there are any, only settings that were run are recommended.
    pub live: Option<&'a Live>,
}

/// Maximum number of printed rows of the front, without the marked one.
const ROWS: usize = 24;

impl Tuned {
    /// Creates the result of `search`.
    pub fn of(subject: &Subject<'_>, search: &Search, completion: SearchCompletion) -> Self {
        let trial = |point: &SearchPoint| {
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
            was_stopped: completion == SearchCompletion::Stopped,
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

    /// Returns the result as text.
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
        let best = self.found.best();
        if let Some(needed) = best.and_then(|best| best.prediction.needed_ns) {
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

    fn table(&self) -> Table {
        let right = |head| (head, Align::Right);
        let knobs: Vec<String> = self.parameters.iter().map(|p| p.knob.head()).collect();
        let mut heads = vec![("", Align::Left)];
        heads.extend(knobs.iter().map(|head| (head.as_str(), Align::Right)));
        heads.extend(HEADS.map(right));
        heads.extend(beside(&self.objective).map(|(head, _)| right(head)));
        let mut table = Table::new(&heads);
        let recommended = self.found.recommended.as_ref();
        let is_marked = |trial: &Trial| recommended == Some(trial);
        for trial in thinned(&self.front, ROWS, is_marked) {
            let mark = if is_marked(trial) { "*" } else { "" };
            table.row(row(mark, trial, &self.objective));
        }
        if let Some(trial) = recommended.filter(|trial| !self.front.contains(trial)) {
            table.row(row("*", trial, &self.objective));
        }
        let given = self.given.as_ref();
        if let Some(given) = given.filter(|given| recommended != Some(given)) {
            table.row(row("given", given, &self.objective));
        }
        table
    }
}

pub(super) const HEADS: [&str; 8] = [
    "SAVED", "OF IT", "BETWEEN", "STEADY", "SLOWER", "BETWEEN", "ACTING", "REFAULTS",
];

/// Returns the fields of a prediction, one for each of [`HEADS`].
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

/// Returns the saved share in steady state, as text; `?` if it is not known.
fn steady(prediction: &Prediction) -> String {
    let share = prediction.steady_share;
    share.map_or_else(|| "?".to_owned(), |share| signed(share, format_share))
}

/// A column that only some objectives have: its head, and the text of a cell.
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

/// Returns about `most` elements at equal steps, in order, always with both ends and the marked one.
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

/// Formats the bounds of an estimate; `?` if they are not known.
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
            let times = if nr == 1 { "time" } else { "times" };
            let _ = write!(why, " (run {nr} {times} live)");
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
        let limit = subject.objective.max_slowdown();
        let is_beyond = |p: &Prediction| subject.objective.rank(p).violation > 0.0;
        if limit.is_some_and(|limit| p.slowdown.value <= limit)
            && (is_beyond(p) || is_beyond(&narrowest(p)))
        {
            why += ", but its upper bound is beyond the limit";
        }
    }
    why
}
