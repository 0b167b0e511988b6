//! Memory of simulated processes over time.
//!
//! **Problem.** Schemes act when a second begins, as the guard then sets their limits. A sample once a second, in step
//! with the simulated machine, shows the memory before the actions. For 330 MiB that were paged out within seven
//! seconds, its mean is 9 % too high.
//!
//! **Approach.** The memory between two events is weighted with the time between them.

use isotherm_engine::{Nanos, PAGE_SIZE, TargetId};
use isotherm_sim::machine::Swap;
use isotherm_sim::simulation::Simulation;

/// Memory of all running processes in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Occupied {
    /// Resident memory.
    pub resident: f64,
    /// Paged-out memory, before compression.
    pub swapped: f64,
    /// Memory that compressed swap takes.
    pub pool: f64,
    /// Memory on nodes beyond the first; zero unless the caller asks for nodes.
    pub far: f64,
    /// Memory in huge pages.
    pub huge: f64,
}

/// Sums of memory over time.
#[derive(Clone, Debug, Default)]
pub struct Occupancy {
    looks_at_nodes: bool,
    looked: Nanos,
    /// State since the last sample; `None` while no process runs.
    now: Option<Occupied>,
    seconds: f64,
    /// Sums of bytes times seconds.
    sums: Occupied,
    /// Memory on the first node times seconds, and the seconds; one pair for each second of the time.
    near: Vec<(f64, f64)>,
    resident_max: f64,
}

impl Occupancy {
    /// Makes empty sums. `looks_at_nodes` adds the memory of each node, which takes a scan of all mappings.
    pub fn new(looks_at_nodes: bool) -> Self {
        Self {
            looks_at_nodes,
            ..Self::default()
        }
    }

    /// Adds the time since the last call, and samples the memory; call it after each step.
    pub fn look(&mut self, simulation: &Simulation) {
        let time = simulation.machine().now();
        let seconds = time.since(self.looked).as_secs_f64();
        if let Some(was) = self.now.filter(|_| seconds > 0.0) {
            self.seconds += seconds;
            self.sums.add(&was, seconds);
            // A step is much shorter than a second, so it may count for either of two.
            let second = (self.looked.0 / 1_000_000_000) as usize;
            if self.near.len() <= second {
                self.near.resize(second + 1, (0.0, 0.0));
            }
            let (sum, part) = &mut self.near[second];
            *sum += was.near() * seconds;
            *part += seconds;
        }
        self.looked = time;
        self.now = self.occupied(simulation);
        let resident = self.now.map_or(0.0, |now| now.resident);
        self.resident_max = self.resident_max.max(resident);
    }

    fn occupied(&self, simulation: &Simulation) -> Option<Occupied> {
        let machine = simulation.machine();
        let mut now = Occupied::default();
        let mut runs = false;
        for (place, process) in machine.processes().iter().enumerate() {
            if !process.is_running() {
                continue;
            }
            runs = true;
            now.resident += process.rss() as f64;
            now.swapped += process.swapped() as f64;
            now.huge += process.huge() as f64;
            if self.looks_at_nodes {
                let nodes = 1..machine.memory().nr_nodes();
                let of_node = |node| machine.anon_on(TargetId(place as u32), node);
                now.far += (nodes.map(of_node).sum::<u64>() * PAGE_SIZE) as f64;
            }
        }
        let pool = machine.swap().map_or(0, Swap::pool_pages);
        now.pool = (pool * PAGE_SIZE) as f64;
        runs.then_some(now)
    }

    /// Time in which a process ran.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Returns the means over that time.
    pub fn mean(&self) -> Occupied {
        let mut mean = Occupied::default();
        mean.add(&self.sums, 1.0 / self.seconds.max(1e-9));
        mean
    }

    /// Largest resident memory at any time.
    pub fn resident_max(&self) -> f64 {
        self.resident_max
    }

    /// Record length that [`Self::steady_near`] needs: twice the minimum age.
    pub const fn needed_for(idle_for: Nanos) -> Nanos {
        Nanos(idle_for.0.saturating_mul(2))
    }

    /// Mean memory on the first node without the beginning, in which no memory could be idle for `idle_for`. `None` if
    /// the beginning is more than half of the time.
    pub fn steady_near(&self, idle_for: Nanos) -> Option<f64> {
        if Self::needed_for(idle_for).as_secs_f64() > self.seconds {
            return None;
        }
        let first = idle_for.0.div_ceil(1_000_000_000) as usize;
        let after = self.near.iter().skip(first);
        let (sum, seconds) = after.fold((0.0, 0.0), |(sum, all), (of, seconds)| {
            (sum + of, all + seconds)
        });
        (seconds > 0.0).then(|| sum / seconds)
    }

    /// Mean memory on the first node for each second in which a process ran.
    pub fn near_by_second(&self) -> Vec<u64> {
        let ran = self.near.iter().filter(|(_, seconds)| *seconds > 0.0);
        ran.map(|(sum, seconds)| (sum / seconds) as u64).collect()
    }
}

impl Occupied {
    /// Resident memory on the first node.
    pub fn near(&self) -> f64 {
        self.resident - self.far
    }

    fn add(&mut self, other: &Self, times: f64) {
        self.resident += other.resident * times;
        self.swapped += other.swapped * times;
        self.pool += other.pool * times;
        self.far += other.far * times;
        self.huge += other.huge * times;
    }
}
