//! Searches by replays of a small trace: the same bytes, whatever the number of jobs and interruptions.

use std::sync::{Arc, Mutex};

use isotherm_config::{ConfigFormat, ContextConfig, Request, load, preset, to_yaml};
use isotherm_engine::calibration::Calibration;
use isotherm_engine::{AddressRange, BLOCK_SIZE, Nanos, PAGES_PER_BLOCK};
use isotherm_session::simulated::{FarMemory, Replay};
use isotherm_sim::machine::{
    AreaSpec, MachineSpec, NodeSpec, Pattern, SimProcessSpec, SwapKind, Trace,
};

use super::*;

mod corpus;

/// The schemes of a preset, in a context.
pub(crate) fn contexts(name: &str) -> Vec<ContextConfig> {
    vec![ContextConfig {
        schemes: preset(name).expect("it is there").schemes,
        ..ContextConfig::default()
    }]
}

/// A space of the preset `prcl`, for a trace of this length with a scan each second.
pub(crate) fn prcl_space(params: &[&str], seconds: u64) -> Space {
    let times = TraceTimes {
        duration: Nanos::from_millis(1_000 * seconds),
        interval: Nanos::from_millis(1_000),
    };
    let params: Vec<String> = params.iter().map(|param| (*param).to_owned()).collect();
    Space::new(&params, &contexts("prcl"), times).expect("a space")
}

const SCANS: u64 = 40;

/// A program of four blocks: one in use all the time, one every ten seconds, one at first, one never.
fn replay() -> Replay {
    let pages = 4 * PAGES_PER_BLOCK as u32;
    let ends = (1..=SCANS).map(|scan| Nanos::from_millis(1000 * scan));
    let mut trace = Trace::new(ends.collect(), pages);
    for scan in 0..SCANS as usize {
        for page in 0..pages {
            let is_accessed = match page as usize / PAGES_PER_BLOCK {
                0 => true,
                1 => scan % 10 == 0,
                2 => scan < 3,
                _ => false,
            };
            trace.note(scan, page, is_accessed);
        }
    }
    trace.finish();
    let start = 0x7f00_0000_0000;
    let range = AddressRange::new(start, start + 4 * BLOCK_SIZE);
    let area = AreaSpec {
        huge: Some(false),
        ..AreaSpec::new("heap", range, Pattern::Trace(Arc::new(trace), 0))
    };
    Replay {
        processes: vec![(
            Nanos(0),
            SimProcessSpec {
                name: "program".to_owned(),
                work: Some(Nanos::from_millis(1000 * SCANS)),
                areas: vec![area],
                ..SimProcessSpec::default()
            },
        )],
        machine: MachineSpec {
            nodes: vec![NodeSpec::new(256 << 20)],
            swap: Some((SwapKind::Zram { ratio: 3.0 }, 256 << 20)),
            ..MachineSpec::default()
        },
        calibration: Calibration::default(),
        notes: Vec::new(),
        live: Vec::new(),
    }
}

fn plan() -> TuningPlan {
    let mut request = Request::default();
    request.acting.presets = vec!["prcl".to_owned()];
    TuningPlan::new(Vec::new(), request, Some(0.02)).expect("a plan")
}

/// Returns replays of a trace under a plan that are never stopped.
fn replays(plan: &TuningPlan, of: Replay) -> Replays {
    let watching = plan.watching().expect("a session");
    let replays = Replays::new(&watching, of, Arc::<AtomicBool>::default()).expect("it runs");
    replays.expect("not stopped")
}

fn predicted(planned: &PlannedReplays<'_>, settings: &Settings) -> Prediction {
    let predicted = planned.evaluate(settings).expect("it runs");
    predicted.expect("not stopped")
}

fn planned<'a>(replays: &'a Replays, plan: &'a TuningPlan) -> PlannedReplays<'a> {
    PlannedReplays { replays, plan }
}

fn space(plan: &TuningPlan, params: &[&str]) -> Space {
    let (times, _) = trace_facts(&replay()).expect("a trace");
    let params: Vec<String> = params.iter().map(|param| (*param).to_owned()).collect();
    Space::new(&params, plan.contexts(), times).expect("a space")
}

const OBJECTIVE: Objective = Objective::Memory { max_slowdown: 0.02 };

fn tuned(
    jobs: usize,
    journal: Option<&mut Journal>,
    stop_after: usize,
) -> (String, SearchCompletion) {
    let (tuned, completion) = tuned_of("program", jobs, journal, stop_after);
    let json = serde_json::to_string_pretty(&tuned).expect("JSON");
    (json, completion)
}

fn tuned_of(
    program: &str,
    jobs: usize,
    journal: Option<&mut Journal>,
    stop_after: usize,
) -> (Tuned, SearchCompletion) {
    let (plan, stop) = (plan(), Arc::new(AtomicBool::new(false)));
    let (times, _) = trace_facts(&replay()).expect("a trace");
    let watching = plan.watching().expect("a session");
    let replays = Replays::new(&watching, replay(), Arc::clone(&stop)).expect("it runs");
    let replays = replays.expect("not stopped");
    let space = space(&plan, &["age=1s..30s", "size=4K..64K"]);
    let mut search = Search::new(space, OBJECTIVE, 24, 1, plan.contexts());
    let mut on_event = |event: SearchEvent<'_>| {
        if matches!(event, SearchEvent::Evaluated(nr) if nr >= stop_after) {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let planned = planned(&replays, &plan);
    let completion = run(&mut search, &planned, journal, jobs, &stop, &mut on_event).expect("runs");
    let base = replays.base();
    let subject = Subject {
        program,
        times,
        plan: &plan,
        objective: OBJECTIVE,
        base: &base,
        coarse: None,
        live: None,
    };
    let tuned = Tuned::of(&subject, &search, completion);
    assert!(!tuned.text().is_empty());
    (tuned, completion)
}

#[test]
fn neither_jobs_nor_an_interruption_change_a_byte() {
    let (alone, completion) = tuned(1, None, usize::MAX);
    assert_eq!(completion, SearchCompletion::Finished);
    assert_eq!(tuned(3, None, usize::MAX).0, alone);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let open = || Journal::open(&path, &Fingerprint::new(1, "")).expect("a journal");
    let (part, completion) = tuned(2, Some(&mut open()), 5);
    assert_eq!(completion, SearchCompletion::Stopped);
    assert!(part.contains("\"was_stopped\": true"), "{part}");
    assert!(part.contains("\"recommended\": {"), "{part}");
    let known = open().nr_known();
    assert!((5..24).contains(&known), "{known}");
    assert_eq!(tuned(2, Some(&mut open()), usize::MAX).0, alone);
    assert_eq!(open().nr_known(), 24);
}

#[test]
fn a_page_needs_nothing_else_and_names_are_harmless() {
    let plan = plan();
    let json = |name: &str| page(&tuned_of(name, 1, None, usize::MAX).0, &plan);
    let page = json("<script>alert('x')</script>\u{7}");
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script"));
    assert!(!page.contains("http://") || !page.contains("src="));
    let front = tuned_of("program", 1, None, usize::MAX).0.front;
    for number in 0..front.len() {
        let link = format!("href=\"#setting-{number}\"");
        let part = format!("id=\"setting-{number}\"");
        // One link is in the picture, and one in the table beside it.
        assert_eq!(page.matches(&link).count(), 2, "{link}");
        assert_eq!(page.matches(&part).count(), 1, "{part}");
    }
    assert_eq!(page.matches("class=\"tune-part best\"").count(), 1);
    assert!(page.contains("action: pageout") && page.contains("MiB resident"));
    assert!(page.ends_with("</html>\n") && !page.contains("NaN"));
}

#[test]
fn an_older_age_saves_less_and_loses_less() {
    let plan = plan();
    let replays = replays(&plan, replay());
    let space = space(&plan, &["age=3s,18s,40s"]);
    let planned = planned(&replays, &plan);
    let predicted = |n| predicted(&planned, &space.settings(&space.point(n)));
    let (young, old, never) = (predicted(0), predicted(1), predicted(2));
    assert!(young.saved_mean_bytes > old.saved_mean_bytes);
    // Left out are 3 s and 18 s of 40 s; 40 s of 40 s are too many.
    let steady = |of: &Prediction| of.steady_share.map(|share| share - of.saved_share.value);
    let known = [&young, &old].map(|of| steady(of).expect("known"));
    assert!((0.01..0.06).contains(&known[0]), "{young:?}");
    assert!((0.1..0.4).contains(&known[1]), "{old:?}");
    assert_eq!(steady(&never), None);
    assert_eq!(never.needed_ns, Some(Nanos::from_millis(80_000)));
    // Two blocks of four are saved for most of the time; the third until it is accessed again, after which the guard
    // keeps it.
    assert!((0.35..0.5).contains(&young.saved_share.value), "{young:?}");
    assert!((0.15..0.4).contains(&old.saved_share.value), "{old:?}");
    assert!(young.refaults >= PAGES_PER_BLOCK as u64 && old.refaults == 0);
    assert!(young.slowdown.value > old.slowdown.value);
    assert!(never.saved_mean_bytes.abs() < 1.0 && never.acting_cpu_seconds.value <= 0.0);
    let spec = plan.session(&space.settings(&space.point(0)));
    let sure = replays.bounded(&spec.expect("it fits"));
    let sure = sure.expect("it runs").expect("not stopped");
    let least = sure.saved_share.least();
    assert!(least < young.saved_share.value - 0.02, "{sure:?}");
    assert!(sure.slowdown.most() > young.slowdown.value, "{sure:?}");
    let differ = (sure.slowdown.value - young.slowdown.value).abs();
    assert!(differ < 1e-9, "the same in the middle");
    let base = replays.base();
    assert!(base.saved_mean_bytes.abs() < 1.0 && base.slowdown.value >= 0.0);
    assert!((base.resident_mean_bytes - never.resident_mean_bytes).abs() < 1.0);
}

#[test]
fn of_several_processes_memory_is_the_sum_until_the_last_has_ended() {
    let plan = plan();
    let spec = plan.session(&Settings::default()).expect("it fits");
    let predicted = |of: Replay| {
        let (times, digest) = trace_facts(&of).expect("a trace");
        let replays = replays(&plan, of);
        let predicted = replays.predicted(&spec).expect("it runs");
        let predicted = predicted.expect("not stopped");
        (predicted, replays.base(), times, digest)
    };
    let (one, base, times, digest) = predicted(replay());
    // The same program twice, and a program of one block that it never touches.
    let mut several = replay();
    several.processes.push(several.processes[0].clone());
    let mut waits = several.processes[0].1.clone();
    waits.areas[0].range.start += 3 * BLOCK_SIZE;
    if let Pattern::Trace(_, first) = &mut waits.areas[0].pattern {
        *first = 3 * PAGES_PER_BLOCK as u32;
    }
    several.processes.push((Nanos::from_millis(10_000), waits));
    several.machine.cpus = 8;
    let (all, base_of_all, times_of_all, other_digest) = predicted(several);
    assert_eq!(times.duration, times_of_all.duration);
    assert_eq!(times.interval, times_of_all.interval);
    assert_ne!(digest, other_digest);
    // Two of four blocks for 40 of 50 seconds, and one block for 40 seconds.
    let resident = base_of_all.resident_mean_bytes / base.resident_mean_bytes;
    assert!((1.75..1.85).contains(&resident), "{resident}");
    let ratio = all.saved_mean_bytes / one.saved_mean_bytes;
    assert!(ratio > 1.5, "{ratio}");
    assert!(all.refaults > one.refaults);
    let ends = all.seconds / one.seconds;
    assert!((1.2..1.3).contains(&ends), "one began later: {ends}");
}

#[test]
fn schemes_that_one_node_cannot_carry_out_are_refused() {
    let mut request = Request::default();
    request.acting.scheme_lines = vec!["4K max 0 0 5s max migrate_cold 1".to_owned()];
    let plan = TuningPlan::new(Vec::new(), request, None).expect("a plan");
    let replays = replays(&plan, replay());
    let evaluated = planned(&replays, &plan).evaluate(&Settings::default());
    let error = evaluated.expect_err("one node");
    assert!(error.to_string().contains("machine of one"), "{error}");
}

#[test]
fn far_memory_takes_what_is_cold_and_what_is_hot_there_costs_time() {
    let mut request = Request::default();
    request.acting.scheme_lines = vec!["4K max 0 0 3s max migrate_cold 1".to_owned()];
    request.acting.no_guard = true;
    let plan = TuningPlan::new(Vec::new(), request, None).expect("a plan");
    let mut tiered = replay();
    tiered.add_far(&FarMemory {
        bytes: 64 << 20,
        latency: Nanos(270),
        memory_bound: 0.5,
    });
    let replays = replays(&plan, tiered);
    let moved = predicted(&planned(&replays, &plan), &Settings::default());
    assert!((0.3..0.7).contains(&moved.saved_share.value), "{moved:?}");
    assert!((moved.far_mean_bytes - moved.saved_mean_bytes).abs() < 1.0);
    assert!(moved.slowdown.value > 0.0, "one block is used from afar");
    let base = replays.base();
    let prices = Prices::parse("dram=4,cxl=1").expect("prices");
    assert!(prices.of(&moved) < prices.of(&base));
    assert!(base.far_mean_bytes.abs() < 1.0);
}

#[test]
fn who_is_stopped_says_nothing() {
    let (plan, stop) = (plan(), Arc::new(AtomicBool::new(true)));
    let watching = plan.watching().expect("a session");
    let replays = Replays::new(&watching, replay(), stop).expect("it runs");
    assert!(replays.is_none());
}

#[test]
fn a_search_that_is_stopped_on_the_sample_gives_its_best_so_far() {
    let request = TuneRequest {
        presets: vec!["prcl".to_owned()],
        params: vec!["age=1s..30s".to_owned()],
        seed: 1,
        ..TuneRequest::default()
    };
    let tuning = request.of_trace(replay()).expect("a search");
    let stop = Arc::<AtomicBool>::default();
    let depth = depth::Depth {
        one_in: 2,
        nr_first: 24,
        nr_full: 8,
    };
    let mut on_event = |event: SearchEvent<'_>| {
        if matches!(event, SearchEvent::Evaluated(2..)) {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let sampled = tuning.search_sample(depth, 1, &stop, &mut on_event);
    let sampled = sampled.expect("it runs").expect("some results");
    assert_eq!(sampled.completion, SearchCompletion::Stopped);
    let (tuned, _) = tuning.result_of_sample(&sampled);
    assert!(tuned.was_stopped && tuned.nr_tried == 0);
    assert!(tuned.found.recommended.is_some() || tuned.found.nearest.is_some());
    let text = tuned.text();
    let said = "tried on one block in 2, none in full, then stopped";
    assert!(text.contains(said), "{text}");
}

#[test]
fn what_is_written_is_what_was_tried_under_its_guard() {
    let plan = plan();
    let space = space(&plan, &["age=7s", "size=8K", "quota=3M", "rate=1.5%"]);
    let configuration = plan.configuration(&space.settings(&space.point(0)));
    let read = load(&to_yaml(&configuration), ConfigFormat::Detect).expect("read again");
    assert_eq!(read.contexts, configuration.contexts);
    let scheme = &read.contexts[0].schemes[0];
    assert_eq!(scheme.pattern.size.min, 8192);
    assert_eq!(scheme.quota.bytes, 3 << 20);
    assert_eq!(scheme.quota.reset_interval, Nanos::from_millis(1000));
    assert_eq!(read.contexts[0].own.guard.max_slowdown, Some(0.02));
    // The presets are not changed.
    let unchanged = preset("prcl").expect("there").schemes;
    assert_eq!(plan.contexts()[0].schemes, unchanged);
}

#[test]
fn a_file_s_own_guard_and_schemes_are_kept() {
    let mut own = contexts("prcl").remove(0);
    own.own.guard.max_slowdown = Some(0.005);
    let plan = TuningPlan::new(vec![own.clone()], Request::default(), Some(0.02)).expect("a plan");
    assert_eq!(plan.contexts(), [own.clone()]);
    let mut bare = Request::default();
    bare.acting.no_guard = true;
    let plan = TuningPlan::new(vec![own], bare, None).expect("a plan");
    assert!(!plan.is_guarded() && plan.contexts()[0].own.guard.max_slowdown.is_none());
    assert!(TuningPlan::new(Vec::new(), Request::default(), None).is_err());
}

#[test]
fn an_evaluation_that_fails_ends_the_search_and_says_which() {
    struct Fails(Mutex<usize>);
    impl Evaluate for Fails {
        fn evaluate(&self, _: &Settings) -> anyhow::Result<Option<Prediction>> {
            *self.0.lock().expect("no panic") += 1;
            anyhow::bail!("no machine")
        }
    }
    let plan = plan();
    let space = space(&plan, &["age"]);
    let mut search = Search::new(space, OBJECTIVE, 24, 1, plan.contexts());
    let fails = Fails(Mutex::new(0));
    let stop = AtomicBool::new(false);
    let error = run(&mut search, &fails, None, 2, &stop, &mut |_| {}).expect_err("it fails");
    let error = format!("{error:#}");
    assert!(error.starts_with("cannot replay with age "), "{error}");
    assert!(*fails.0.lock().expect("no panic") <= 4);
}
