//! Memory under any order of allocations, releases, compaction and migration while things go wrong.

use isotherm_engine::Nanos;
use isotherm_policy::compaction::CompactionAttributes;
use isotherm_sim::compaction::Scanners;
use isotherm_sim::cost::PUBLISHED_MACHINE;
use isotherm_sim::fault::Faults;
use isotherm_sim::kcompactd::Kcompactd;
use isotherm_sim::memory::{Memory, NodeSize, Owner, Page, Pfn};
use proptest::prelude::*;

const NODE_PAGES: u64 = 4 * 1024;
const PAGES: u64 = 6 * 1024;

/// A random event.
#[derive(Clone, Debug)]
enum Event {
    /// Free pages of a block are put into memory.
    Fill {
        block: u64,
        order: u8,
        first: u32,
    },
    /// A page is freed.
    Free {
        page: u64,
    },
    /// The kernel allocates a block.
    Kernel {
        node: usize,
        order: u8,
    },
    Release,
    /// Compaction makes some steps.
    Compact {
        node: usize,
        steps: u8,
    },
    /// A range is migrated from a node to the other.
    Migrate {
        node: u32,
        at: u64,
        pages: u64,
    },
    /// A node becomes full for all allocations, or stops being full.
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
        2 => (0..PAGES).prop_map(|page| Event::Free { page }),
        1 => (node.clone(), 0_u8..=10).prop_map(|(node, order)| Event::Kernel { node, order }),
        1 => Just(Event::Release),
        3 => (node.clone(), 1_u8..40).prop_map(|(node, steps)| Event::Compact { node, steps }),
        3 => (0_u32..2, 0..NODE_PAGES, 1_u64..2_000)
            .prop_map(|(node, at, pages)| Event::Migrate { node, at, pages }),
        1 => (node, any::<bool>()).prop_map(|(node, is_full)| Event::Full { node, is_full }),
    ]
}

struct World {
    memory: Memory,
    scanners: Vec<Scanners>,
    kernel: Vec<(Pfn, u8)>,
    moved: u64,
}

impl World {
    fn new(migration_permil: u32, contention_permil: u32) -> Self {
        let node = NodeSize {
            zones: vec![("Normal", NODE_PAGES)],
        };
        let mut memory = Memory::new(&[node.clone(), node]);
        memory.add_pages(PAGES);
        let faults = Faults::new(migration_permil, contention_permil, 3);
        let scanner = |zone| Scanners::new(&memory, zone).with_faults(faults.clone());
        Self {
            scanners: (0..2).map(scanner).collect(),
            memory,
            kernel: Vec::new(),
            moved: 0,
        }
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Fill {
                block,
                order,
                first,
            } => self.fill(block * 16, order, first),
            Event::Free { page } => self.memory.free_page(page as Page),
            Event::Kernel { node, order } => {
                let frame = self.memory.allocate_kernel(node, order);
                self.kernel.extend(frame.map(|frame| (frame, order)));
            }
            Event::Release => {
                if let Some((frame, order)) = self.kernel.pop() {
                    self.memory.free_kernel(frame, order);
                }
            }
            Event::Compact { node, steps } => {
                for _ in 0..steps {
                    self.scanners[node].step(&mut self.memory, &PUBLISHED_MACHINE);
                }
            }
            Event::Migrate { node, at, pages } => self.migrate(node, at, pages),
            Event::Full { node, is_full } => {
                let pages = if is_full { NODE_PAGES } else { 0 };
                self.memory.set_watermark(node, pages);
            }
        }
    }

    /// Puts the pages on the first node that has a free block for all; page by page where none has.
    fn fill(&mut self, page: u64, order: u8, first: u32) {
        let block = page as Page..page as Page + (1 << order);
        if !block
            .clone()
            .all(|page| self.memory.frame_of(page).is_none())
        {
            return;
        }
        let mut place = |page, order| {
            let mut nodes = [first, 1 - first].into_iter();
            nodes.any(|node| (self.memory.allocate_pages(node as usize, order, page)).is_some())
        };
        if !place(block.start, order) {
            block.take_while(|page| place(*page, 0)).for_each(drop);
        }
    }

    /// Migrates runs of pages to the other node, as far as it has free memory.
    fn migrate(&mut self, node: u32, at: u64, pages: u64) {
        let frames = self.memory.frames_of(node);
        let (mut frame, end) = (
            frames.start + at,
            (frames.start + at + pages).min(frames.end),
        );
        while frame < end {
            let (owner, count) = self.memory.owners_from(frame, end);
            let mut left = count;
            while matches!(owner, Owner::Page(_)) && left > 0 {
                let from = frame + count - left;
                let moved = self.memory.migrate_run(from, left, 1 - node as usize);
                assert!(moved <= left);
                if moved == 0 {
                    return;
                }
                self.moved += moved;
                left -= moved;
            }
            frame += count;
        }
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
                let places = world.memory.check();
                prop_assert_eq!(places, Ok(()), "after {:?}", event);
            }
            for scanners in &mut world.scanners {
                scanners.release(&mut world.memory);
            }
            let places = world.memory.check();
            prop_assert_eq!(places, Ok(()), "after the last");
            Ok(world)
        };
        let (one, other) = (run()?, run()?);
        prop_assert_eq!(one.memory.free_pages(), other.memory.free_pages());
        prop_assert_eq!(one.moved, other.moved);
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
    assert!(thread.status.nr_back_offs > 0, "{thread:?}");
    assert!(thread.moved > 0, "{thread:?}");
    scanners[0].release(&mut memory);
    memory.check().expect("every frame is in one place");
}
