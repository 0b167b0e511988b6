//! Live runs of a service that never ends: windows of it, with schemes and without.
//!
//! What one window pages out is read in again before the next; what is still in swap then counts as resident in a window
//! without schemes, as it would be had they never acted. Pages of files that were dropped are not seen to be missing there.

use std::path::Path;

use super::programs::write_configuration;
use super::{LiveRun, LiveRuns};
use crate::runner::{Window, WindowSpec};
use crate::tune::{Plan, Settings};

/// What is tuned, and where.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSpec<'a> {
    /// The service's windows.
    pub window: WindowSpec<'a>,
    /// What is tuned.
    pub plan: &'a Plan,
}

/// Windows of a service, one after the other.
#[derive(Debug)]
pub struct ServiceRuns<'a> {
    spec: ServiceSpec<'a>,
    /// What was in swap before anything was done, bytes.
    swapped_before: u64,
}

impl<'a> ServiceRuns<'a> {
    /// Of a process that runs.
    ///
    /// # Errors
    /// It does not exist, or may not be looked at.
    pub fn new(spec: ServiceSpec<'a>) -> anyhow::Result<Self> {
        let process = isotherm_linux::process::Process::open(spec.window.pid)?;
        process.may_be_advised()?;
        Ok(Self {
            swapped_before: process.usage()?.swap,
            spec,
        })
    }

    /// Resident memory; without schemes, with what an earlier window left in swap.
    fn resident(&self, window: &Window, has_schemes: bool) -> f64 {
        let left = (window.swapped_mean_bytes - self.swapped_before as f64).max(0.0);
        window.resident_mean_bytes + if has_schemes { 0.0 } else { left }
    }
}

impl LiveRuns for ServiceRuns<'_> {
    fn run(&mut self, settings: Option<&Settings>) -> anyhow::Result<Option<LiveRun>> {
        let ServiceSpec { window, plan } = self.spec;
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
            resident_mean_bytes: self.resident(&measured, settings.is_some()),
            seconds: measured.seconds,
            acting_cpu_seconds: measured.told("acting_cpu_seconds"),
            guard_stops: measured.told("guard_stops").map(|nr| nr as u64),
        }))
    }
}
