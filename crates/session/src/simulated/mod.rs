//! Sessions on a simulated machine. The machine comes from a [`Scenario`] or a [`Replay`]. The session takes a
//! [`SessionSpec`] and returns the items that a live session would return.
//!
//! ```text
//! let mut session = SimulatedSession::start(&spec, scenario, end)?;
//! while session.step(&mut items) { .. }
//! let report = session.report();
//! ```

mod far;
mod items;
mod occupancy;
mod scenario;
mod summary;
mod trace;
mod workload;

use anyhow::bail;
use isotherm_config::{ContextSpec, MonitorSpec, SessionSpec, TargetSpec};
use isotherm_engine::Nanos;
use isotherm_record::{Header, Item};
use isotherm_sim::machine::SimMachine;
use isotherm_sim::simulation::{Event, SimContextSpec, Simulation, Watch};

use summary::Summary;

use crate::messages::operations;

pub use far::FarMemory;
pub use occupancy::{Occupancy, Occupied};
pub use scenario::{Scenario, parse_scenario, read_scenario, read_scenario_or_trace};
pub use summary::{Bounded, ProgramPrediction, SimulationReport};
pub use trace::{Replay, read_trace};

/// A session on a simulated machine.
pub struct SimulatedSession {
    simulation: Simulation,
    /// Names of the contexts.
    names: Vec<Option<String>>,
    summary: Summary,
    events: Vec<Event>,
    /// Header without the command line.
    header: Header,
}

impl SimulatedSession {
    /// Starts the session of `spec` on the scenario's machine; it lasts until `end`.
    ///
    /// # Errors
    /// Fails if a part of it cannot be simulated.
    pub fn start(spec: &SessionSpec, scenario: Scenario, end: Nanos) -> anyhow::Result<Self> {
        let names = spec.contexts.iter().map(|context| context.name.clone());
        let simulation = simulation(spec, scenario, end)?;
        Ok(Self {
            header: header(spec, &simulation),
            simulation,
            names: names.collect(),
            summary: Summary::new(spec.idle_for()),
            events: Vec::new(),
        })
    }

    /// Header of a record of this session, with this command line.
    pub fn header(&self, command: Vec<String>) -> Header {
        Header {
            command,
            ..self.header.clone()
        }
    }

    /// Present simulated time.
    pub fn now(&self) -> Nanos {
        self.simulation.machine().now()
    }

    /// Advances to the next event and appends its items. Returns whether there are more.
    pub fn step(&mut self, items: &mut Vec<Item>) -> bool {
        let goes_on = self.simulation.step(&mut self.events);
        self.summary.all.look(&self.simulation);
        for event in self.events.drain(..) {
            self.summary.take(&event, &self.simulation);
            items.extend(items::items(&self.names, &event, &self.simulation));
        }
        goes_on
    }

    /// Returns the results of the simulation.
    pub fn report(self) -> SimulationReport {
        self.summary.report(&self.simulation)
    }
}

/// Makes the simulation of `spec` on the scenario's machine until `end`, for callers that need no record.
///
/// # Errors
/// Fails if a part of it cannot be simulated.
pub fn simulation(
    spec: &SessionSpec,
    scenario: Scenario,
    end: Nanos,
) -> anyhow::Result<Simulation> {
    let contexts = spec.contexts.iter().map(context);
    let contexts = contexts.collect::<anyhow::Result<Vec<_>>>()?;
    let mut machine = SimMachine::new(scenario.machine);
    machine.set_faults(scenario.faults);
    let mut simulation = Simulation::new(machine, scenario.starts, contexts, end)?;
    for (at, context) in spec.contexts.iter().enumerate() {
        let max_waste = context.acting.as_ref().and_then(|acting| acting.max_waste);
        simulation.set_max_waste(at, max_waste);
    }
    Ok(simulation)
}

/// Returns the simulated counterpart of a live context.
///
/// # Errors
/// Fails if the context cannot be simulated: scans of pages.
pub fn context(spec: &ContextSpec) -> anyhow::Result<SimContextSpec> {
    let watch = match (&spec.monitor, &spec.targets) {
        (MonitorSpec::Regions(attributes), TargetSpec::Physical { node, .. }) => {
            Watch::Physical(*attributes, *node)
        }
        (MonitorSpec::Tables(_), TargetSpec::Physical { node: Some(_), .. }) => bail!(
            "on a simulated machine a node's memory is watched by regions: add --faithful, or leave the node out"
        ),
        (MonitorSpec::Tables(attributes), _) => Watch::Tables(*attributes),
        (MonitorSpec::Regions(attributes), _) => Watch::Regions(*attributes),
        (MonitorSpec::Pages(_), _) => bail!(
            "--pages is how real programs are recorded; simulated ones are watched by tables or \
             regions"
        ),
    };
    let acting = spec.acting.clone().unwrap_or_default();
    Ok(SimContextSpec {
        name: spec.name.clone(),
        watch,
        limits: spec.ranges.clone(),
        schemes: acting.schemes,
        guard: acting.limits,
        act_budget: acting.act_budget,
        dry_run: acting.is_dry_run,
    })
}

fn header(spec: &SessionSpec, simulation: &Simulation) -> Header {
    let (intervals, _) = simulation.watching(0);
    let settings = [
        ("method", "simulated".to_owned()),
        ("seed", spec.seed.to_string()),
    ];
    Header {
        writer: format!("isotherm {}", env!("CARGO_PKG_VERSION")),
        host: "simulated".to_owned(),
        kernel: "simulated".to_owned(),
        command: Vec::new(),
        started: Nanos(0),
        operations: operations(spec),
        sample_interval: intervals.sample,
        aggregation_interval: intervals.aggregation,
        update_interval: intervals.update,
        settings: settings.map(|(key, value)| (key.to_owned(), value)).into(),
    }
}
