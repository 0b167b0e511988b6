//! damo's parameters of DAMON, as a file of kdamonds.
//!
//! The n-th option of a kind is of the n-th context, target or scheme. Goals, filters and probes' parts belong to what a
//! marker (`--damos_scheme`, `--probe`) or a list of numbers (`--damos_nr_filters`) says, or to the only one there is.
//!
//! Source: `_damon_args.py` of damo 3.4.3.

use serde_json::{Map, Value, json};

use super::values::{filter, probe_filter, quota_goal, regions};
use super::{DamoError, Values};

/// Parameters in order.
#[derive(Default)]
pub(super) struct Parameters {
    all: Vec<(String, Values)>,
    /// Words of a command that damo starts and watches.
    started: Values,
}

impl Parameters {
    pub(super) fn add(&mut self, name: &str, values: Values) -> Result<(), DamoError> {
        let value = values.first().cloned().unwrap_or_default();
        match name {
            "--damon_addr_unit" if value.parse() != Ok(1) => Err(DamoError::Refused {
                what: format!("--damon_addr_unit {value}"),
                instead: "addresses here have 64 bits, so they need no unit".to_owned(),
            }),
            "--damon_addr_unit" => Ok(()),
            "TARGET" if ["vaddr", "fvaddr", "paddr"].contains(&value.as_str()) => {
                self.all.push(("--ops".to_owned(), values));
                Ok(())
            }
            "TARGET" if value.parse::<u32>().is_ok() => {
                self.all.push(("--target_pid".to_owned(), values));
                Ok(())
            }
            "TARGET" if is_json(&value) || is_named_as_file(&value) => {
                self.all.push(("--kdamonds".to_owned(), values));
                Ok(())
            }
            "TARGET" => {
                self.started = value.split_whitespace().map(str::to_owned).collect();
                Ok(())
            }
            _ => {
                self.all.push((name.to_owned(), values));
                Ok(())
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.started.is_empty()
    }

    /// Whether there are schemes, or more than one context.
    pub(super) fn acts(&self) -> bool {
        let names = [
            "--damos_action",
            "--schemes",
            "--kdamonds",
            "--probe_filter",
        ];
        self.all
            .iter()
            .any(|(name, _)| names.contains(&name.as_str()))
            || self.nr_contexts() > 1
    }

    /// Returns the words of the command that is started, after `--`.
    pub(super) fn command(&self) -> Values {
        let dashes = (!self.started.is_empty()).then(|| "--".to_owned());
        dashes
            .into_iter()
            .chain(self.started.iter().cloned())
            .collect()
    }

    /// Returns the file that holds the configuration, if one is named instead of its text.
    pub(super) fn file(&self) -> Option<String> {
        let names = ["--kdamonds", "--schemes"].into_iter();
        let mut words = names.filter_map(|name| self.first_of_nth(name, 0));
        words.find(|word| !is_json(word)).map(str::to_owned)
    }

    fn list(&self, name: &str) -> Vec<&Values> {
        let of_it = self.all.iter().filter(|(of, _)| of == name);
        of_it.map(|(_, values)| values).collect()
    }

    fn nth(&self, name: &str, at: usize) -> Option<&Values> {
        self.list(name).get(at).copied()
    }

    fn first_of_nth(&self, name: &str, at: usize) -> Option<&str> {
        Some(self.nth(name, at)?.first()?.as_str())
    }

    fn has(&self, name: &str) -> bool {
        !self.list(name).is_empty()
    }

    fn nr_contexts(&self) -> usize {
        let of_contexts = [
            "--ops",
            "--sample",
            "--aggr",
            "--updr",
            "--minr",
            "--maxr",
            "--monitoring_intervals",
            "--monitoring_intervals_goal",
            "--monitoring_nr_regions_range",
            "--damon_ctx",
        ];
        let lists = of_contexts.iter().map(|name| self.list(name).len());
        lists.max().unwrap_or(0).max(1)
    }

    /// Divides the options `name` among `nr` owners, by the numbers of `--nr_...`, or by `marker`.
    fn divided(
        &self,
        name: &str,
        numbers: &str,
        marker: &str,
        nr: usize,
    ) -> Result<Vec<Vec<&Values>>, DamoError> {
        let mut of_each = vec![Vec::new(); nr];
        let wrong = |wanted: String| DamoError::Values {
            option: name.to_owned(),
            wanted,
        };
        let mut places = Vec::new();
        if let Some(numbers) = self.nth(numbers, 0) {
            for (at, number) in numbers.iter().enumerate() {
                let number: usize = number
                    .parse()
                    .map_err(|_| wrong("whole numbers".to_owned()))?;
                places.extend(std::iter::repeat_n(at, number.min(self.all.len())));
            }
        } else if self.has(marker) {
            let mut at = 0;
            for (of, _) in &self.all {
                at += usize::from(of == marker);
                places.extend((of == name).then(|| at.saturating_sub(1)));
            }
        } else {
            places = vec![0; self.list(name).len()];
            if nr > 1 && !places.is_empty() {
                return Err(wrong(format!("{marker} before each owner, or {numbers}")));
            }
        }
        let options = self.list(name);
        if options.len() != places.len() {
            return Err(wrong(format!("as many as {numbers} says")));
        }
        for (at, option) in places.into_iter().zip(options) {
            let owner: Option<&mut Vec<&Values>> = of_each.get_mut(at);
            owner
                .ok_or_else(|| wrong("an owner".to_owned()))?
                .push(option);
        }
        Ok(of_each)
    }

    /// Returns the options of `isotherm record` for a single context that only watches.
    pub(super) fn flags(&self) -> Values {
        let mut flags = Vec::new();
        let mut flag = |name: &str, value: String| flags.extend([name.to_owned(), value]);
        for pid in self.list("--target_pid") {
            flag("--pid", pid.concat());
        }
        for ranges in self.list("--regions") {
            let ranges = ranges.iter().flat_map(|text| text.split_whitespace());
            ranges.for_each(|range| flag("--range", range.to_owned()));
        }
        if let Some([sample, aggregation, update]) = self.intervals(0) {
            flag("--sample-interval", with_unit(sample, "us"));
            flag("--aggregation-interval", with_unit(aggregation, "us"));
            flag("--update-interval", with_unit(update, "us"));
        }
        if let Some([min, max]) = self.nr_regions(0) {
            flag("--regions", format!("{min}-{max}"));
        }
        if let Some([share, ..]) = self.goal(0) {
            flag("--access-goal", share);
        }
        let is_physical = match self.first_of_nth("--ops", 0) {
            Some(name) => name == "paddr",
            None => !self.has("--target_pid") && self.started.is_empty(),
        };
        if is_physical {
            flags.push("--physical".to_owned());
        }
        flags
    }

    /// Returns the kdamonds, as damo's JSON has them.
    pub(super) fn kdamonds(&self) -> Result<Value, DamoError> {
        if self.file().is_some() {
            return Ok(Value::Null);
        }
        if let Some(text) = self.first_of_nth("--kdamonds", 0) {
            return json_of("--kdamonds", text);
        }
        let nr = self.nr_contexts();
        let marker = "--damon_ctx";
        let of_contexts = |name: &str, numbers: &str| {
            if nr > 1 && !self.has(numbers) && !self.has(marker) {
                return Err(DamoError::Values {
                    option: name.to_owned(),
                    wanted: format!("{numbers} or {marker}, as there are {nr} contexts"),
                });
            }
            self.divided(name, numbers, marker, nr)
        };
        let targets = of_contexts("--target_pid", "--nr_targets")?;
        let nr_schemes = self.list("--damos_action").len();
        let owners = of_contexts("--damos_action", "--nr_schemes")?;
        let goals = ("--damos_quota_goal", "--damos_nr_quota_goals");
        let goals = self.divided(goals.0, goals.1, "--damos_scheme", nr_schemes.max(1))?;
        let filters = ("--damos_filter", "--damos_nr_filters");
        let filters = self.divided(filters.0, filters.1, "--damos_scheme", nr_schemes.max(1))?;
        let mut contexts = Vec::new();
        let (mut before, mut scheme) = ([0; 2], 0);
        for at in 0..nr {
            let mut schemes = Vec::new();
            for _ in 0..owners[at].len() {
                schemes.push(self.scheme(scheme, &goals[scheme], &filters[scheme])?);
                scheme += 1;
            }
            let mut context = self.context(at, targets[at].len(), &mut before)?;
            context.insert("schemes".to_owned(), Value::Array(schemes));
            contexts.push(Value::Object(context));
        }
        if let Some(text) = self.first_of_nth("--schemes", 0) {
            contexts[0]["schemes"] = json_of("--schemes", text)?;
        }
        let of_kdamonds = self.divided_contexts(contexts)?;
        let kdamonds = of_kdamonds
            .into_iter()
            .map(|contexts| json!({ "contexts": contexts }));
        Ok(json!({ "kdamonds": kdamonds.collect::<Vec<_>>() }))
    }

    /// Divides contexts among kdamonds; without markers and numbers, all are of the first.
    fn divided_contexts(&self, contexts: Vec<Value>) -> Result<Vec<Vec<Value>>, DamoError> {
        let mut sizes: Vec<usize> = Vec::new();
        if let Some(numbers) = self.nth("--nr_ctxs", 0) {
            sizes = numbers
                .iter()
                .filter_map(|number| number.parse().ok())
                .collect();
        } else {
            for (name, _) in &self.all {
                match name.as_str() {
                    "--kdamond" => sizes.push(0),
                    "--damon_ctx" if !sizes.is_empty() => *sizes.last_mut().expect("one") += 1,
                    _ => {}
                }
            }
        }
        if sizes
            .iter()
            .fold(0, |sum: usize, size| sum.saturating_add(*size))
            != contexts.len()
        {
            if !sizes.iter().all(|size| *size == 0) {
                return Err(DamoError::Values {
                    option: "--nr_ctxs".to_owned(),
                    wanted: format!("numbers that add up to {}", contexts.len()),
                });
            }
            return Ok(vec![contexts]);
        }
        let mut rest = contexts.into_iter();
        let divided = sizes
            .into_iter()
            .map(|size| rest.by_ref().take(size).collect());
        Ok(divided.collect())
    }

    /// Returns a context without its schemes, with the next `nr_targets` targets; `before` counts targets and processes
    /// of the contexts before.
    fn context(
        &self,
        at: usize,
        nr_targets: usize,
        before: &mut [usize; 2],
    ) -> Result<Map<String, Value>, DamoError> {
        let is_physical = match self.first_of_nth("--ops", at) {
            Some(name) => name == "paddr",
            None => nr_targets == 0 && self.started.is_empty(),
        };
        let name =
            self.first_of_nth("--ops", at)
                .unwrap_or(if is_physical { "paddr" } else { "vaddr" });
        let nr = nr_targets.max(usize::from(is_physical || self.has("--regions")));
        let mut targets = Vec::new();
        for _ in 0..nr {
            let [target, process] = *before;
            let index = target.to_string();
            let obsolete = self
                .list("--obsolete_targets")
                .iter()
                .any(|all| all.contains(&index));
            targets.push(json!({
                "pid": self.first_of_nth("--target_pid", process).filter(|_| !is_physical),
                "obsolete": obsolete,
                "regions": regions(self.nth("--regions", target))?,
            }));
            *before = [target + 1, process + usize::from(!is_physical)];
        }
        let mut context = Map::new();
        let mut set = |key: &str, value: Value| drop(context.insert(key.to_owned(), value));
        set("ops", name.into());
        set("targets", targets.into());
        if let Some([sample, aggregation, update]) = self.intervals(at) {
            let mut intervals =
                json!({ "sample_us": sample, "aggr_us": aggregation, "ops_update_us": update });
            if let Some([share, nr, min, max]) = self.goal(at) {
                intervals["intervals_goal"] = json!({ "access_bp": share, "aggrs": nr, "min_sample_us": min, "max_sample_us": max });
            }
            set("intervals", intervals);
        }
        if let Some([min, max]) = self.nr_regions(at) {
            set("nr_regions", json!({ "min": min, "max": max }));
        }
        let number = at.to_string();
        set(
            "pause",
            self.list("--pause_ctx")
                .iter()
                .any(|all| all.contains(&number))
                .into(),
        );
        if at == 0 {
            set("probes", self.probes()?);
        }
        set("sample_control", self.sample_control(at));
        Ok(context)
    }

    /// Returns DAMON's intervals if any of them, or a goal, is given.
    fn intervals(&self, at: usize) -> Option<[String; 3]> {
        let all = self.nth("--monitoring_intervals", at);
        let names = ["--sample", "--aggr", "--updr"];
        let is_any = names.iter().any(|name| self.nth(name, at).is_some());
        (all.is_some() || is_any || self.goal(at).is_some()).then(|| {
            let default = ["5ms", "100ms", "1s"];
            std::array::from_fn(|nr| {
                let of_all = all.and_then(|all| all.get(nr)).map(String::as_str);
                let one = self.first_of_nth(names[nr], at);
                one.or(of_all).unwrap_or(default[nr]).to_owned()
            })
        })
    }

    fn goal(&self, at: usize) -> Option<[String; 4]> {
        if self.has("--monitoring_intervals_autotune") {
            return Some(["4%", "3", "5ms", "10s"].map(str::to_owned));
        }
        self.nth("--monitoring_intervals_goal", at)?
            .clone()
            .try_into()
            .ok()
    }

    fn nr_regions(&self, at: usize) -> Option<[String; 2]> {
        let both = self.nth("--monitoring_nr_regions_range", at);
        let (min, max) = (
            self.first_of_nth("--minr", at),
            self.first_of_nth("--maxr", at),
        );
        (both.is_some() || min.is_some() || max.is_some()).then(|| {
            let or =
                |nr: usize, default: &str| both.map_or(default.to_owned(), |both| both[nr].clone());
            [
                min.map_or_else(|| or(0, "10"), str::to_owned),
                max.map_or_else(|| or(1, "1000"), str::to_owned),
            ]
        })
    }

    fn probes(&self) -> Result<Value, DamoError> {
        let nr = self.nth("--nr_probe_filters", 0).map_or(1, Vec::len);
        let nr = nr.max(self.list("--probe").len());
        let of_filters = self.divided("--probe_filter", "--nr_probe_filters", "--probe", nr)?;
        let of_preps = self.divided("--probe_prep", "--nr_probe_preps", "--probe", nr)?;
        let weights: Vec<&String> = self.list("--probe_weight").into_iter().flatten().collect();
        let mut probes = Vec::new();
        for (at, (filters, preps)) in of_filters.iter().zip(&of_preps).enumerate() {
            if filters.is_empty() && preps.is_empty() {
                continue;
            }
            let filters: Result<Vec<Value>, _> =
                filters.iter().map(|words| probe_filter(words)).collect();
            let preps = preps
                .iter()
                .map(|words| json!({ "prep_action": words.concat() }));
            probes.push(json!({
                "preps": preps.collect::<Vec<_>>(),
                "filters": filters?,
                "weight": weights.get(at).map_or("0", |weight| weight.as_str()),
            }));
        }
        Ok(probes.into())
    }

    fn sample_control(&self, at: usize) -> Value {
        let is_set = |name| {
            self.first_of_nth(name, at)
                .is_some_and(|flag| ["Y", "y", "1", "true"].contains(&flag))
        };
        let by_fault = is_set("--exp_ops_use_reports")
            || self
                .nth("--sample_primitives", at)
                .is_some_and(|of| of.contains(&"page_fault".to_owned()));
        let filter = |kind: &str| json!({ "filter_type": kind, "matching": true, "allow": true });
        let mut filters = Vec::new();
        if is_set("--exp_ops_write_only") {
            filters.push(filter("write"));
        }
        for (name, kind, key) in [
            ("--exp_ops_cpus", "cpumask", "cpumask"),
            ("--exp_ops_tids", "threads", "tid_arr"),
        ] {
            if let Some(text) = self
                .first_of_nth(name, at)
                .filter(|text| !["", "all"].contains(text))
            {
                let mut filter = filter(kind);
                filter[key] = text.into();
                filters.push(filter);
            }
        }
        let primitives = json!({ "page_table": !by_fault, "page_fault": by_fault });
        json!({ "primitives_enabled": primitives, "sample_filters": filters })
    }

    fn scheme(
        &self,
        at: usize,
        goals: &[&Values],
        filters: &[&Values],
    ) -> Result<Value, DamoError> {
        let action = self
            .nth("--damos_action", at)
            .expect("an action for each scheme");
        let bounds = |name| {
            let [min, max] = self
                .nth(name, at)
                .map_or(["min", "max"], |of| [of[0].as_str(), of[1].as_str()]);
            (min.to_owned(), max.to_owned())
        };
        let pair = |(min, max): (String, String)| json!({ "min": if min == "min" { "0" } else { min.as_str() }, "max": max });
        let mut scheme = json!({
            "action": action[0],
            "access_pattern": {
                "sz_bytes": pair(bounds("--damos_sz_region")),
                "nr_accesses": pair(bounds("--damos_access_rate")),
                "age": pair(bounds("--damos_age")),
            },
            "apply_interval_us": self.first_of_nth("--damos_apply_interval", at).unwrap_or("0"),
        });
        match &action[1..] {
            [] => {}
            [node] => scheme["target_nid"] = node.as_str().into(),
            nodes => {
                let dests = nodes
                    .chunks(2)
                    .map(|of| json!({ "id": of[0], "weight": of.get(1) }));
                scheme["dests"] = dests.collect::<Vec<_>>().into();
            }
        }
        let goals: Result<Vec<Value>, _> = goals.iter().map(|words| quota_goal(words)).collect();
        scheme["quotas"] = self.quota(at, &goals?);
        if let Some(words) = self.nth("--damos_wmarks", at) {
            scheme["watermarks"] = json!({
                "metric": words[0], "interval_us": words[1], "high_permil": words[2], "mid_permil": words[3],
                "low_permil": words[4],
            });
        }
        let filters: Result<Vec<Value>, _> = filters.iter().map(|words| filter(words)).collect();
        scheme["filters"] = filters?.into();
        if let Some(max) = self.first_of_nth("--damos_max_nr_snapshots", at) {
            scheme["stats"] = json!({ "max_nr_snapshots": max });
        }
        Ok(scheme)
    }

    fn quota(&self, at: usize, goals: &[Value]) -> Value {
        let words = self.nth("--damos_quotas", at);
        let word = |nr: usize, default: &str| {
            words
                .and_then(|of| of.get(nr))
                .map_or(default.to_owned(), Clone::clone)
        };
        let one = |name: &str, or: String| self.first_of_nth(name, at).map_or(or, str::to_owned);
        let weights = self.nth("--damos_quota_weights", at);
        let weight = |nr: usize| weights.map_or_else(|| word(3 + nr, "0"), |of| of[nr].clone());
        let charge = self.nth("--damos_quota_fail_charge_ratio", at);
        let charge = |nr: usize| charge.map_or("0", |of| of[nr].as_str());
        // A goal needs an interval.
        let reset = if goals.is_empty() { "max" } else { "1s" };
        json!({
            "time_ms": one("--damos_quota_time", word(0, "0")),
            "sz_bytes": one("--damos_quota_space", word(1, "0")),
            "reset_interval_ms": one("--damos_quota_interval", word(2, reset)),
            "weights": { "sz_permil": weight(0), "nr_accesses_permil": weight(1), "age_permil": weight(2) },
            "fail_charge_num": charge(0),
            "fail_charge_denom": charge(1),
            "goals": goals,
            "goal_tuner": self.first_of_nth("--damos_quota_goal_tuner", at).unwrap_or("consist"),
        })
    }
}

/// Returns a number with `unit`, unless it has one.
fn with_unit(text: String, unit: &str) -> String {
    if text.parse::<f64>().is_ok() {
        return text + unit;
    }
    text
}

fn is_named_as_file(word: &str) -> bool {
    let extension = std::path::Path::new(word).extension();
    extension.is_some_and(|extension| extension == "json" || extension == "yaml")
}

/// Whether a word is JSON, and not the name of a file.
fn is_json(word: &str) -> bool {
    word.trim_start().starts_with(['{', '['])
}

fn json_of(option: &str, text: &str) -> Result<Value, DamoError> {
    serde_json::from_str(text).map_err(|error| DamoError::Values {
        option: option.to_owned(),
        wanted: format!("JSON: {error}"),
    })
}
