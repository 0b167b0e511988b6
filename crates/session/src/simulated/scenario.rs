//! Scenarios: the parts of a simulated machine, its processes and its faults.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGE_SIZE};
use isotherm_record::convert::Format;

use isotherm_sim::machine::{
    AreaSpec, Defrag, FaultKind, InjectedFault, MachineSpec, NodeSpec, SimProcessSpec, SwapKind,
    ThpMode, Use,
};
use serde::{Deserialize, Deserializer};

use super::trace::{self, Replay, read_trace};
use super::workload;
use isotherm_engine::units::{parse_bytes, parse_share, parse_time};

/// All inputs of a simulation.
#[derive(Debug, Default)]
pub struct Scenario {
    /// Specification of the machine.
    pub machine: MachineSpec,
    /// Processes with their start times.
    pub starts: Vec<(Nanos, SimProcessSpec)>,
    /// Injected faults.
    pub faults: Vec<InjectedFault>,
    /// Duration, if the scenario sets one.
    pub duration: Option<Nanos>,
    /// Notes for the user on the reading of the scenario, a sentence each.
    pub notes: Vec<String>,
}

impl Scenario {
    /// Makes a scenario of traced processes alone, on their machine.
    pub fn of(mut replay: Replay) -> Self {
        let machine = std::mem::take(&mut replay.machine);
        let mut scenario = Self {
            machine,
            ..Self::default()
        };
        scenario.replay(replay);
        scenario
    }

    /// Adds traced processes to the scenario, from the start. Their machine is not used.
    pub fn replay(&mut self, replay: Replay) {
        self.notes.extend(replay.notes);
        self.starts.extend(replay.processes);
    }

    /// Time of the end if no process loses time.
    pub fn expected_end(&self, duration: Option<Nanos>) -> Nanos {
        let work =
            { self.starts.iter() }.map(|(at, process)| *at + process.work.unwrap_or_default());
        let work = work.max().unwrap_or_default();
        duration.or(self.duration).unwrap_or(work)
    }

    /// Time of the end: `duration`, or the scenario's, or when all processes have ended.
    ///
    /// # Errors
    /// Fails if a process never ends.
    pub fn end(&self, duration: Option<Nanos>) -> anyhow::Result<Nanos> {
        if let Some(end) = duration.or(self.duration) {
            return Ok(end);
        }
        let mut starts = self.starts.iter();
        if let Some((_, process)) = starts.find(|(_, process)| process.work.is_none()) {
            bail!(
                "process '{}' never ends: say how long to simulate, by --duration or by the scenario's \
                 `duration`, or how much `work` it has to do",
                process.name
            );
        }
        // A process that makes no progress must not prolong the simulation for ever.
        let work = self.starts.iter().map(|(at, process)| {
            *at + Nanos(process.work.unwrap_or_default().0.saturating_mul(100))
        });
        Ok(work.max().unwrap_or_default())
    }
}

/// Default rate at which memory is filled.
const FILL_BYTES_PER_S: u64 = 1 << 30;

/// Declares texts with a unit, each with its value and what reads it.
macro_rules! with_unit {
    ($($name:ident($of:ty), $parse:path;)*) => {$(
        struct $name($of);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                $parse(&text).map(Self).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

with_unit! {
    Bytes(u64), parse_bytes;
    Share(f64), parse_share;
    Time(Nanos), parse_time;
}

/// A number without a unit; thousands may be separated.
#[derive(Clone, Copy)]
struct Number<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?.replace(['_', ','], "");
        let parsed = text.trim().parse().map(Self);
        parsed.map_err(|error| {
            serde::de::Error::custom(format!("'{text}' is no number here: {error}"))
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    #[serde(default)]
    machine: MachineFile,
    duration: Option<Time>,
    processes: Vec<ProcessFile>,
    #[serde(default)]
    faults: Vec<FaultFile>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFile {
    cpus: Option<Number<u32>>,
    nodes: Option<Vec<NodeFile>>,
    swap: Option<SwapFile>,
    thp: Option<ThpMode>,
    defrag: Option<Defrag>,
    compaction_proactiveness: Option<Number<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeFile {
    size: Bytes,
    latency: Option<Time>,
    bandwidth: Option<Bytes>,
    movable: Option<Bytes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwapFile {
    zram: Option<Bytes>,
    disk: Option<Bytes>,
    ratio: Option<Number<f64>>,
    read: Option<Time>,
}

/// Limit of the processes: more are a mistake.
const PROCESSES_MAX: usize = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcessFile {
    name: Option<String>,
    count: Option<Number<usize>>,
    start: Option<Time>,
    threads: Option<Number<u32>>,
    work: Option<Time>,
    memory_bound: Option<Share>,
    accesses_per_s: Option<Number<f64>>,
    #[serde(default)]
    mappings: Vec<MappingFile>,
    masim: Option<PathBuf>,
    #[serde(default)]
    sparse: bool,
    trace: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MappingFile {
    name: String,
    size: Bytes,
    #[serde(default)]
    kind: Use,
    huge: Option<bool>,
    from: Option<Time>,
    fill: Option<Time>,
    filled_of_block: Option<Number<u32>>,
    #[serde(alias = "given_back")]
    released: Option<Share>,
    #[serde(alias = "given_back_at")]
    released_at: Option<Time>,
    #[serde(default)]
    access: Vec<AccessFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessFile {
    at: Option<Time>,
    #[serde(default)]
    pattern: workload::Shape,
    hot: Option<String>,
    rate: Number<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultFile {
    at: Time,
    #[serde(rename = "for")]
    length: Time,
    kind: FaultName,
    node: Option<Number<u32>>,
    process: Option<Number<u32>>,
    share: Option<Share>,
    by: Option<Time>,
    #[serde(default)]
    back: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FaultName {
    NodeFull,
    SwapFull,
    MigrationFailures,
    Contention,
    Exit,
    ClockJump,
}

/// Reads a scenario (YAML or JSON); relative paths in it start at its folder.
///
/// # Errors
/// Fails if the file cannot be read or is no scenario; the error names the place in the file.
pub fn read_scenario(path: &Path) -> anyhow::Result<Scenario> {
    let name = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let text =
        isotherm_config::text_of(&bytes).map_err(|problem| anyhow::anyhow!("{name}: {problem}"))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    parse_scenario(text, folder).with_context(|| format!("{name} cannot be simulated"))
}

/// Reads a scenario, or a record of page scans, by the file's content. A record is replayed on a machine like the
/// recorded one.
///
/// # Errors
/// Fails if the file cannot be read or simulated.
pub fn read_scenario_or_trace(path: &Path) -> anyhow::Result<Scenario> {
    let name = path.display();
    let format = std::fs::File::open(path)
        .and_then(Format::detect_in)
        .with_context(|| format!("cannot read {name}"))?;
    // Records of damo hold regions, which cannot be replayed.
    match format {
        Ok(Format::Isotherm | Format::Parquet) => Ok(Scenario::of(read_trace(path)?)),
        _ => read_scenario(path),
    }
}

/// Reads a scenario's text; relative paths in it start at `folder`.
///
/// # Errors
/// Fails if the text is no scenario; the error names the place in the text.
pub fn parse_scenario(text: &str, folder: &Path) -> anyhow::Result<Scenario> {
    let values = isotherm_config::plain(text).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", lines.join("\n"))
    })?;
    let file: ScenarioFile = serde_path_to_error::deserialize(values)
        .map_err(|error| anyhow::anyhow!("{}: {}", error.path(), error.inner()))?;
    let machine = file.machine.spec()?;
    let (mut starts, mut notes) = (Vec::new(), Vec::new());
    for (index, process) in file.processes.into_iter().enumerate() {
        let at = process.start.as_ref().map_or(Nanos(0), |Time(at)| *at);
        let count = process.count.map_or(1, |Number(count)| count);
        ensure!(
            starts.len().saturating_add(count) <= PROCESSES_MAX,
            "processes[{index}]: with its {count} there are more than {PROCESSES_MAX}"
        );
        let spec = process.spec(folder, &mut notes);
        let spec = spec.with_context(|| format!("processes[{index}]"))?;
        starts.extend(std::iter::repeat_n((at, spec), count));
    }
    ensure!(
        !starts.is_empty(),
        "processes: there is none, so nothing would happen"
    );
    let bytes = starts.iter().flat_map(|(_, process)| &process.areas);
    let bytes: u64 = bytes.map(|area| area.range.len()).sum();
    ensure!(
        bytes <= 8 << 40,
        "processes: they map {bytes} bytes together; pages are simulated up to 8 TiB"
    );
    let faults = file.faults.into_iter().enumerate().map(|(index, fault)| {
        let fault = fault.fault(machine.nodes.len(), starts.len());
        fault.with_context(|| format!("faults[{index}]"))
    });
    Ok(Scenario {
        faults: faults.collect::<anyhow::Result<_>>()?,
        machine,
        starts,
        duration: file.duration.map(|Time(duration)| duration),
        notes,
    })
}

impl MachineFile {
    fn spec(self) -> anyhow::Result<MachineSpec> {
        let default = MachineSpec::default();
        let nodes = self.nodes.map_or(default.nodes, |nodes| {
            let node = |node: NodeFile| NodeSpec {
                latency: node.latency.map_or(Nanos(90), |Time(latency)| latency),
                bandwidth: node.bandwidth.map(|Bytes(bytes)| bytes),
                movable: node.movable.map_or(0, |Bytes(bytes)| bytes),
                ..NodeSpec::new(node.size.0)
            };
            nodes.into_iter().map(node).collect()
        });
        ensure!(!nodes.is_empty(), "machine.nodes: there is none");
        let total: u64 = nodes.iter().map(|node| node.size).sum();
        for (index, node) in nodes.iter().enumerate() {
            ensure!(
                node.size >= 16 << 20 && node.latency.0 > 0 && node.bandwidth != Some(0),
                "machine.nodes[{index}]: a node has at least 16 MiB, some latency and some bandwidth"
            );
        }
        ensure!(
            total <= 8 << 40,
            "machine.nodes: frames are simulated up to 8 TiB"
        );
        let cpus = self.cpus.map_or(default.cpus, |Number(cpus)| cpus);
        ensure!(cpus >= 1, "machine.cpus: a machine has at least one");
        let compaction_proactiveness = self
            .compaction_proactiveness
            .map_or(default.compaction_proactiveness, |Number(share)| share);
        ensure!(
            compaction_proactiveness <= 100,
            "machine.compaction_proactiveness: {compaction_proactiveness} is above 100"
        );
        Ok(MachineSpec {
            compaction_proactiveness,
            defrag: self.defrag.unwrap_or_default(),
            cpus,
            nodes,
            swap: self.swap.map(SwapFile::spec).transpose()?,
            thp: self.thp.unwrap_or_default(),
            ..default
        })
    }
}

impl SwapFile {
    fn spec(self) -> anyhow::Result<(SwapKind, u64)> {
        match (self.zram, self.disk) {
            (Some(Bytes(size)), None) => {
                let ratio = self.ratio.map_or(3.0, |Number(ratio)| ratio);
                ensure!(ratio >= 1.0, "machine.swap.ratio: {ratio} is below 1");
                Ok((SwapKind::Zram { ratio }, size))
            }
            (None, Some(Bytes(size))) => {
                let read = self.read.map_or(Nanos::from_micros(90), |Time(read)| read);
                Ok((SwapKind::Disk { read }, size))
            }
            _ => anyhow::bail!("machine.swap: say either zram: SIZE or disk: SIZE"),
        }
    }
}

impl ProcessFile {
    fn spec(self, folder: &Path, notes: &mut Vec<String>) -> anyhow::Result<SimProcessSpec> {
        let accesses_per_s = self.accesses_per_s.map(|Number(rate)| rate);
        let given = [
            !self.mappings.is_empty(),
            self.masim.is_some(),
            self.trace.is_some(),
        ];
        ensure!(
            given.iter().filter(|given| **given).count() == 1,
            "say what it does by one of `mappings`, `masim` (a configuration's file) and `trace` (a \
             record's file)"
        );
        ensure!(
            !self.sparse || self.masim.is_some(),
            "`sparse` is for what a `masim` configuration touches"
        );
        let mut spec = if let Some(path) = &self.trace {
            let replay = trace::read_trace(&folder.join(path))?;
            if replay.processes.len() > 1 {
                notes.push(format!(
                    "of {} processes in {} only the largest is part of the scenario",
                    replay.processes.len(),
                    path.display()
                ));
            }
            let largest = replay.largest().cloned();
            notes.extend(replay.notes);
            largest.context("nothing of it was in memory")?
        } else if let Some(path) = &self.masim {
            workload::masim(&folder.join(path), accesses_per_s, self.sparse)?
        } else {
            SimProcessSpec {
                name: "process".to_owned(),
                accesses_per_s,
                areas: areas(self.mappings)?,
                ..SimProcessSpec::default()
            }
        };
        if let Some(name) = self.name {
            spec.name = name;
        }
        spec.threads = self.threads.map_or(spec.threads, |Number(nr)| nr);
        spec.work = self.work.map(|Time(work)| work).or(spec.work);
        if let Some(Share(share)) = self.memory_bound {
            spec.memory_bound = share;
        }
        Ok(spec)
    }
}

/// Address of the first mapping, as on real machines.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;

fn areas(mappings: Vec<MappingFile>) -> anyhow::Result<Vec<AreaSpec>> {
    let mut next = FIRST_ADDRESS;
    let mut areas = Vec::new();
    for mapping in mappings {
        let size = mapping.size.0.next_multiple_of(PAGE_SIZE);
        ensure!(
            (PAGE_SIZE..=8 << 40).contains(&size),
            "mapping '{}': {size} bytes are not simulated; from one page to 8 TiB",
            mapping.name
        );
        let range = AddressRange::new(next, next + size);
        next = (range.end + BLOCK_SIZE).next_multiple_of(BLOCK_SIZE);
        let accesses = mapping.access.into_iter().map(|access| workload::Access {
            at: access.at.map_or(Nanos(0), |Time(at)| at),
            shape: access.pattern,
            hot: access.hot,
            rate: access.rate.0,
        });
        let accesses: Vec<workload::Access> = accesses.collect();
        let pattern = workload::pattern(&accesses, size);
        let fill = mapping.fill.map_or(
            Nanos((u128::from(size) * 1_000_000_000 / u128::from(FILL_BYTES_PER_S)) as u64),
            |Time(fill)| fill,
        );
        let from = mapping.from.map_or(Nanos(0), |Time(from)| from);
        areas.push(AreaSpec {
            pattern: pattern.with_context(|| format!("mapping '{}'", mapping.name))?,
            name: mapping.name,
            range,
            purpose: mapping.kind,
            huge: mapping.huge,
            fill: Some((from, fill)),
            filled_of_block: mapping.filled_of_block.map(|Number(pages)| pages),
            released: mapping.released.map(|Share(share)| {
                let at = mapping.released_at.map(|Time(at)| at);
                (at.unwrap_or(from + fill), share)
            }),
        });
    }
    Ok(areas)
}

impl FaultFile {
    fn fault(self, nodes: usize, processes: usize) -> anyhow::Result<InjectedFault> {
        let share = || {
            let share = self.share.as_ref().map(|Share(share)| *share);
            share.context("say how many of them: `share: 10 %`")
        };
        let kind = match self.kind {
            FaultName::NodeFull => {
                let Number(node) = self.node.context("say which: `node: 0`")?;
                ensure!((node as usize) < nodes, "there is no node {node}");
                FaultKind::NodeFull(node)
            }
            FaultName::SwapFull => FaultKind::SwapFull,
            FaultName::MigrationFailures => FaultKind::Migration(share()?),
            FaultName::Contention => FaultKind::Contention(share()?),
            FaultName::Exit => {
                let Number(process) = self.process.context("say which: `process: 0`")?;
                ensure!(
                    (process as usize) < processes,
                    "there is no process {process}"
                );
                FaultKind::Exit(process)
            }
            FaultName::ClockJump => {
                let Time(by) = self
                    .by
                    .context("say how far: `by: 5s`, with `back: true` backwards")?;
                let by = i64::try_from(by.0).context("that is too far")?;
                FaultKind::ClockJump(if self.back { -by } else { by })
            }
        };
        let Time(from) = self.at;
        Ok(InjectedFault {
            kind,
            from,
            until: from + self.length.0,
        })
    }
}

#[cfg(test)]
mod tests;
