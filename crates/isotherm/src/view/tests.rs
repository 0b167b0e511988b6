//! The view on made-up items, drawn into a buffer.

use std::collections::BTreeMap;

use isotherm_engine::{AddressRange, Cost, Nanos, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::{CostSample, Item, Mapping, MappingChange, TargetStart, UsageSample};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw::draw;
use super::state::State;

const MIB: u64 = 1 << 20;

fn region(start: u64, mib: u64, nr_accesses: Option<f32>, age_s: u64) -> RegionSnapshot {
    RegionSnapshot {
        range: AddressRange::new(start, start + mib * MIB),
        nr_accesses,
        age: 1,
        age_ns: Nanos(age_s * 1_000_000_000),
    }
}

fn state() -> State {
    let mut state = State::new("--pid 42");
    let target = TargetId(0);
    let time = Nanos(0);
    state.update(&Item::TargetStart(TargetStart {
        time,
        target,
        pid: 42,
        name: "redis".into(),
    }));
    let heap = Mapping {
        range: AddressRange::new(64 * MIB, 128 * MIB),
        permissions: "rw-p".into(),
        name: "[heap]".into(),
    };
    let added = vec![heap];
    state.update(&Item::Mappings(MappingChange {
        time,
        target,
        removed: Vec::new(),
        added,
    }));
    let regions = vec![
        region(64 * MIB, 32, Some(20.0), 3),
        region(96 * MIB, 32, Some(0.0), 9),
        region(1 << 40, 16, None, 9),
    ];
    let snapshot = Snapshot {
        target,
        start: time,
        end: Nanos(400_000_000),
        nr_samples: 20,
        regions,
    };
    state.update(&Item::Snapshot(snapshot));
    let rss = BTreeMap::from([(0, 80 * MIB)]);
    state.update(&Item::Usage(UsageSample {
        time,
        rss,
        ..UsageSample::default()
    }));
    for second in 1..=2 {
        let cost = Cost {
            monitor_cpu: Nanos(second * 10_000_000),
            clears: second * 50,
            ..Cost::default()
        };
        let time = Nanos(second * 1_000_000_000);
        state.update(&Item::Cost(CostSample {
            time,
            cost,
            ..CostSample::default()
        }));
    }
    state
}

fn picture(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a buffer");
    terminal.draw(|frame| draw(frame, state)).expect("drawn");
    let buffer = terminal.backend().buffer().clone();
    let rows = buffer.content.chunks(usize::from(width));
    rows.map(|row| {
        row.iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect::<String>()
            + "\n"
    })
    .collect()
}

#[test]
fn regions_working_set_and_cost_are_shown() {
    let shown = picture(&state(), 120, 24);
    for expected in [
        "redis (pid 42)",
        "hottest of 1 regions",
        "coldest of 1 regions",
        "[heap]",
        "working set 32 MiB of 80 MiB resident",
        "unknown 16 MiB",
        "cost 1.00 % of a CPU",
        "50 clears/s",
    ] {
        assert!(shown.contains(expected), "{expected} is missing:\n{shown}");
    }
    assert!(
        shown.contains('█') && shown.contains('·') && shown.contains('?'),
        "{shown}"
    );
    assert!(shown.contains('~'), "the gap is marked:\n{shown}");
}

#[test]
fn any_size_is_drawn() {
    let state = state();
    for (width, height) in [(1, 1), (40, 12), (60, 13), (99, 20), (300, 80)] {
        picture(&state, width, height);
    }
    assert!(picture(&state, 20, 5).contains("too small"));
    picture(&State::new(""), 80, 24);
}

#[test]
fn a_paused_view_stands_still() {
    let mut state = state();
    state.paused = true;
    let before = picture(&state, 120, 24);
    let snapshot = Snapshot {
        target: TargetId(0),
        nr_samples: 20,
        ..Snapshot::default()
    };
    state.update(&Item::Snapshot(snapshot));
    assert_eq!(picture(&state, 120, 24), before);
}
