//! Tests of the region monitor's loop from the outside: a driver's facts, and the resulting plans.

use isotherm_engine::{
    AddressRange, Attributes, Engine, Facts, Gap, IntervalsGoal, Nanos, PAGE_SIZE, Plan, Sample,
    Snapshot, TargetId, Touch,
};

/// Drives an engine in a world where `answer` gives the result of each sample.
struct Driver<A> {
    engine: Engine,
    answer: A,
    plan: Plan,
    touches: Vec<Touch>,
    now: Nanos,
}

impl<A: FnMut(&Sample) -> Touch> Driver<A> {
    fn new(attributes: Attributes, answer: A) -> Self {
        let engine = Engine::new(attributes).expect("valid attributes");
        let (plan, touches, now) = Default::default();
        Self {
            engine,
            answer,
            plan,
            touches,
            now,
        }
    }

    fn tick(&mut self, ranges: Vec<(TargetId, Vec<AddressRange>)>, ended: &[TargetId]) {
        let facts = Facts {
            touches: &self.touches,
            ranges,
            ended,
        };
        self.plan = self.engine.tick(self.now, facts).clone();
        self.touches = self.plan.samples.iter().map(&mut self.answer).collect();
        self.now = self.plan.next_tick;
    }

    fn watch(&mut self, target: u32, pages: std::ops::Range<u64>) {
        let range = AddressRange::new(pages.start * PAGE_SIZE, pages.end * PAGE_SIZE);
        self.tick(vec![(TargetId(target), vec![range])], &[]);
    }

    /// Ticks until the next snapshots, and returns them.
    fn snapshots(&mut self) -> Vec<Snapshot> {
        loop {
            self.tick(Vec::new(), &[]);
            if !self.plan.snapshots.is_empty() {
                return self.plan.snapshots.clone();
            }
        }
    }

    /// Returns the only target's snapshot after `nr` intervals.
    fn snapshot_after(&mut self, nr: usize) -> Snapshot {
        let last = (0..nr).map(|_| self.snapshots()).last();
        last.expect("nr > 0").remove(0)
    }
}

/// Prints a snapshot as `[0,20)=20@3 ...`, in pages; regions that differ only in their borders are joined.
fn picture(snapshot: &Snapshot) -> String {
    let mut joined: Vec<(u64, u64, String)> = Vec::new();
    for region in &snapshot.regions {
        let nr = region
            .nr_accesses
            .map_or("?".to_owned(), |nr| nr.to_string());
        let text = format!("{nr}@{}", region.age);
        let (start, end) = (region.range.start / PAGE_SIZE, region.range.end / PAGE_SIZE);
        match joined.last_mut() {
            Some(last) if last.1 == start && last.2 == text => last.1 = end,
            _ => joined.push((start, end, text)),
        }
    }
    let one = |(start, end, text): &(u64, u64, String)| format!("[{start},{end})={text}");
    joined.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn check(attributes: Attributes, nr: usize, answer: impl FnMut(&Sample) -> Touch, wanted: &str) {
    let mut driver = Driver::new(attributes, answer);
    driver.watch(0, 0..1000);
    assert_eq!(picture(&driver.snapshot_after(nr)), wanted);
}

fn always(touch: Touch) -> impl FnMut(&Sample) -> Touch {
    move |_| touch
}

#[test]
fn snapshots_tell_how_often_and_since_when() {
    // From no access to full access is a change, which the first interval shows.
    for (nr, touch, wanted) in [
        (1, Touch::Idle, "[0,1000)=0@1"),
        (5, Touch::Idle, "[0,1000)=0@5"),
        (5, Touch::Accessed, "[0,1000)=20@4"),
    ] {
        check(Attributes::default(), nr, always(touch), wanted);
    }
}

#[test]
fn unknown_is_not_cold() {
    let unknown = Touch::Unknown(Gap::Unclearable);
    check(Attributes::default(), 3, always(unknown), "[0,1000)=?@0");
    // Every other check was unknown: the rest is scaled up.
    let mut odd = false;
    let flicker = move |_: &Sample| {
        odd = !odd;
        if odd { unknown } else { Touch::Accessed }
    };
    let mut driver = Driver::new(Attributes::default(), flicker);
    driver.watch(0, 0..1);
    assert_eq!(picture(&driver.snapshot_after(1)), "[0,1)=20@0");
    // This probe fails altogether.
    let mut driver = Driver::new(Attributes::default(), always(Touch::Accessed));
    driver.watch(0, 0..1000);
    driver.snapshot_after(2);
    for _ in 0..20 {
        driver.touches.clear();
        driver.tick(Vec::new(), &[]);
    }
    assert_eq!(picture(&driver.plan.snapshots[0]), "[0,1000)=?@1");
    // The age is kept.
    assert_eq!(picture(&driver.snapshot_after(1)), "[0,1000)=20@2");
}

#[test]
fn snapshots_cover_time_without_gaps() {
    let mut driver = Driver::new(Attributes::default(), always(Touch::Idle));
    driver.watch(0, 0..100);
    let mut end = Nanos(0);
    for _ in 0..5 {
        let snapshot = driver.snapshot_after(1);
        assert_eq!((snapshot.start, snapshot.nr_samples), (end, 20));
        end = snapshot.end;
    }
    assert_eq!(end, Nanos::from_millis(500));
}

#[test]
fn targets_share_the_regions_and_leave_alone() {
    let attributes = Attributes {
        max_nr_regions: 40,
        ..Attributes::default()
    };
    let mut driver = Driver::new(attributes, always(Touch::Idle));
    for target in [5, 3, 9] {
        driver.watch(target, 0..4000);
    }
    let targets: Vec<u32> = driver.snapshots().iter().map(|s| s.target.0).collect();
    assert_eq!(targets, [3, 5, 9]);
    assert!(driver.engine.nr_regions() <= 40);
    driver.tick(Vec::new(), &[TargetId(5)]);
    let targets: Vec<u32> = driver.snapshots().iter().map(|s| s.target.0).collect();
    assert_eq!(targets, [3, 9]);
    driver.tick(Vec::new(), &[TargetId(3), TargetId(9)]);
    assert!(driver.plan.samples.is_empty());
}

#[test]
fn mappings_are_asked_for_every_update_interval() {
    let mut driver = Driver::new(Attributes::default(), always(Touch::Idle));
    let mut asked = Vec::new();
    for _ in 0..=400 {
        let now = driver.now;
        driver.tick(Vec::new(), &[]);
        if driver.plan.ranges_wanted {
            asked.push(now.0 / 1_000_000);
        }
    }
    assert_eq!(asked, [0, 1000, 2000]);
}

#[test]
fn an_intervals_goal_stretches_the_intervals_where_all_is_idle() {
    let attributes = Attributes {
        intervals_goal: Some(IntervalsGoal::default()),
        ..Attributes::default()
    };
    let mut driver = Driver::new(attributes, always(Touch::Idle));
    driver.watch(0, 0..1000);
    let age = driver.snapshot_after(3).regions[0].age_ns;
    let intervals = driver.engine.intervals();
    assert_eq!(intervals.sample, Nanos::from_millis(10));
    assert_eq!(intervals.aggregation, Nanos::from_millis(200));
    let region = driver.snapshot_after(1).regions[0];
    // Ages count in the intervals in force.
    assert_eq!(region.age, 1 + 3 / 2);
    assert_eq!(region.age_ns, age + Nanos::from_millis(200));
}

#[test]
#[should_panic(expected = "answers to")]
fn answers_that_do_not_fit_are_the_drivers_bug() {
    let mut driver = Driver::new(Attributes::default(), always(Touch::Idle));
    driver.watch(0, 0..100);
    driver.touches.pop();
    driver.tick(Vec::new(), &[]);
}
