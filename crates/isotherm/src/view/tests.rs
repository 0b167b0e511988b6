//! The view on made-up items, drawn into a buffer.

use std::collections::BTreeMap;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use isotherm_engine::page_cache::PAGE_CACHE;
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
    let range = AddressRange::new(start, start + mib * MIB);
    RegionSnapshot::new(range, nr_accesses).aged(1, Nanos(age_s * 1_000_000_000))
}

fn start(id: u32, pid: u32, name: &str) -> Item {
    Item::TargetStart(TargetStart::new(Nanos(0), TargetId(id), pid, name))
}

fn snapshot(id: u32, end_ms: u64, regions: Vec<RegionSnapshot>) -> Item {
    let times = (Nanos(0), Nanos::from_millis(end_ms));
    Item::Snapshot(Snapshot::new(TargetId(id), times, 20, regions))
}

fn state() -> State {
    let mut state = State::new("", Palette::Plain);
    state.update(&start(0, 42, "redis"));
    let heap = Mapping::private(AddressRange::new(64 * MIB, 128 * MIB), "[heap]");
    let mappings = MappingChange::adding(Nanos(0), TargetId(0), vec![heap]);
    state.update(&Item::Mappings(mappings));
    let regions = vec![
        region(64 * MIB, 32, Some(20.0), 3),
        region(96 * MIB, 32, Some(0.0), 9),
        region(1 << 40, 16, None, 9),
    ];
    state.update(&snapshot(0, 400, regions));
    state.update(&Item::Usage(UsageSample {
        rss: BTreeMap::from([(0, 80 * MIB)]),
        ..UsageSample::default()
    }));
    for second in 1..=2 {
        let cost = Cost {
            monitor_cpu: Nanos(second * 10_000_000),
            clears: second * 50,
            ..Cost::default()
        };
        state.update(&Item::Cost(CostSample {
            time: Nanos(second * 1_000_000_000),
            cost,
            ..CostSample::default()
        }));
    }
    state
}

fn picture(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a buffer");
    terminal.draw(|frame| draw(frame, state)).expect("drawn");
    let cells = &terminal.backend().buffer().content;
    let mut shown = String::new();
    for row in cells.chunks(usize::from(width)) {
        shown.extend(row.iter().map(ratatui::buffer::Cell::symbol));
        shown.push('\n');
    }
    shown
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
    for second in 1..4u64 {
        let hot = if second % 2 == 0 { 20.0 } else { 0.0 };
        let regions = vec![region(64 * MIB, 32, Some(hot), 1)];
        state.update(&snapshot(0, 1000 * second, regions));
    }
    let shown = picture(&state, 80, 40);
    let from_title = shown.lines().skip_while(|line| !line.contains("heat by"));
    let below_title = from_title.skip(1);
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
    let sparse = region(64 * MIB, 64, Some(3.0), 9).holding(memory);
    let hole = region(1 << 40, 4096, Some(0.0), 99).holding(RegionMemory::default());
    state.update(&snapshot(0, 400, vec![sparse, hole]));
    let shown = picture(&state, 120, 34);
    for text in [
        "working set is 25 % of 8 MiB resident",
        "cold 0 B  0 regions",
    ] {
        assert!(shown.contains(text), "{shown}");
    }
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
    region.holding(memory)
}

/// Four targets: redis of [`state`], a server of 900 MiB, a shell that has ended, and the page cache.
fn several() -> State {
    let mut state = state();
    for (id, name, mib) in [(1, "shell", 4), (2, "server", 900)] {
        state.update(&start(id, 100 + id, name));
        for end in 2..=3 {
            let regions = vec![
                resident(region(64 * MIB, mib / end, Some(3.0), 1)),
                resident(region(1 << 40, mib - mib / end, Some(0.0), 150)),
            ];
            state.update(&snapshot(id, 400 * end, regions));
        }
    }
    state.update(&Item::TargetExit(TargetExit {
        target: TargetId(1),
        ..TargetExit::default()
    }));
    let mut memory = CachedMemory::default();
    memory.bytes.ages.idle[3] = 1500 * MIB;
    state.update(&Item::Machine(MachineSample {
        page_cache: Some(CacheSample {
            memory: vec![memory],
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
    let keys = [
        (KeyCode::Down, ""),
        (KeyCode::Enter, "server"),
        (KeyCode::Char('t'), "redis"),
        (KeyCode::Esc, ""),
        // The cursor is where it was.
        (KeyCode::Enter, "redis"),
        (KeyCode::Char('o'), ""),
        // The earlier order by size continues by name: server is after redis.
        (KeyCode::Left, ""),
        (KeyCode::Down, ""),
        (KeyCode::Enter, "server"),
        (KeyCode::Esc, ""),
        (KeyCode::Home, ""),
        (KeyCode::Enter, "page cache"),
    ];
    for (at, (code, name)) in keys.into_iter().enumerate() {
        assert!(press(&mut state, code), "key {at}");
        assert_eq!(shown(&state).unwrap_or_default(), name, "key {at}");
    }
    let page_cache = picture(&state, 130, 24);
    for text in ["(other files)", "30 s"] {
        assert!(page_cache.contains(text), "{page_cache}");
    }
    assert_eq!(state.opened, Some(PAGE_CACHE));
    state.back();
    assert!(!press(&mut state, KeyCode::Esc));
}

fn press(state: &mut State, code: KeyCode) -> bool {
    super::press(state, KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn keys_act_on_the_state() {
    let mut state = state();
    assert!(press(&mut state, KeyCode::Char('?')));
    let goes_on = press(&mut state, KeyCode::Char('q'));
    assert!(goes_on, "it closes the help only");
    // One region is in each list, so there is nothing to scroll.
    for key in [KeyCode::PageDown, KeyCode::Char('t'), KeyCode::Char('p')] {
        assert!(press(&mut state, key));
    }
    assert!(!press(&mut state, KeyCode::Char('q')));
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(!super::press(&mut state, ctrl_c));
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
    state.update(&snapshot(0, 0, Vec::new()));
    assert_eq!(picture(&state, 120, 24), before);
}
