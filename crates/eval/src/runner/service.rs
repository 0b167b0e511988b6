//! Live runs of a service that never ends: windows of it, with schemes and without.
//!
//! Pages that one window pages out are read in again before the next. Page cache that was dropped stays out until the
//! service accesses it.

use std::path::Path;

use isotherm_tune::{LiveRun, LiveRuns, Settings, TuningPlan};

use super::WindowSpec;
use super::programs::write_configuration;

/// Windows of a service, one after the other. Call [`Self::check`] first.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRuns<'a> {
    /// The service's windows.
    pub window: WindowSpec<'a>,
    /// Schemes that are tuned.
    pub plan: &'a TuningPlan,
}

impl ServiceRuns<'_> {
    /// Fails if the process does not exist, or if this user may not advise the kernel about its memory.
    pub fn check(&self) -> anyhow::Result<()> {
        let process = isotherm_linux::process::Process::open(self.window.pid)?;
        process.may_be_advised()?;
        Ok(())
    }
}

impl LiveRuns for ServiceRuns<'_> {
    fn trace(&mut self, path: &Path) -> anyhow::Result<bool> {
        let flags = "record --pages --output \"$TRACE\"";
        let variables: [(&str, &Path); 1] = [("TRACE", path)];
        Ok(self.window.measure(Some(flags), &variables)?.is_some())
    }

    fn run(&mut self, settings: Option<&Settings>) -> anyhow::Result<Option<LiveRun>> {
        let Self { window, plan } = *self;
        let path = window.folder.join("tuned.yaml");
        window.give_back()?;
        let measured = match settings {
            Some(settings) => {
                write_configuration(plan, settings, &path)?;
                let variables: [(&str, &Path); 1] = [("TUNED", &path)];
                window.measure(Some(&plan.run_flags("$TUNED")), &variables)?
            }
            None => window.measure(None, &[])?,
        };
        if settings.is_some() {
            window.give_back()?;
        }
        Ok(measured.map(|measured| LiveRun {
            settings: settings.map(Settings::key),
            seconds_of_work: measured.seconds / measured.progress,
            resident_mean_bytes: measured.resident_mean_bytes,
            seconds: measured.seconds,
            acting_cpu_seconds: measured.reported("acting_cpu_seconds"),
            guard_stops: measured.reported("guard_stops").map(|nr| nr as u64),
        }))
    }
}
