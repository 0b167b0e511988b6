//! The view on made-up items, drawn into a buffer.

use std::collections::BTreeMap;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use isotherm_engine::frames::AgeBytes;
use isotherm_engine::page_cache::{CachedBytes, PAGE_CACHE};
use isotherm_engine::{
    AddressRange, Cost, Nanos, RegionMemory, RegionSnapshot, Snapshot, TargetId,
};
use isotherm_record::{
    CacheSample, CachedMemory, CostSample, Item, MachineSample, Mapping, MappingChange, TargetExit,
    TargetStart, UsageSample,
};
use isotherm_render::colour::Palette;
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
        memory: None,
    }
}

fn state() -> State {
    let mut state = State::new("", Palette::Plain);
    let target = TargetId(0);
    let time = Nanos(0);
    state.update(&Item::TargetStart(TargetStart {
        time,
        target,
        pid: 42,
        name: "redis".into(),
        context: None,
    }));
    let heap = Mapping {
        range: AddressRange::new(64 * MIB, 128 * MIB),
        permissions: "rw-p".into(),
        name: "[heap]".into(),
        unreclaimable: None,
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
        ..Snapshot::default()
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

/// Compares with the picture in `golden/`; UPDATE_GOLDEN=1 writes it anew.
fn check(state: &State, width: u16, height: u16, name: &str) {
    let shown = picture(state, width, height);
    let path = format!("{}/src/view/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &shown).expect("written");
    }
    let golden = std::fs::read_to_string(&path).expect("a golden picture");
    assert_eq!(shown, golden, "see {path}; now:\n{shown}");
}

#[test]
fn a_terminal_of_any_size_shows_what_matters_most() {
    for (width, height, name) in [
        (120, 34, "wide"),
        // The lists are one above the other.
        (80, 24, "usual"),
        (60, 14, "small"),
        (40, 12, "narrow"),
    ] {
        check(&state(), width, height, name);
    }
    let mut helping = state();
    helping.help = true;
    check(&helping, 80, 24, "help");
}

#[test]
fn colours_show_heat_where_the_terminal_has_them() {
    use ratatui::style::Color;
    let mut state = state();
    for (palette, hottest) in [
        (Palette::TrueColour, Color::Rgb(252, 250, 190)),
        (Palette::Colours256, Color::Indexed(229)),
    ] {
        state.palette = palette;
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a buffer");
        terminal.draw(|frame| draw(frame, &state)).expect("drawn");
        // The first cell of the bar, below the heading, the gauges and the title.
        assert_eq!(terminal.backend().buffer()[(0, 4)].bg, hottest);
    }
}

#[test]
fn the_past_stands_below_the_present() {
    let mut state = state();
    let target = TargetId(0);
    for second in 1..4u64 {
        let end = Nanos(second * 1_000_000_000);
        let hot = if second % 2 == 0 { 20.0 } else { 0.0 };
        state.update(&Item::Snapshot(Snapshot {
            target,
            start: end - Nanos(400_000_000),
            end,
            nr_samples: 20,
            regions: vec![region(64 * MIB, 32, Some(hot), 1)],
            ..Snapshot::default()
        }));
    }
    let shown = picture(&state, 80, 40);
    let below_title = shown
        .lines()
        .skip_while(|line| !line.contains("heat by"))
        .skip(1);
    let bars: Vec<char> = below_title.filter_map(|line| line.chars().next()).collect();
    // Now, the addresses, a second ago, two seconds ago.
    assert_eq!(bars[..4], ['·', '0', '█', '·'], "{shown}");
}

#[test]
fn only_memory_is_shown_as_hot_or_idle() {
    let mut state = state();
    let memory = RegionMemory {
        resident: 8 * MIB,
        touched: 2 * MIB,
        unknown: MIB,
        swapped: 16 * MIB,
    };
    let sparse = RegionSnapshot {
        memory: Some(memory),
        ..region(64 * MIB, 64, Some(3.0), 9)
    };
    let hole = RegionSnapshot {
        memory: Some(RegionMemory::default()),
        ..region(1 << 40, 4096, Some(0.0), 99)
    };
    state.update(&Item::Snapshot(Snapshot {
        target: TargetId(0),
        start: Nanos(0),
        end: Nanos(400_000_000),
        nr_samples: 20,
        regions: vec![sparse, hole],
        ..Snapshot::default()
    }));
    let shown = picture(&state, 120, 34);
    assert!(
        shown.contains("working set is 25 % of 8 MiB resident"),
        "{shown}"
    );
    assert!(shown.contains("cold 0 B  0 regions"), "{shown}");
}

#[test]
fn a_stale_view_says_so() {
    let mut state = state();
    state.now = Some(Nanos(1_000_000_000));
    assert!(!picture(&state, 120, 34).contains("old:"));
    state.now = Some(Nanos(9_400_000_000));
    assert!(picture(&state, 120, 34).contains("9 s old: the budget is used up"));
}

fn resident(region: RegionSnapshot) -> RegionSnapshot {
    let memory = RegionMemory {
        resident: region.resident(),
        touched: region.touched(),
        ..RegionMemory::default()
    };
    RegionSnapshot {
        memory: Some(memory),
        ..region
    }
}

/// Four targets: redis of [`state`], a server of 900 MiB, a shell that has ended, and the page cache.
fn several() -> State {
    let mut state = state();
    for (id, name, mib) in [(1, "shell", 4), (2, "server", 900)] {
        let target = TargetId(id);
        state.update(&Item::TargetStart(TargetStart {
            time: Nanos(0),
            target,
            pid: 100 + id,
            name: name.into(),
            context: None,
        }));
        for end in 2..=3 {
            state.update(&Item::Snapshot(Snapshot {
                target,
                start: Nanos(0),
                end: Nanos(end * 400_000_000),
                nr_samples: 20,
                regions: vec![
                    resident(region(64 * MIB, mib / end, Some(3.0), 1)),
                    resident(region(1 << 40, mib - mib / end, Some(0.0), 150)),
                ],
                ..Snapshot::default()
            }));
        }
    }
    state.update(&Item::TargetExit(TargetExit {
        target: TargetId(1),
        ..TargetExit::default()
    }));
    let mut ages = AgeBytes::default();
    ages.idle[3] = 1500 * MIB;
    let bytes = CachedBytes {
        ages,
        ..CachedBytes::default()
    };
    state.update(&Item::Machine(MachineSample {
        page_cache: Some(CacheSample {
            memory: vec![CachedMemory {
                bytes,
                ..CachedMemory::default()
            }],
            ..CacheSample::default()
        }),
        ..MachineSample::default()
    }));
    state
}

#[test]
fn several_targets_are_a_list() {
    check(&several(), 80, 24, "list");
    let mut state = several();
    check(&state, 40, 12, "list-narrow");
    state.sort(true);
    state.sort(true);
    let by_idle = picture(&state, 40, 12);
    assert!(by_idle.contains("resident idle 5 s"), "{by_idle}");
}

#[test]
fn a_target_of_the_list_is_opened_and_left_again() {
    let mut state = several();
    let shown = |state: &State| state.target().map(|(_, target)| target.name.clone());
    let mut press = |code| {
        let goes_on = super::press(&mut state, KeyEvent::new(code, KeyModifiers::NONE));
        goes_on.then(|| shown(&state).unwrap_or_default())
    };
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(press(KeyCode::Down), named(""));
    assert_eq!(press(KeyCode::Enter), named("server"));
    assert_eq!(press(KeyCode::Char('t')), named("redis"));
    assert_eq!(press(KeyCode::Esc), named(""));
    assert_eq!(
        press(KeyCode::Enter),
        named("redis"),
        "the cursor is where it was"
    );
    assert_eq!(press(KeyCode::Char('o')), named(""));
    // The earlier order by size continues by name: server is after redis.
    assert_eq!(press(KeyCode::Left), named(""));
    assert_eq!(press(KeyCode::Down), named(""));
    assert_eq!(press(KeyCode::Enter), named("server"));
    assert_eq!(press(KeyCode::Esc), named(""));
    assert_eq!(press(KeyCode::Home), named(""));
    assert_eq!(press(KeyCode::Enter), named("page cache"));
    let page_cache = picture(&state, 130, 24);
    assert!(
        page_cache.contains("(other files)") && page_cache.contains("30 s"),
        "{page_cache}"
    );
    assert_eq!(state.opened, Some(PAGE_CACHE));
    state.back();
    assert!(!super::press(
        &mut state,
        KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)
    ));
}

#[test]
fn keys_act_on_the_state() {
    let mut state = state();
    let mut press = |code, modifiers| super::press(&mut state, KeyEvent::new(code, modifiers));
    let none = KeyModifiers::NONE;
    assert!(press(KeyCode::Char('?'), none));
    assert!(press(KeyCode::Char('q'), none), "closes the help only");
    // One region is in each list, so there is nothing to scroll.
    assert!(press(KeyCode::PageDown, none));
    assert!(press(KeyCode::Char('t'), none));
    assert!(press(KeyCode::Char('p'), none));
    assert!(!press(KeyCode::Char('q'), none));
    assert!(!press(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert_eq!((state.scroll, state.help, state.paused), (0, false, true));
}

#[test]
fn any_size_is_drawn() {
    let state = state();
    for (width, height) in [(1, 1), (40, 12), (60, 13), (99, 20), (300, 80)] {
        picture(&state, width, height);
    }
    assert!(picture(&state, 20, 5).contains("too small"));
    picture(&State::new("", Palette::Plain), 80, 24);
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
