//! Reads any user's tree into contexts. It sets nothing.
//!
//! Names that this crate does not know (a newer kernel's actions, metrics, filters) are reported, not guessed.

use isotherm_engine::damon::{AttributeProbe, KernelFilter, SampleControl};
use isotherm_engine::{AddressRange, Intervals, IntervalsGoal, KernelSettings, Nanos, TargetId};
use isotherm_policy::scheme::{
    AccessPattern, Action, Age, Bounds, Destination, FailCharge, Filter, FilterKind, Frequency,
    Goal, GoalMetric, OpsFilter, Quota, Scheme, Tuner, WatermarkMetric, Watermarks, Weights,
};

use crate::context::{DamonContext, DamonTarget, Operations};
use crate::error::{DamonError, Result};
use crate::tree::{Tree, TreePath};

/// State of any user's kdamond.
#[derive(Clone, Debug, PartialEq)]
pub struct KdamondState {
    /// Its process id, while it runs.
    pub pid: Option<i64>,
    /// Configured context; `None` if none is set up.
    pub context: Option<DamonContext>,
    /// Parts of the context with an unknown name, by file.
    pub unknown: Vec<String>,
}

/// Returns all kdamonds of a tree, in order.
pub fn read_kdamonds(tree: &impl Tree) -> Result<Vec<KdamondState>> {
    let mut reader = TreeReader {
        tree,
        unknown: Vec::new(),
    };
    let nr: usize = reader.number(&TreePath::kdamonds().join("nr_kdamonds"))?;
    (0..nr)
        .map(|at| {
            let kdamond = TreePath::kdamond(at);
            let pid: i64 = reader.number(&kdamond.join("pid"))?;
            let contexts = kdamond.join("contexts");
            let nr: usize = reader.number(&contexts.join("nr_contexts"))?;
            let context = (nr > 0).then(|| reader.context(&contexts.at(0)));
            Ok(KdamondState {
                pid: (pid > 0).then_some(pid),
                context: context.transpose()?.flatten(),
                unknown: std::mem::take(&mut reader.unknown),
            })
        })
        .collect()
}

struct TreeReader<'a, T> {
    tree: &'a T,
    unknown: Vec<String>,
}

impl<T: Tree> TreeReader<'_, T> {
    fn text(&self, path: &TreePath) -> Result<String> {
        self.tree.read(path).map_err(DamonError::read(path))
    }

    fn number<N: std::str::FromStr>(&self, path: &TreePath) -> Result<N> {
        DamonError::number(path, self.text(path)?)
    }

    /// Reads a number from a file that not every kernel has.
    fn number_or<N: std::str::FromStr>(&self, path: &TreePath, or: N) -> Result<N> {
        match self.tree.kind(path) {
            Some(_) => self.number(path),
            None => Ok(or),
        }
    }

    fn flag(&self, path: &TreePath) -> bool {
        self.tree
            .read(path)
            .is_ok_and(|text| matches!(text.as_str(), "Y" | "1"))
    }

    /// Returns the meaning of a file's word; notes the file if the word is unknown.
    fn word<W>(
        &mut self,
        path: &TreePath,
        known: impl FnOnce(&str) -> Option<W>,
    ) -> Result<Option<W>> {
        let text = self.text(path)?;
        let word = known(&text);
        if word.is_none() {
            self.unknown.push(format!("{path}: {text}"));
        }
        Ok(word)
    }

    fn microseconds(&self, path: &TreePath) -> Result<Nanos> {
        let us: u64 = self.number(path)?;
        Ok(Nanos(us.saturating_mul(1_000)))
    }

    fn context(&mut self, path: &TreePath) -> Result<Option<DamonContext>> {
        let operations = self.word(&path.join("operations"), |word| {
            let mut known = Operations::ALL.into_iter();
            known.find(|operations| operations.name() == word)
        })?;
        let Some(operations) = operations else {
            return Ok(None);
        };
        let attributes = path.join("monitoring_attrs");
        let intervals = attributes.join("intervals");
        let nr_regions = attributes.join("nr_regions");
        let schemes = path.join("schemes");
        let mut read = Vec::new();
        for at in 0..self.number(&schemes.join("nr_schemes"))? {
            read.extend(self.scheme(&schemes.at(at))?);
        }
        Ok(Some(DamonContext {
            operations,
            targets: self.targets(&path.join("targets"), operations)?,
            intervals: Intervals {
                sample: self.microseconds(&intervals.join("sample_us"))?,
                aggregation: self.microseconds(&intervals.join("aggr_us"))?,
                update: self.microseconds(&intervals.join("update_us"))?,
            },
            intervals_goal: self.intervals_goal(&intervals.join("intervals_goal"))?,
            nr_regions: Bounds {
                min: self.number(&nr_regions.join("min"))?,
                max: self.number(&nr_regions.join("max"))?,
            },
            settings: self.settings(&attributes)?,
            is_paused: self.flag(&path.join("pause")),
            schemes: read,
        }))
    }

    fn settings(&mut self, path: &TreePath) -> Result<KernelSettings> {
        let probes = path.join("probes");
        let nr: usize = self.number_or(&probes.join("nr_probes"), 0)?;
        let probes = (0..nr).map(|at| self.probe(&probes.at(at)));
        let primitives = path.join("sample/primitives");
        let samples = match self.tree.kind(&primitives) {
            None => SampleControl::default(),
            Some(_) => SampleControl {
                page_table: self.flag(&primitives.join("page_table")),
                page_fault: self.flag(&primitives.join("page_fault")),
                filters: self.kernel_filters(&path.join("sample/filters"))?,
            },
        };
        Ok(KernelSettings {
            probes: probes.collect::<Result<_>>()?,
            samples,
        })
    }

    fn probe(&self, path: &TreePath) -> Result<AttributeProbe> {
        let preps = path.join("preps");
        let nr: usize = self.number_or(&preps.join("nr_preps"), 0)?;
        let preps = (0..nr).map(|at| self.text(&preps.at(at).join("prep_action")));
        Ok(AttributeProbe {
            preps: preps.collect::<Result<_>>()?,
            filters: self.kernel_filters(&path.join("filters"))?,
            weight: self.number_or(&path.join("weight"), 0)?,
        })
    }

    /// Reads filters of probes or samples. Kinds that this crate does not know are kept by name, without details.
    fn kernel_filters(&self, path: &TreePath) -> Result<Vec<KernelFilter>> {
        let nr: usize = self.number(&path.join("nr_filters"))?;
        let filter = |at| {
            let path = path.at(at);
            let kind = self.text(&path.join("type"))?;
            let kinds = KernelFilter::OF_PROBES
                .iter()
                .chain(&KernelFilter::OF_SAMPLES);
            let files = { kinds }.find(|(name, _)| *name == kind);
            let details = files.iter().flat_map(|(_, files)| *files);
            let details =
                details.map(|file| Ok(((*file).to_owned(), self.text(&path.join(file))?)));
            Ok(KernelFilter {
                details: details.collect::<Result<_>>()?,
                matching: self.flag(&path.join("matching")),
                allow: self.flag(&path.join("allow")),
                kind,
            })
        };
        (0..nr).map(filter).collect()
    }

    fn intervals_goal(&self, path: &TreePath) -> Result<Option<IntervalsGoal>> {
        let aggregations = self.number_or(&path.join("aggrs"), 0)?;
        if aggregations == 0 {
            return Ok(None);
        }
        Ok(Some(IntervalsGoal {
            access_bp: self.number(&path.join("access_bp"))?,
            aggregations,
            min_sample_interval: self.microseconds(&path.join("min_sample_us"))?,
            max_sample_interval: self.microseconds(&path.join("max_sample_us"))?,
        }))
    }

    fn targets(&self, path: &TreePath, operations: Operations) -> Result<Vec<DamonTarget>> {
        let nr: usize = self.number(&path.join("nr_targets"))?;
        let target = |at| -> Result<DamonTarget> {
            let path = path.at(at);
            let pid: u32 = self.number(&path.join("pid_target"))?;
            let regions = path.join("regions");
            let nr: usize = self.number(&regions.join("nr_regions"))?;
            let region = |at: usize| -> Result<Option<AddressRange>> {
                let path = regions.at(at);
                let (start, end) = (
                    self.number(&path.join("start"))?,
                    self.number(&path.join("end"))?,
                );
                Ok(AddressRange::checked(start, end))
            };
            let regions: Result<Vec<Option<AddressRange>>> = (0..nr).map(region).collect();
            Ok(DamonTarget {
                pid: (operations != Operations::Paddr).then_some(pid),
                regions: regions?.into_iter().flatten().collect(),
                is_obsolete: self.flag(&path.join("obsolete_target")),
            })
        };
        (0..nr).map(target).collect()
    }

    /// Reads a scheme; `None` if its action is unknown.
    fn scheme(&mut self, path: &TreePath) -> Result<Option<Scheme>> {
        let action: Option<Action> = self.word(&path.join("action"), |word| word.parse().ok())?;
        let Some(action) = action else {
            return Ok(None);
        };
        let mut scheme = Scheme::new(self.pattern(&path.join("access_pattern"))?, action);
        scheme.destinations = self.destinations(path)?;
        let us: u64 = self.number_or(&path.join("apply_interval_us"), 0)?;
        scheme.apply_interval = Nanos(us.saturating_mul(1_000));
        scheme.max_nr_snapshots = self.number_or(&path.join("stats/max_nr_snapshots"), 0)?;
        scheme.quota = self.quota(&path.join("quotas"))?;
        scheme.watermarks = self.watermarks(&path.join("watermarks"))?;
        for filters in ["core_filters", "ops_filters", "filters"] {
            let filters = path.join(filters);
            for at in 0..self.number_or(&filters.join("nr_filters"), 0)? {
                scheme.filters.extend(self.filter(&filters.at(at))?);
            }
        }
        Ok(Some(scheme))
    }

    fn pattern(&self, path: &TreePath) -> Result<AccessPattern> {
        let bound = |below: &str| self.number(&path.join(below));
        // The kernel stores 32 bits, but its files accept 64.
        let small = |below: &str| -> Result<u32> {
            let number: u64 = self.number(&path.join(below))?;
            Ok(u32::try_from(number).unwrap_or(u32::MAX))
        };
        let samples = |below: &str| small(below).map(Frequency::Samples);
        let intervals = |below: &str| small(below).map(Age::Intervals);
        Ok(AccessPattern {
            size: Bounds::new(bound("sz/min")?, bound("sz/max")?),
            nr_accesses: Bounds::new(samples("nr_accesses/min")?, samples("nr_accesses/max")?),
            age: Bounds::new(intervals("age/min")?, intervals("age/max")?),
        })
    }

    fn destinations(&self, path: &TreePath) -> Result<Vec<Destination>> {
        let dests = path.join("dests");
        let nr: usize = self.number_or(&dests.join("nr_dests"), 0)?;
        if nr == 0 {
            let node: i64 = self.number_or(&path.join("target_nid"), -1)?;
            let node = u32::try_from(node).ok();
            return Ok(node
                .map(|node| Destination { node, weight: 1 })
                .into_iter()
                .collect());
        }
        let destination = |at| {
            Ok(Destination {
                node: self.number(&dests.at(at).join("id"))?,
                weight: self.number(&dests.at(at).join("weight"))?,
            })
        };
        (0..nr).map(destination).collect()
    }

    fn quota(&mut self, path: &TreePath) -> Result<Quota> {
        let goals = path.join("goals");
        let mut read = Vec::new();
        for at in 0..self.number_or(&goals.join("nr_goals"), 0)? {
            read.extend(self.goal(&goals.at(at))?);
        }
        let tuner = path.join("goal_tuner");
        let tuner = match self.tree.kind(&tuner) {
            None => None,
            Some(_) => self.word(&tuner, |word| {
                let mut known = [Tuner::Consist, Tuner::Temporal].into_iter();
                known.find(|tuner| tuner.name() == word)
            })?,
        };
        let denominator: u32 = self.number_or(&path.join("fail_charge_denom"), 0)?;
        let numerator: u32 = self.number_or(&path.join("fail_charge_num"), 0)?;
        let milliseconds = |name: &str| -> Result<Nanos> {
            let ms: u64 = self.number(&path.join(name))?;
            Ok(Nanos(ms.saturating_mul(1_000_000)))
        };
        let weights = path.join("weights");
        Ok(Quota {
            time: milliseconds("ms")?,
            bytes: self.number(&path.join("bytes"))?,
            reset_interval: milliseconds("reset_interval_ms")?,
            weights: Weights {
                size_permil: self.number(&weights.join("sz_permil"))?,
                nr_accesses_permil: self.number(&weights.join("nr_accesses_permil"))?,
                age_permil: self.number(&weights.join("age_permil"))?,
            },
            goals: read,
            tuner: tuner.unwrap_or_default(),
            fail_charge: (denominator > 0).then_some(FailCharge {
                numerator,
                denominator,
            }),
        })
    }

    fn goal(&mut self, path: &TreePath) -> Result<Option<Goal>> {
        let node: u32 = self.number_or(&path.join("nid"), 0)?;
        let memcg_path = self.tree.read(&path.join("path")).unwrap_or_default();
        let name = path.join("target_metric");
        let metric = match self.tree.kind(&name) {
            None => Some(GoalMetric::UserInput),
            Some(_) => self.word(&name, |word| metric(word, node, memcg_path))?,
        };
        let Some(metric) = metric else {
            return Ok(None);
        };
        Ok(Some(Goal {
            metric,
            target_value: self.number(&path.join("target_value"))?,
            current_value: self.number(&path.join("current_value"))?,
            complement: self.flag(&path.join("complement")),
        }))
    }

    fn watermarks(&mut self, path: &TreePath) -> Result<Option<Watermarks>> {
        let metric = self.word(&path.join("metric"), |word| match word {
            "none" => Some(None),
            "free_mem_rate" => Some(Some(WatermarkMetric::FreeMemRate)),
            _ => None,
        })?;
        let Some(Some(metric)) = metric else {
            return Ok(None);
        };
        Ok(Some(Watermarks {
            metric,
            interval: self.microseconds(&path.join("interval_us"))?,
            high_permil: self.number(&path.join("high"))?,
            mid_permil: self.number(&path.join("mid"))?,
            low_permil: self.number(&path.join("low"))?,
        }))
    }

    fn filter(&mut self, path: &TreePath) -> Result<Option<Filter>> {
        let number = |name: &str| self.number_or(&path.join(name), 0_u64);
        let range = AddressRange::checked(number("addr_start")?, number("addr_end")?);
        let target = TargetId(number("damon_target_idx")? as u32);
        let (min, max) = (number("min")?, number("max")?);
        let group = self.tree.read(&path.join("memcg_path")).unwrap_or_default();
        let kind = self.word(&path.join("type"), |word| {
            Some(match word {
                "anon" => FilterKind::Ops(OpsFilter::Anon),
                "active" => FilterKind::Ops(OpsFilter::Active),
                "memcg" => FilterKind::Ops(OpsFilter::Memcg { path: group }),
                "young" => FilterKind::Ops(OpsFilter::Young),
                "hugepage_size" => FilterKind::Ops(OpsFilter::HugepageSize { min, max }),
                "unmapped" => FilterKind::Ops(OpsFilter::Unmapped),
                "addr" => FilterKind::Addr(range?),
                "probe_hits_wsum" => FilterKind::ProbeHits { min, max },
                "target" => FilterKind::Target(target),
                _ => return None,
            })
        })?;
        Ok(kind.map(|kind| Filter {
            kind,
            matching: self.flag(&path.join("matching")),
            allow: self.flag(&path.join("allow")),
        }))
    }
}

fn metric(name: &str, node: u32, memcg_path: String) -> Option<GoalMetric> {
    Some(match name {
        "user_input" => GoalMetric::UserInput,
        "some_mem_psi_us" => GoalMetric::SomeMemPsiUs,
        "node_mem_used_bp" => GoalMetric::NodeMemUsedBp { node },
        "node_mem_free_bp" => GoalMetric::NodeMemFreeBp { node },
        "node_memcg_used_bp" => GoalMetric::NodeMemcgUsedBp { node, memcg_path },
        "node_memcg_free_bp" => GoalMetric::NodeMemcgFreeBp { node, memcg_path },
        "active_mem_bp" => GoalMetric::ActiveMemBp,
        "inactive_mem_bp" => GoalMetric::InactiveMemBp,
        "node_eligible_mem_bp" => GoalMetric::NodeEligibleMemBp { node },
        _ => return None,
    })
}
