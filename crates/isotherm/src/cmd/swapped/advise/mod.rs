//! `isotherm swap advise`: measures zram and zswap with programs' own data, and says how much swap a policy needs.

mod idle;
mod limits;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;

use anyhow::{Context as _, ensure};
use isotherm_engine::calibration::{Measured, SwapMeasured};
use isotherm_engine::units::{format_bytes, format_time, parse_bytes, parse_time_span};
use isotherm_engine::{Nanos, PAGE_SIZE};
use isotherm_linux::calibrate::subject::command;
use isotherm_linux::calibrate::{compare_swap, content_of};
use isotherm_linux::cgroup;
use isotherm_linux::process::{self, resident_bytes};
use isotherm_linux::swap::{SwapArea, SwapFacts};
use isotherm_record::{Reader, printable};
use isotherm_render::table::Table;
use serde::Serialize;
use tracing::info;

use super::order_text;
use crate::flags::{ProcessList, processes};
use crate::out::{ResultArgs, spread};
use idle::{SwapNeed, Watched};
use limits::GroupSwapLimit;

/// Most bytes of programs that are copied.
const SAMPLE_MAX: u64 = 64 << 20;
/// Scans within the idle time, at most, and the shortest time between two.
const SCANS: u64 = 20;
const SCAN_EVERY_MIN: Nanos = Nanos(500_000_000);

/// Measure zram and zswap with the data of programs, and say which is better here and how much is needed.
///
/// Watches the programs until memory that is idle for --idle is known. Copies a sample of it, at most 64 MiB. Pages the
/// copies out to a zram device and through zswap to a file, in turn, and reads them back. Both are set up for that and
/// taken away; what was set is set again, after SIGKILL by the next `isotherm swap`. Needs root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  isotherm swap advise --pid 1234
  isotherm swap advise --cgroup system.slice/redis.service --idle 10min --json
  isotherm swap advise --all --no-watch
  isotherm swap advise app.isotherm --idle 30s")]
pub(super) struct AdviseArgs {
    /// Take what was idle from this record of page scans (`isotherm record --pages`)
    #[arg(value_name = "RECORD")]
    record: Option<PathBuf>,
    /// Measure with these processes, by id or name. Separate several by commas, or repeat the option
    #[arg(short, long, value_name = "PID|NAME", required_unless_present_any = ["cgroup", "all", "record"])]
    pid: Vec<ProcessList>,
    /// Measure with every process of this control group, and show its limits on swap
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    cgroup: Option<PathBuf>,
    /// Measure with every process of the machine but isotherm itself
    #[arg(long, conflicts_with_all = ["pid", "cgroup"])]
    all: bool,
    /// Say how much swap a policy needs that pages out memory idle for this long, as DAMON_RECLAIM does by default
    #[arg(long, value_name = "TIME", value_parser = parse_time_span, default_value = "2min")]
    idle: Nanos,
    /// Do not watch: measure with any pages, and leave the amount unknown
    #[arg(long, conflicts_with = "record")]
    no_watch: bool,
    /// Copy at most this much of their memory
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "64MiB")]
    size: u64,
    /// Make the scratch file behind zswap at this path
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/swap.isotherm-scratch"
    )]
    file: PathBuf,
    /// Make no file: leave zswap unknown
    #[arg(long, conflicts_with = "file")]
    no_disk: bool,
    /// Let zswap compress by this algorithm [default: as it is]
    #[arg(long, value_name = "NAME")]
    compressor: Option<String>,
    #[command(flatten)]
    result: ResultArgs,
}

/// JSON of `swap advise`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SwapAdvice {
    sample: Sample,
    /// Measurements of zram and of zswap.
    measured: Vec<SwapMeasured>,
    /// `zram`, `zswap` or `either`; `null` if neither was measured.
    choice: Option<&'static str>,
    reason: String,
    /// Rule by which the choice follows from the measurements.
    rule: &'static str,
    /// Idle time of the policy.
    idle_ns: Nanos,
    /// Swap that the policy needs; `null` if it is not known.
    need: Option<SwapNeed>,
    /// Swap to set up for it: its upper bound, and the reserve that Isotherm leaves unused.
    size_bytes: Option<u64>,
    /// Memory that the need takes once compressed, least and most, by kind.
    memory_bytes: BTreeMap<String, [u64; 2]>,
    need_reason: String,
    limits: Vec<GroupSwapLimit>,
}

#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Sample {
    /// Copied pages.
    pages: u64,
    /// Pages among them that hold one value throughout, mostly zeros: they take no space, and were not measured.
    same_filled_pages: u64,
    /// Whether all of them were idle for the policy's time.
    is_idle: bool,
    #[serde(skip)]
    content: Vec<u8>,
    /// Reason why a process was not copied.
    #[serde(skip)]
    failed: Option<String>,
}

pub(super) fn run(args: &AdviseArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        (PAGE_SIZE..=SAMPLE_MAX).contains(&args.size),
        "--size {}: from 4 KiB to 64 MiB can be copied",
        format_bytes(args.size)
    );
    let group = args.cgroup.as_deref().map(cgroup::find).transpose()?;
    let pids = args.pids(group.as_deref())?;
    let watched = args.watched(&pids)?;
    let need = watched.need();
    let sample = sample(&pids, args.size / PAGE_SIZE, &watched);
    let measured = args.measure(&sample)?;
    let (choice, reason) = verdict::choose(&measured);
    let memory = measured.iter().filter_map(|of| {
        let (need, ratio) = (need?, of.ratio?.median);
        let bounds = [need.low_bytes, need.high_bytes];
        Some((
            of.kind.clone(),
            bounds.map(|bytes| (bytes as f64 / ratio) as u64),
        ))
    });
    let of_pids = pids.iter().filter(|_| !args.pid.is_empty());
    let of_pids =
        of_pids.filter_map(|pid| cgroup::find(Path::new(&cgroup::of_process(*pid)?)).ok());
    let limits = limits::of_groups(
        group.into_iter().chain(of_pids),
        need.map(|need| need.low_bytes),
    );
    let advice = SwapAdvice {
        memory_bytes: memory.collect(),
        measured: measured.into(),
        sample,
        choice,
        reason,
        rule: verdict::RULE,
        idle_ns: args.idle,
        need,
        size_bytes: need.map(|need| SwapFacts::total_for(need.high_bytes)),
        need_reason: need_reason(need, args),
        limits,
    };
    args.result.print(&advice, SwapAdvice::text)?;
    Ok(ExitCode::SUCCESS)
}

impl AdviseArgs {
    fn pids(&self, group: Option<&Path>) -> anyhow::Result<Vec<u32>> {
        let mut notes = Vec::new();
        let mut pids = match group {
            Some(group) => cgroup::processes(group),
            None if self.all => process::all().collect(),
            None => isotherm_session::pids(&processes(&self.pid), &mut notes)?,
        };
        for note in notes {
            info!("{}", printable(&note));
        }
        pids.retain(|pid| *pid != std::process::id());
        Ok(pids)
    }

    /// Reads the record, or watches the targets by another process: one that watches gives up the privilege to swap.
    fn watched(&self, pids: &[u32]) -> anyhow::Result<Watched> {
        let mut watched = Watched::new(self.idle);
        if let Some(path) = &self.record {
            let cannot = || format!("cannot read {} as a record", path.display());
            for item in Reader::open(crate::input::open(path)?.bytes).with_context(cannot)? {
                watched.take(&item.with_context(cannot)?);
            }
            // Processes of a record may be others by now.
            watched.ranges.clear();
        } else if !self.no_watch {
            let every = Nanos(self.idle.0 / SCANS).max(SCAN_EVERY_MIN);
            let [enough, most] = [2, 20].map(|scans| self.idle + Nanos(scans * every.0));
            info!(
                "watches for {}; --no-watch does without",
                format_time(enough)
            );
            let mut recorder = Command::new("/proc/self/exe");
            recorder.args(["record", "--quiet", "--pages", "--once", "--output", "-"]);
            recorder.args([
                "--aggregation-interval".to_owned(),
                format!("{}us", every.0 / 1000),
            ]);
            recorder.args(["--duration".to_owned(), format!("{}us", most.0 / 1000)]);
            match &self.cgroup {
                Some(group) => recorder.arg("--cgroup").arg(group),
                None if self.all => recorder.arg("--all"),
                None => recorder.args(pids.iter().map(|pid| format!("--pid={pid}"))),
            };
            let mut recorder = recorder.stdout(Stdio::piped()).spawn()?;
            let items = BufReader::new(recorder.stdout.take().context("it is piped")?);
            let items = Reader::open(items).context("the programs cannot be watched")?;
            for item in items {
                watched.take(&item?);
                if watched.need().is_some_and(|need| need.watched_ns >= enough) {
                    break;
                }
            }
            // It would go on to measure costs.
            recorder.kill()?;
            recorder.wait()?;
        }
        Ok(watched)
    }

    fn measure(&self, sample: &Sample) -> anyhow::Result<[SwapMeasured; 2]> {
        if sample.content.is_empty() {
            let why = match &sample.failed {
                Some(why) => why,
                None if sample.pages > 0 => "all copied pages hold one value, and take no space",
                None => "no page could be copied; name a process by --pid or --cgroup",
            };
            return Ok(["zram", "zswap"].map(|kind| SwapMeasured::unknown(kind, why)));
        }
        let scratch = if self.no_disk {
            Err("it needs a file on a disk, which --no-disk forbids".to_owned())
        } else {
            Ok(self.file.as_path())
        };
        let stop = crate::stop::by_signals()?;
        let is_stopped = || stop.load(Ordering::Relaxed);
        let by = self.compressor.as_deref();
        compare_swap(&sample.content, scratch, by, command(), &is_stopped)
            .context("cannot measure swap; `isotherm swap off` takes away what may be left of it")
    }
}

/// Copies at most `pages` pages of these processes, by their size; those that are idle, if any are known.
fn sample(pids: &[u32], pages: u64, watched: &Watched) -> Sample {
    let mut sample = Sample::default();
    let idle = |pid: &u32| watched.ranges.get(pid).map_or(&[][..], Vec::as_slice);
    sample.is_idle = pids.iter().any(|pid| !idle(pid).is_empty());
    let bytes = |pid: &u32| {
        let idle = || idle(pid).iter().map(|range| range.len()).sum();
        sample
            .is_idle
            .then(idle)
            .unwrap_or_else(|| resident_bytes(*pid))
    };
    let sizes: Vec<(u32, u64)> = pids.iter().map(|pid| (*pid, bytes(pid))).collect();
    let all: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
    for (pid, bytes) in sizes.into_iter().filter(|(_, bytes)| *bytes > 0) {
        let share = (u128::from(pages) * u128::from(bytes)).div_ceil(u128::from(all)) as usize;
        match content_of(pid, share, sample.is_idle.then(|| idle(&pid))) {
            Ok(content) => sample.add(&content, pages),
            Err(error) => sample.failed = Some(error.to_string()),
        }
    }
    sample
}

impl Sample {
    fn add(&mut self, content: &[u8], pages_max: u64) {
        let left = (pages_max - self.pages) as usize;
        for page in content.chunks_exact(PAGE_SIZE as usize).take(left) {
            self.pages += 1;
            if page.chunks_exact(8).all(|word| word == &page[..8]) {
                self.same_filled_pages += 1;
            } else {
                self.content.extend_from_slice(page);
            }
        }
    }
}

fn need_reason(need: Option<SwapNeed>, args: &AdviseArgs) -> String {
    let idle = format_time(args.idle);
    let Some(need) = need else {
        return format!("unknown, as nothing was watched for {idle}; --idle asks for another time");
    };
    format!(
        "at most {} were idle for {idle} at once in {} of watching, {} are in swap already, and {} grew within the last \
         {idle}, too young to count",
        format_bytes(need.idle_bytes),
        format_time(need.watched_ns),
        format_bytes(need.swapped_bytes),
        format_bytes(need.grew_bytes)
    )
}

impl SwapAdvice {
    fn text(&self) -> String {
        let cell = |of: Option<Measured>, unit: f64| spread(of, unit, 2, "");
        let rows = self.measured.iter().map(|of| {
            let name = format!("{} ({})", of.kind, of.compressor);
            let [ratio, kept] =
                [(of.ratio, 1.0), (of.kept_in_memory, 0.01)].map(|(of, unit)| cell(of, unit));
            [
                name,
                ratio,
                kept,
                cell(of.page_out_ns, 1e3),
                cell(of.fault_in_ns, 1e3),
            ]
        });
        let heads = "|COMPRESSED TO 1 PART IN>|% KEPT IN MEMORY>|US TO PAGE OUT>|US TO READ BACK>";
        let idle = format_time(self.idle_ns);
        let idle = if self.sample.is_idle {
            format!("idle for {idle}")
        } else {
            "idle or not".into()
        };
        let Sample {
            pages,
            same_filled_pages: same,
            ..
        } = self.sample;
        let mut text =
            format!("{pages} pages, {idle}; {same} of them hold one value, and take no space\n");
        text += &Table::of(heads, rows).text();
        for (kind, why) in self
            .measured
            .iter()
            .filter_map(|of| Some((&of.kind, of.unknown.as_ref()?)))
        {
            let _ = writeln!(text, "{kind} is unknown: {}", printable(why));
        }
        let _ = writeln!(text, "{}", self.reason);
        let bytes = self
            .size_bytes
            .map_or_else(String::new, |size| format_bytes(size) + ", as ");
        let _ = writeln!(text, "swap: {bytes}{}", self.need_reason);
        for (kind, bounds) in &self.memory_bytes {
            let [low, high] = bounds.map(format_bytes);
            let _ = writeln!(text, "in {kind} that takes {low} to {high} of memory");
        }
        text.extend(self.limits.iter().map(GroupSwapLimit::text));
        text + &order_text(&SwapArea::all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_one_value_are_counted_apart_and_the_sample_is_bounded() {
        let page = PAGE_SIZE as usize;
        let mut content = vec![0; 4 * page];
        content[page] = 1;
        content[2 * page..3 * page].fill(7);
        let mut sample = Sample::default();
        sample.add(&content, 3);
        assert_eq!((sample.pages, sample.same_filled_pages), (3, 2));
        assert_eq!(sample.content.len(), page);
    }
}
