//! Programs of the benches whose progress can be read.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::cached_files::CachedFiles;
use super::child::{Group, Guarded, compile};
use super::meter::Meter;
use super::truth::program::Running;
use super::truth::programs::{PROGRAMS, Program, Progress};
use super::{BenchContext, machine};

/// Populating 16 GiB takes half a minute if the hypervisor must find the memory first.
const READY_LIMIT: Duration = Duration::from_mins(5);
const LOG: &str = "progress.log";

#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    /// A real program of the truth bench.
    Real(&'static str),
    /// A program of the generated family, by its number.
    Drawn(u64),
    /// `isotherm workload` on a file of `experiments/workloads`.
    Pattern(&'static str),
    /// `experiments/workloads/faults.c` with these arguments.
    Faults(&'static [&'static str]),
    CachedFiles,
}

impl Which {
    pub(super) fn name(self, context: &BenchContext) -> String {
        match self {
            Self::Real(name) | Self::Pattern(name) => name.to_owned(),
            Self::Drawn(number) => format!("drawn {}/{number}", context.truth.seed),
            Self::Faults(arguments) => arguments.join(" "),
            Self::CachedFiles => "cached files".to_owned(),
        }
    }

    pub(super) fn lacks(self) -> Option<String> {
        let Self::Real(name) = self else {
            return None;
        };
        real(name).map_or_else(|error| Some(error.to_string()), Program::lacks)
    }

    pub(super) fn start(self, context: &BenchContext) -> Result<Subject> {
        match self {
            Self::Real(name) => {
                let program = real(name)?;
                let group = program.start(context)?;
                let folder = group.folder.as_ref().context("it has a folder")?;
                let meter = match program.progress {
                    Progress::BytesRead => Meter::BytesRead(group.pid),
                    Progress::Waits => Meter::Waits(group.pid),
                    Progress::Said => Meter::Said(folder.path().join("said")),
                };
                Ok(Subject::new(group, meter))
            }
            Self::Drawn(number) => {
                let available = machine::meminfo("MemAvailable:").unwrap_or(0);
                let seed = context.truth.seed;
                let running = Running::start(context, seed, number, available / 8)?;
                let meter = Meter::Journal(running.journal);
                Ok(Subject::new(Group::of(running.child), meter))
            }
            Self::Pattern(name) => {
                let mut command = Command::new(&context.isotherm);
                command.args(["workload", "--json", "--repeat", "0"]);
                let folder = context.root.join("experiments/workloads");
                command.arg(folder.join(format!("{name}.cfg")));
                logged(context, &mut command, Meter::Accesses)
            }
            Self::Faults(arguments) => {
                let program = compile(context, "faults")?.context("there is no C compiler (cc)")?;
                write_unit(context)?;
                let mut command = Command::new(program);
                command.args(arguments).current_dir(context.scratch.path());
                logged(context, &mut command, Meter::Rounds)
            }
            Self::CachedFiles => {
                let (reader, files) = CachedFiles::start(context)?;
                let meter = Meter::BytesRead(reader.id());
                Ok(Subject {
                    files: Some(files),
                    ..Subject::new(Group::of(reader), meter)
                })
            }
        }
    }
}

fn real(name: &str) -> Result<&'static Program> {
    const ALL: &[Program] = &PROGRAMS;
    let program = ALL.iter().find(|program| program.name == name);
    program.with_context(|| format!("there is no program `{name}`"))
}

/// Starts a program that writes a log, and waits until it makes progress.
fn logged(
    context: &BenchContext,
    command: &mut Command,
    meter: fn(std::path::PathBuf) -> Meter,
) -> Result<Subject> {
    let path = context.scratch(LOG);
    let file = File::create(&path).context("cannot write to the temporary folder")?;
    let mut child = Guarded::spawn(context, command.stdout(file))?;
    let meter = meter(path);
    let end = Instant::now() + READY_LIMIT;
    while meter.log().is_none_or(|points| points.is_empty()) {
        let seconds = READY_LIMIT.as_secs();
        ensure!(
            Instant::now() < end,
            "the program was not ready after {seconds} s"
        );
        child.check_running()?;
        context.sleep(Duration::from_millis(50))?;
    }
    Ok(Subject::new(Group::of(child), meter))
}

/// Writes a C program, `unit.c`, that a compiler is busy with for a moment.
fn write_unit(context: &BenchContext) -> Result<()> {
    let functions = (0..200).map(|n| {
        format!("int f{n}(int *a, int n) {{ int s = {n}; for (int i = 0; i < n; i++) s = s * a[i] + (s >> 3); return s; }}\n")
    });
    std::fs::write(context.scratch("unit.c"), functions.collect::<String>())
        .context("cannot write a program")
}

/// Fields are dropped in order: the group ends before its files are removed.
pub(super) struct Subject {
    pub(super) group: Group,
    pub(super) meter: Meter,
    /// The files that it reads, if it is the reader of cached files.
    pub(super) files: Option<CachedFiles>,
}

impl Subject {
    fn new(group: Group, meter: Meter) -> Self {
        Self {
            group,
            meter,
            files: None,
        }
    }
}
