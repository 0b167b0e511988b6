//! Accesses of simulated processes: distributions over a mapping, and masim's configurations.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE};

use isotherm_sim::machine::{AreaSpec, Pattern, Rates, SimProcessSpec};
use isotherm_workload::Config;
use isotherm_workload::layout::temperature;
use serde::Deserialize;

use isotherm_engine::units::{parse_bytes, parse_share};

/// Distribution of accesses over a mapping, or over its hot part.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shape {
    #[default]
    Uniform,
    /// From start to end again and again; each page has the same rate.
    Sequential,
    /// YCSB's zipfian, scattered: a few pages have much higher rates than the others.
    Zipfian,
    /// YCSB's latest: the end has the highest rates.
    Latest,
}

/// Accesses to a mapping from a point of the work on.
pub(crate) struct Access {
    pub(crate) at: Nanos,
    pub(crate) shape: Shape,
    /// Hot part, as a share or a size from the start; `None` for all of it.
    pub(crate) hot: Option<String>,
    /// Rate of all accesses together, per second.
    pub(crate) rate: f64,
}

/// Limit of the pages with a rate of their own: 1 TiB of pages, 1 GiB of rates.
const PAGES_MAX: usize = 1 << 28;

/// Skew of YCSB's zipfian distribution.
const SKEW: f64 = 0.99;

/// Returns the sum of `accesses` to a mapping. Accesses that begin at the same time add up; later ones replace all
/// before.
pub(crate) fn pattern(accesses: &[Access], bytes: u64) -> anyhow::Result<Pattern> {
    let mut starts: Vec<Nanos> = accesses.iter().map(|access| access.at).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut phases = Vec::new();
    for start in starts {
        let now = accesses.iter().filter(|access| access.at == start);
        phases.push((start, together(&now.collect::<Vec<_>>(), bytes)?));
    }
    if phases.is_empty() {
        phases.push((Nanos(0), Rates::Never));
    }
    Ok(Pattern::Phases(phases))
}

fn together(accesses: &[&Access], bytes: u64) -> anyhow::Result<Rates> {
    let pages = (bytes / PAGE_SIZE) as usize;
    for access in accesses {
        ensure!(
            access.rate.is_finite() && access.rate >= 0.0,
            "rate: {} is no number of accesses per second",
            access.rate
        );
    }
    if let [access] = accesses
        && matches!(access.shape, Shape::Uniform | Shape::Sequential)
    {
        let hot = hot_pages(access, pages)?;
        let rate = (access.rate / hot as f64) as f32;
        return Ok(if hot == pages {
            Rates::Even(rate)
        } else {
            Rates::Steps(vec![(hot as u32, rate)])
        });
    }
    ensure!(
        pages <= PAGES_MAX,
        "pages of more than 1 TiB cannot have a rate each; make them several mappings"
    );
    let mut rates = vec![0.0_f32; pages];
    for access in accesses {
        let hot = hot_pages(access, pages)?;
        let weights: Vec<f64> = match access.shape {
            Shape::Uniform | Shape::Sequential => vec![1.0; hot],
            Shape::Zipfian | Shape::Latest => (0..hot)
                .map(|rank| libm::pow((rank + 1) as f64, -SKEW))
                .collect(),
        };
        let sum: f64 = weights.iter().sum();
        for (rank, weight) in weights.iter().enumerate() {
            let page = match access.shape {
                Shape::Uniform | Shape::Sequential => rank,
                Shape::Latest => hot - 1 - rank,
                Shape::Zipfian => {
                    (isotherm_sim::statistics::scramble(rank as u64) % hot as u64) as usize
                }
            };
            rates[page] += (access.rate * weight / sum) as f32;
        }
    }
    Ok(Rates::Each(Arc::new(rates)))
}

fn hot_pages(access: &Access, pages: usize) -> anyhow::Result<usize> {
    let Some(text) = &access.hot else {
        return Ok(pages);
    };
    let hot = if text.contains('%') {
        let share = parse_share(text).with_context(|| format!("hot: {text}"))?;
        (pages as f64 * share).round() as usize
    } else {
        let bytes = parse_bytes(text).with_context(|| format!("hot: {text}"))?;
        bytes.div_ceil(PAGE_SIZE) as usize
    };
    ensure!(
        (1..=pages).contains(&hot),
        "hot: {text} is not between one page and the whole mapping"
    );
    Ok(hot)
}

/// Default rate: `isotherm workload` reaches it on its developers' machines.
const ACCESSES_PER_S: f64 = 50e6;

/// Returns a masim configuration as a process: each phase's accesses as rates. All memory is resident from the start,
/// or with `is_sparse` once it is touched.
pub(crate) fn masim(
    path: &Path,
    accesses_per_s: Option<f64>,
    is_sparse: bool,
) -> anyhow::Result<SimProcessSpec> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let config = Config::parse(&text).with_context(|| format!("{name} is no workload"))?;
    let per_second = accesses_per_s.unwrap_or(ACCESSES_PER_S);
    let mut next = 0x7f00_0000_0000;
    let places = config.regions.iter().map(|region| {
        let range = AddressRange::new(next, next + region.size.next_multiple_of(PAGE_SIZE));
        next = (range.end + BLOCK_SIZE).next_multiple_of(BLOCK_SIZE);
        range
    });
    let places: Vec<AddressRange> = places.collect();
    let mut phases: Vec<Vec<(Nanos, Rates)>> = vec![Vec::new(); places.len()];
    let mut start = Nanos(0);
    for phase in &config.phases {
        let heat = temperature(&config, phase, &places);
        for (place, phases) in places.iter().zip(&mut phases) {
            let mut steps: Vec<(u32, f32)> = Vec::new();
            let mut heats: Vec<_> = heat.hot.iter().chain(&heat.warm).collect();
            heats.sort_by_key(|heat| heat.range.start);
            for heat in heats {
                let Some(part) = place.intersection(heat.range) else {
                    continue;
                };
                let page = |address: u64| ((address - place.start) / PAGE_SIZE) as u32;
                let (first, end) = (page(part.start), page(part.end));
                if steps.last().map_or(0, |(end, _)| *end) < first {
                    steps.push((first, 0.0));
                }
                let pages = (heat.range.len() / PAGE_SIZE).max(1) as f64;
                steps.push((end, (heat.probability * per_second / pages) as f32));
            }
            phases.push((start, Rates::Steps(steps)));
        }
        start = start + Nanos::from_millis(phase.duration_ms);
    }
    let areas = config.regions.iter().zip(places).zip(phases);
    let areas = areas.map(|((region, range), phases)| AreaSpec {
        fill: (!is_sparse).then_some((Nanos(0), Nanos(0))),
        ..AreaSpec::new(&region.name, range, Pattern::Phases(phases))
    });
    Ok(SimProcessSpec {
        name: path.file_stem().map_or_else(
            || "masim".to_owned(),
            |stem| stem.to_string_lossy().into_owned(),
        ),
        work: Some(start),
        accesses_per_s: Some(per_second),
        areas: areas.collect(),
        ..SimProcessSpec::default()
    })
}
