//! Objectives: the order of settings.
//!
//! A limit applies to the worse bound of a prediction, if it is known: the slowdown of a recommended setting stays
//! below the limit even if the prediction errs.

use std::cmp::Ordering;

use isotherm_engine::units::{format_bytes, format_share, parse_bytes, parse_share};
use serde::Serialize;

use super::predict::Prediction;

/// Aim of a search, with its limits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "seeks", rename_all = "snake_case")]
pub enum Objective {
    /// Least memory, if the program is slowed by this share at most.
    Memory {
        /// Maximum slowdown, 0 to 1.
        max_slowdown: f64,
    },
    /// Least slowdown, if no more memory is resident.
    Slowdown {
        /// Maximum resident memory on average.
        max_memory: MemoryLimit,
    },
    /// DAMOOS' score, as published: -0.5 x runtime % - 0.5 x RSS %, and -1000 if the runtime is more than 20 % longer.
    Damoos,
    /// Least cost in money, if the program is slowed by this share at most.
    Cost {
        /// Prices of memory and CPUs.
        prices: Prices,
        /// Maximum slowdown, 0 to 1.
        max_slowdown: f64,
    },
    /// Most memory in huge pages, if no more memory is resident. The gain of huge pages is not in a trace.
    Huge {
        /// Maximum resident memory on average.
        max_memory: MemoryLimit,
    },
}

/// Maximum resident memory on average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MemoryLimit {
    /// Limit in bytes.
    Bytes(u64),
    /// A share of the memory resident without schemes; it may be above 1.
    Share(f64),
}

impl MemoryLimit {
    /// Reads `600M`, or `60%` of the memory resident without schemes. Fails if the text is neither a size nor a share,
    /// or if the size is 0.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        if text.trim_end().ends_with('%') {
            return Ok(Self::Share(parse_share(text)?));
        }
        let bytes = parse_bytes(text)?;
        anyhow::ensure!(
            bytes > 0,
            "'{text}' is no memory at all; name a size, e.g. 600M, or a share, e.g. 60%"
        );
        Ok(Self::Bytes(bytes))
    }

    fn bytes(self, without_schemes: f64) -> f64 {
        match self {
            Self::Bytes(bytes) => bytes as f64,
            Self::Share(share) => share * without_schemes,
        }
    }
}

/// Prices of a month, in any one currency. A price that is not given is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Prices {
    /// Price of a GiB on the first node: resident memory there, and the pool of compressed swap.
    pub dram: f64,
    /// Price of a GiB on other nodes.
    pub cxl: f64,
    /// Price of a CPU: the time of acting and watching, and the additional running time of the program.
    pub cpu: f64,
}

impl Prices {
    /// Reads `dram=3.5,cxl=1.5,cpu=30`. Fails if a name or a price is wrong, with the known names.
    pub fn parse(text: &str) -> Result<Self, String> {
        const KNOWN: &str = "write what a month costs: dram= and cxl= by GiB, cpu= by CPU, e.g. dram=3.5,cxl=1.5,cpu=20";
        let mut prices = Self::default();
        let mut named: Vec<&str> = Vec::new();
        for part in text.split(',') {
            let (name, price) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' is no price; {KNOWN}"))?;
            let (name, text) = (name.trim(), price.trim());
            let slot = match name {
                "dram" => &mut prices.dram,
                "cxl" => &mut prices.cxl,
                "cpu" => &mut prices.cpu,
                other => return Err(format!("nothing is priced as '{other}'; {KNOWN}")),
            };
            if named.contains(&name) {
                return Err(format!("'{name}' is priced twice; {KNOWN}"));
            }
            let price: f64 = text.parse().unwrap_or(f64::NAN);
            // A higher price is a slip, and would overflow sums.
            if !(0.0..=1e12).contains(&price) {
                return Err(format!("'{text}' is no price; {KNOWN}"));
            }
            *slot = price;
            named.push(name);
        }
        Ok(prices)
    }

    /// Returns the cost of a program per month under a setting.
    pub fn of(&self, prediction: &Prediction) -> f64 {
        const GIB: f64 = (1_u64 << 30) as f64;
        let dram = (prediction.resident_mean_bytes + prediction.pool_mean_bytes) / GIB * self.dram;
        let cxl = prediction.far_mean_bytes / GIB * self.cxl;
        let beside = prediction.acting_cpu_seconds.value + prediction.monitor_cpu_seconds;
        let busy = beside / prediction.seconds.max(1e-9) + prediction.slowdown.value;
        dram + cxl + busy * self.cpu
    }
}

/// Rank of a setting. Less is better, and the earlier number decides first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    /// Excess over the limit; 0 within.
    pub violation: f64,
    /// Value that the objective minimises.
    pub(super) loss: f64,
    /// Tie breakers: slowdown, memory, CPU time of acting.
    rest: [f64; 3],
}

impl Rank {
    /// Orders two ranks, the better first.
    pub fn compare(&self, other: &Self) -> Ordering {
        let pairs = self.rest.iter().zip(&other.rest);
        pairs.fold(
            (self.violation.total_cmp(&other.violation)).then(self.loss.total_cmp(&other.loss)),
            |order, (mine, its)| order.then(mine.total_cmp(its)),
        )
    }
}

/// Violation of a killed program: beyond every limit.
const KILLED: f64 = 1e9;

impl Objective {
    /// Returns the rank of a setting with this prediction.
    pub fn rank(&self, prediction: &Prediction) -> Rank {
        let resident = prediction.resident_mean_bytes;
        let without = (resident + prediction.saved_mean_bytes).max(1.0);
        // Differences below a thousandth of the memory, or a ten-thousandth of the time, do not justify any other loss.
        let memory = step(resident / without, 1e-3);
        let slowdown = step(prediction.slowdown.value, 1e-4);
        let slower = |limit: &f64| above(prediction.slowdown.most(), *limit);
        // As a share of what is resident without schemes.
        let larger = |limit: &MemoryLimit| {
            let most = (1.0 - prediction.saved_share.least()) * without;
            above(most / without, limit.bytes(without) / without)
        };
        let (violation, loss) = match self {
            Self::Memory { max_slowdown } => (slower(max_slowdown), memory),
            Self::Slowdown { max_memory } => (larger(max_memory), slowdown),
            Self::Damoos => (0.0, -damoos_score(prediction)),
            Self::Cost {
                prices,
                max_slowdown,
            } => (slower(max_slowdown), prices.of(prediction)),
            Self::Huge { max_memory } => {
                let huge = step(prediction.huge_mean_bytes / without, 1e-3);
                (larger(max_memory), -huge)
            }
        };
        Rank {
            violation: if prediction.was_killed {
                KILLED
            } else {
                violation
            },
            loss,
            rest: [
                prediction.slowdown.value,
                resident,
                prediction.acting_cpu_seconds.value,
            ],
        }
    }

    /// Returns the maximum slowdown, if it is limited.
    pub fn max_slowdown(&self) -> Option<f64> {
        match self {
            Self::Memory { max_slowdown } | Self::Cost { max_slowdown, .. } => Some(*max_slowdown),
            _ => None,
        }
    }

    /// Whether the objective is less memory.
    pub fn is_about_memory(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::Cost { .. })
    }

    /// Returns the objective in words.
    pub fn words(&self) -> String {
        let memory = |limit: &MemoryLimit| match limit {
            MemoryLimit::Bytes(bytes) => format!("at most {} resident", format_bytes(*bytes)),
            MemoryLimit::Share(share) => {
                let percent = (share * 1000.0).round() / 10.0;
                format!("at most {percent} % of the memory without schemes resident")
            }
        };
        match self {
            Self::Memory { max_slowdown } => format!(
                "least memory, where the program is slowed by {} at most",
                format_share(*max_slowdown)
            ),
            Self::Slowdown { max_memory } => {
                format!("least slowdown, with {}", memory(max_memory))
            }
            Self::Damoos => {
                "the best DAMOOS score (-0.5 x runtime % - 0.5 x RSS %; -1000 above 20 %)"
                    .to_owned()
            }
            Self::Cost { max_slowdown, .. } => format!(
                "least cost, where the program is slowed by {} at most",
                format_share(*max_slowdown)
            ),
            Self::Huge { max_memory } => {
                format!("most memory in huge pages, with {}", memory(max_memory))
            }
        }
    }
}

/// Maximum slowdown that DAMOOS accepts, in percent.
pub const SLOWDOWN_MAX_PERCENT: f64 = 20.0;

const NO_GOOD: f64 = -1000.0;

/// Returns DAMOOS' score of a prediction; without schemes it is 0.
pub fn damoos_score(prediction: &Prediction) -> f64 {
    if prediction.was_killed {
        return NO_GOOD;
    }
    let runtime = 100.0 * prediction.slowdown.value;
    damoos_points(runtime, -100.0 * prediction.saved_share.value)
}

/// Returns DAMOOS' score: half of the savings in resident memory and half of the savings in runtime, both in percent of
/// the original run. More is better. The score is -1000 if the program is slowed by more than 20 % (DAMOOS,
/// <https://github.com/damonitor/damoos>, weights of a half each).
pub fn damoos_points(runtime_overhead_percent: f64, rss_overhead_percent: f64) -> f64 {
    if runtime_overhead_percent > SLOWDOWN_MAX_PERCENT {
        return NO_GOOD;
    }
    -0.5 * runtime_overhead_percent - 0.5 * rss_overhead_percent
}

fn step(value: f64, size: f64) -> f64 {
    (value / size).round() * size
}

/// Returns the excess of a value over a limit. The slack covers the rounding of binary fractions.
fn above(value: f64, limit: f64) -> f64 {
    let beyond = value - limit;
    if beyond <= 1e-12 { 0.0 } else { beyond }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;

    fn prediction(saved: f64, slowdown: f64) -> Prediction {
        let without = 1e9;
        Prediction {
            seconds: 100.0,
            resident_mean_bytes: (1.0 - saved) * without,
            saved_mean_bytes: saved * without,
            saved_share: Estimate::new(saved),
            slowdown: Estimate::new(slowdown),
            ..Prediction::default()
        }
    }

    #[test]
    fn the_score_weighs_time_and_memory_alike_until_it_is_too_slow() {
        let about = |runtime, rss, expected: f64| {
            assert!((damoos_points(runtime, rss) - expected).abs() < 1e-9);
        };
        about(0.0, 0.0, 0.0);
        about(2.0, -40.0, 19.0);
        about(20.0, -90.0, 35.0);
        about(20.1, -90.0, -1000.0);
    }

    /// Returns the best of these, by (saved, slowdown).
    fn best(objective: Objective, of: &[(f64, f64)]) -> (f64, f64) {
        let mut all: Vec<Prediction> = of.iter().map(|(s, l)| prediction(*s, *l)).collect();
        all.sort_by(|a, b| objective.rank(a).compare(&objective.rank(b)));
        (all[0].saved_share.value, all[0].slowdown.value)
    }

    const SOME: [(f64, f64); 4] = [(0.1, 0.001), (0.4, 0.01), (0.6, 0.05), (0.8, 0.3)];

    #[test]
    fn each_objective_has_its_own_best() {
        let memory = |max_slowdown| best(Objective::Memory { max_slowdown }, &SOME);
        assert_eq!(memory(0.01), (0.4, 0.01));
        assert_eq!(memory(0.5), (0.8, 0.3));
        // None is within the limit: the least excess is best.
        assert_eq!(memory(0.0001), (0.1, 0.001));
        let slowdown = |max_memory| best(Objective::Slowdown { max_memory }, &SOME);
        assert_eq!(slowdown(MemoryLimit::Share(0.5)), (0.6, 0.05));
        assert_eq!(slowdown(MemoryLimit::Bytes(950_000_000)), (0.1, 0.001));
        // 0.8 saves most, and its runtime is above 20 %.
        assert_eq!(best(Objective::Damoos, &SOME), (0.6, 0.05));
    }

    #[test]
    fn the_published_score_is_the_mean_of_both_overheads() {
        let score = |saved, slowdown| damoos_score(&prediction(saved, slowdown));
        assert!((score(0.2022, 0.0764) - (-0.5 * 7.64 + 0.5 * 20.22)).abs() < 1e-6);
        assert!((score(0.9, 0.2001) + 1000.0).abs() < 1e-9);
        assert!(score(0.0, 0.0).abs() < 1e-9);
    }

    #[test]
    fn money_decides_between_memory_and_processors() {
        let prices = Prices::parse("dram=3.5,cpu=20").expect("prices");
        let cost = |cpu| Objective::Cost {
            prices: Prices { cpu, ..prices },
            max_slowdown: 1.0,
        };
        assert_eq!(best(cost(0.0), &SOME), (0.8, 0.3));
        assert_eq!(best(cost(20.0), &SOME), (0.4, 0.01));
        let mut tiered = prediction(0.5, 0.0);
        tiered.far_mean_bytes = 0.5e9;
        let prices = Prices::parse("dram=4, cxl=1").expect("prices");
        let gib = (1_u64 << 30) as f64;
        assert!((prices.of(&tiered) - 2.5 * 1e9 / gib).abs() < 1e-9);
    }

    #[test]
    fn a_limit_counts_the_bound_that_is_worse() {
        let objective = Objective::Memory { max_slowdown: 0.02 };
        let mut sure = prediction(0.3, 0.01);
        sure.slowdown = sure.slowdown.within(0.005, 0.015);
        let mut unsure = prediction(0.5, 0.01);
        unsure.slowdown = unsure.slowdown.within(0.0, 0.05);
        assert!(objective.rank(&sure).violation <= 0.0);
        assert!(objective.rank(&unsure).violation > 0.0);
    }

    #[test]
    fn less_than_a_thousandth_is_no_reason_to_be_slower() {
        let objective = Objective::Memory { max_slowdown: 0.02 };
        let faster = (0.4, 0.001);
        assert_eq!(best(objective, &[(0.40004, 0.015), faster]), faster);
    }

    #[test]
    fn what_is_no_price_or_limit_is_said() {
        for (text, said) in [
            ("dram", "no price"),
            ("dram=x", "'x' is no price"),
            ("dram=-1", "no price"),
            ("dram=inf", "no price"),
            ("gold=1", "priced as 'gold'"),
            ("dram=1,dram=2", "twice"),
            ("", "no price"),
        ] {
            let error = Prices::parse(text).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
            assert!(error.contains("cxl="), "{text}: {error}");
        }
        let limit = |text| MemoryLimit::parse(text).ok();
        assert_eq!(limit("50%"), Some(MemoryLimit::Share(0.5)));
        assert_eq!(limit("1K"), Some(MemoryLimit::Bytes(1024)));
        assert!(MemoryLimit::parse("0").is_err() && MemoryLimit::parse("much").is_err());
    }
}
