//! Flags that several commands share. They lower into a [`Request`], and with a configuration file into a
//! [`SessionSpec`].

mod acting;
mod far;
mod file;
mod monitor;
mod names;
mod targets;

pub(crate) use acting::{GuardArgs, SchemeArgs, acting};
pub(crate) use far::FarArgs;
pub(crate) use file::{contexts_of, load, parse};
pub(crate) use monitor::MonitorArgs;
pub(crate) use names::{one_of, one_of_these};
pub(crate) use targets::{ProcessList, TargetArgs, WORLDS, processes};

use anyhow::ensure;
use isotherm_config::{ContextConfig, Request, SessionSpec, StacksSpec};
use tracing::warn;

/// Options of a command that watches targets.
#[derive(clap::Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) targets: TargetArgs,

    #[command(flatten)]
    how: MonitorArgs,
}

impl WatchArgs {
    /// Returns the request of a command that only monitors.
    pub(crate) fn request(&self) -> Request {
        let Self { targets, how } = self;
        Request {
            targets: targets.spec(),
            exclude: processes(&targets.exclude),
            ranges: targets.range.clone(),
            children: targets.children,
            monitoring: how.monitoring(),
            seed: how.seed,
            world: targets.world,
            stacks: how.stacks.map(|cpu_budget| StacksSpec { cpu_budget }),
            ..Request::default()
        }
    }
}

/// Options of a command that acts on the memory of targets.
#[derive(clap::Args)]
pub(crate) struct ActArgs {
    #[command(flatten)]
    pub(crate) schemes: SchemeArgs,

    #[command(flatten)]
    guard: GuardArgs,

    #[command(flatten)]
    pub(crate) watch: WatchArgs,
}

impl ActArgs {
    /// Returns the request of the flags, without their configuration file.
    pub(crate) fn request(&self) -> Request {
        Request {
            acting: acting(&self.schemes, &self.guard),
            ..self.watch.request()
        }
    }
}

/// Returns the session of a request and a file's contexts. Fails if this machine cannot do all of it; a dry run only
/// warns.
pub(crate) fn lower(request: &Request, contexts: &[ContextConfig]) -> anyhow::Result<SessionSpec> {
    let spec = request.act(contexts, None)?;
    ensure_doable(&spec, request.acting.is_dry_run)?;
    Ok(spec)
}

/// Fails if this machine cannot execute `spec`; a dry run continues with warnings.
pub(crate) fn ensure_doable(spec: &SessionSpec, is_dry_run: bool) -> anyhow::Result<()> {
    let problems = isotherm_session::lacking(spec);
    if is_dry_run {
        for problem in problems {
            warn!("{problem}; as this is a dry run, it goes on");
        }
    } else {
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
    }
    Ok(())
}
