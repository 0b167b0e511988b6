//! Memory under any order of allocations, releases, compaction and migration while things go wrong.

use isotherm_engine::compaction::CompactionAttributes;
use isotherm_engine::scheme::{Action, Destination, OpsFilter};
use isotherm_engine::{AddressRange, Nanos, Operation, PAGE_SIZE, TargetId};
use isotherm_sim::access::{Rates, Use};
use isotherm_sim::compaction::Scanners;
use isotherm_sim::cost::{PUBLISHED_MACHINE, PUBLISHED_TIERS};
use isotherm_sim::fault::Faults;
use isotherm_sim::kcompactd::Kcompactd;
use isotherm_sim::memory::{Memory, NodeSize, Page, Pfn};
use isotherm_sim::tiers::TieredMachine;
use proptest::prelude::*;

const NODE_PAGES: u64 = 4 * 1024;
/// The first pages are page cache.
const CACHE: u64 = 1024;
const PAGES: u64 = 6 * 1024;

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    /// A block of pages comes to memory.
    Fill {
        block: u64,
        order: u8,
        first: u32,
    },
    /// A page goes.
    Free {
        page: u64,
    },
    /// The kernel takes a block, or gives its oldest back.
    Kernel {
        node: usize,
        order: u8,
    },
    Release,
    /// Some steps of compaction.
    Compact {
        node: usize,
        steps: u8,
    },
    /// A range is migrated from a node to the other.
    Migrate {
        node: u32,
        at: u64,
        pages: u64,
        young: Option<bool>,
    },
    /// A node is full for all who ask, or no more.
    Full {
        node: usize,
        is_full: bool,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let node = 0_usize..2;
    prop_oneof![
        4 => (0..PAGES / 16, 0_u8..=4, 0_u32..2)
            .prop_map(|(block, order, first)| Event::Fill { block, order, first }),
        2 => (CACHE..PAGES).prop_map(|page| Event::Free { page }),
        1 => (node.clone(), 0_u8..=10).prop_map(|(node, order)| Event::Kernel { node, order }),
        1 => Just(Event::Release),
        3 => (node.clone(), 1_u8..40).prop_map(|(node, steps)| Event::Compact { node, steps }),
        3 => (0_u32..2, 0..NODE_PAGES, 1_u64..2_000, any::<Option<bool>>())
            .prop_map(|(node, at, pages, young)| Event::Migrate { node, at, pages, young }),
        1 => (node, any::<bool>()).prop_map(|(node, is_full)| Event::Full { node, is_full }),
    ]
}

struct World {
    machine: TieredMachine,
    scanners: Vec<Scanners>,
    kernel: Vec<(Pfn, u8)>,
    now: Nanos,
}

impl World {
    fn new(migration_permil: u32, contention_permil: u32) -> Self {
        let faults = |seed| Faults::new(migration_permil, contention_permil, seed);
        let nodes = [(NODE_PAGES, 0), (NODE_PAGES, 0)];
        let mut machine = TieredMachine::new(&nodes, PUBLISHED_TIERS, 1);
        let cache = machine.memory.add_pages(CACHE);
        machine.accesses.add(cache.clone(), Use::File, Rates::Never);
        machine.set_page_cache(cache);
        let rest = machine.memory.add_pages(PAGES - CACHE);
        machine.accesses.add(rest, Use::Anon, Rates::Even(0.5));
        machine.set_faults(faults(2));
        let scanner = |zone| Scanners::new(&machine.memory, zone).with_faults(faults(3));
        Self {
            scanners: (0..2).map(scanner).collect(),
            machine,
            kernel: Vec::new(),
            now: Nanos(0),
        }
    }

    fn happen(&mut self, event: &Event) {
        self.now = self.now + Nanos::from_millis(100);
        match *event {
            Event::Fill {
                block,
                order,
                first,
            } => self.fill(block * 16, order, first),
            Event::Free { page } => self.machine.memory.free_page(page as Page),
            Event::Kernel { node, order } => {
                let frame = self.machine.memory.allocate_kernel(node, order);
                self.kernel.extend(frame.map(|frame| (frame, order)));
            }
            Event::Release => {
                if let Some((frame, order)) = self.kernel.pop() {
                    self.machine.memory.free_kernel(frame, order);
                }
            }
            Event::Compact { node, steps } => {
                for _ in 0..steps {
                    self.scanners[node].step(&mut self.machine.memory, &PUBLISHED_MACHINE);
                }
            }
            Event::Migrate {
                node,
                at,
                pages,
                young,
            } => self.migrate(node, at, pages, young),
            Event::Full { node, is_full } => {
                let pages = if is_full { NODE_PAGES } else { 0 };
                self.machine.memory.set_watermark(node, pages);
            }
        }
    }

    fn fill(&mut self, page: u64, order: u8, first: u32) {
        let block = page as Page..page as Page + (1 << order);
        let memory = &self.machine.memory;
        if block.clone().all(|page| memory.frame_of(page).is_none()) {
            self.machine
                .populate(block.start, order, &[first, 1 - first]);
        }
    }

    fn migrate(&mut self, node: u32, at: u64, pages: u64, young: Option<bool>) {
        let start = self.machine.range_of(node).start + at * PAGE_SIZE;
        let end = (start + pages * PAGE_SIZE).min(self.machine.range_of(node).end);
        let operation = Operation {
            scheme: 0,
            action: Action::MigrateCold,
            destinations: vec![Destination {
                node: 1 - node,
                weight: 1,
            }],
            target: TargetId(0),
            range: AddressRange::new(start, end),
            bytes: end - start,
            filters: young
                .map(|young| (OpsFilter::Young, young, false))
                .into_iter()
                .collect(),
            pass_unmatched: true,
            idle_only: true,
        };
        let mut moves = Vec::new();
        let outcomes = self.machine.act(&[operation], self.now, &mut moves);
        assert_eq!(outcomes[0].applied, moves.len() as u64 * PAGE_SIZE);
        let refused: u64 = outcomes[0].refused.values().sum();
        assert!(outcomes[0].applied + refused <= end - start);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_fails_everything_is_in_one_place(
        events in prop::collection::vec(event(), 1..60),
        migration_permil in prop_oneof![Just(0_u32), 1_u32..=1000],
        contention_permil in prop_oneof![Just(0_u32), 1_u32..=1000],
    ) {
        let run = || {
            let mut world = World::new(migration_permil, contention_permil);
            for event in &events {
                world.happen(event);
                let places = world.machine.check_places();
                prop_assert_eq!(places, Ok(()), "after {:?}", event);
            }
            for scanners in &mut world.scanners {
                scanners.release(&mut world.machine.memory);
            }
            let places = world.machine.check_places();
            prop_assert_eq!(places, Ok(()), "after the last");
            Ok(world)
        };
        let (one, other) = (run()?, run()?);
        prop_assert_eq!(one.machine.memory.free_pages(), other.machine.memory.free_pages());
        prop_assert_eq!(one.machine.moved(), other.machine.moved());
    }
}

#[test]
fn the_threads_back_off_from_contended_zones() {
    let nodes = [NodeSize {
        zones: vec![("Normal", NODE_PAGES)],
    }];
    let mut memory = Memory::new(&nodes);
    for _ in 0..8 {
        let pages = memory.add_pages(512);
        memory.allocate_pages(0, 9, pages.start).expect("room");
        memory.free_run(pages.start, 384);
    }
    let mut scanners = vec![Scanners::new(&memory, 0).with_faults(Faults::new(100, 300, 1))];
    let mut threads = Kcompactd::new(&memory, CompactionAttributes::default());
    let end = Nanos::from_millis(60_000);
    threads.run(end, &mut memory, &mut scanners, &PUBLISHED_MACHINE);
    let thread = threads.summary()[0];
    assert!(
        thread.status.nr_back_offs > 0 && thread.moved > 0,
        "{thread:?}"
    );
    scanners[0].release(&mut memory);
    memory.check().expect("every frame is in one place");
}
