//! Events of a simulation as items of a record, so that all reports work on them.

use isotherm_engine::PAGE_SIZE;
use isotherm_record::{
    ActionSample, CompactionSample, CostSample, FragmentationSample, GuardSample, Item, Mapping,
    MappingChange, TargetExit, TargetStart, UsageSample,
};
use isotherm_sim::kcompactd::Round;
use isotherm_sim::machine::Use;
use isotherm_sim::simulation::{Event, Simulation};

/// Returns the items of an event; `names` are those of the contexts.
pub(super) fn items(names: &[Option<String>], event: &Event, simulation: &Simulation) -> Vec<Item> {
    let time = simulation.machine().now();
    match event {
        Event::Started {
            target,
            context,
            name,
            mappings,
        } => {
            let added = mappings.iter().map(|(name, range, purpose)| Mapping {
                unreclaimable: match purpose {
                    Use::Unreclaimable(why) => Some(*why),
                    _ => None,
                },
                ..Mapping::private(*range, format!("[{name}]"))
            });
            vec![
                Item::TargetStart(TargetStart {
                    context: names[*context].clone(),
                    ..TargetStart::new(time, *target, 0, name.clone())
                }),
                Item::Mappings(MappingChange::adding(time, *target, added.collect())),
            ]
        }
        Event::Ended { target, was_killed } => {
            vec![Item::TargetExit(TargetExit {
                time,
                target: *target,
                exit_code: (!was_killed).then_some(0),
                signal: was_killed.then_some(9),
            })]
        }
        Event::Snapshot(snapshot) => vec![Item::Snapshot(snapshot.clone())],
        Event::Guard { context, status } => vec![Item::Guard(GuardSample {
            time,
            context: names[*context].clone(),
            status: *status,
        })],
        Event::Acted {
            context,
            is_dry_run,
            done,
            outcomes,
        } => {
            let name = names[*context].as_deref();
            let samples = ActionSample::of_schemes(time, name, *is_dry_run, done, outcomes);
            samples.into_iter().map(Item::Action).collect()
        }
        Event::Compacted(round) => vec![compaction(round)],
        Event::Second => {
            let nodes = 0..simulation.machine().memory().nr_nodes();
            let mut items: Vec<Item> = nodes.map(|n| fragmentation(n, simulation)).collect();
            items.extend([usage(simulation), cost(simulation)]);
            items
        }
    }
}

fn compaction(round: &Round) -> Item {
    Item::Compaction(CompactionSample {
        time: round.time,
        node: round.node,
        score_before: round.score_before,
        score_after: round.score_after,
        ended: round.ended.name().to_owned(),
        took: round.took,
        cpu: round.took,
        migrate_scanned: round.migrate_scanned,
        free_scanned: round.free_scanned,
        // Moved pages and their destinations.
        isolated: 2 * round.moved,
    })
}

fn fragmentation(node: u32, simulation: &Simulation) -> Item {
    let machine = simulation.machine();
    let (attributes, facts, status) = machine.fragmentation(node);
    Item::Fragmentation(FragmentationSample {
        time: machine.now(),
        attributes,
        facts,
        status,
    })
}

fn usage(simulation: &Simulation) -> Item {
    let machine = simulation.machine();
    let processes = machine.processes().iter().enumerate();
    let running = processes.filter(|(_, process)| process.is_running());
    let (mut rss, mut swap) = (
        std::collections::BTreeMap::new(),
        std::collections::BTreeMap::new(),
    );
    for (index, process) in running {
        for target in simulation.targets_of(index) {
            rss.insert(target.0, process.rss());
            swap.insert(target.0, process.swapped());
        }
    }
    let free = machine.memory().free_pages() * PAGE_SIZE;
    Item::Usage(UsageSample {
        time: machine.now(),
        rss,
        swap,
        system_total: machine.memory().pages() * PAGE_SIZE,
        system_free: free,
        system_available: free,
        ..UsageSample::default()
    })
}

/// Returns the cost of all contexts together, with the shortest intervals.
fn cost(simulation: &Simulation) -> Item {
    let contexts = 0..simulation.nr_contexts();
    let watching = contexts.map(|at| (simulation.watching(at), simulation.cost(at)));
    let sample = watching.map(|((intervals, unknown), cost)| CostSample {
        time: simulation.machine().now(),
        cost,
        sample_interval: intervals.sample,
        aggregation_interval: intervals.aggregation,
        monitor_rss: 0,
        unknown,
    });
    let together = sample.reduce(|a, b| CostSample {
        cost: a.cost.plus(b.cost),
        sample_interval: a.sample_interval.min(b.sample_interval),
        aggregation_interval: a.aggregation_interval.min(b.aggregation_interval),
        unknown: a.unknown + b.unknown,
        ..a
    });
    Item::Cost(together.expect("there are contexts"))
}
