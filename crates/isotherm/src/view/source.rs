//! Sources of the view's items: a session that runs now, or a record that is played back.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use isotherm_engine::{CpuAccount, Nanos};
use isotherm_record::{Header, Item, Reader};

use isotherm_session::{Session, Step};

/// Yields items as time goes by.
pub(crate) trait ItemSource {
    /// Waits for at most `timeout`, and appends new items. Returns false after the last one.
    fn next(&mut self, timeout: Duration, items: &mut Vec<Item>) -> anyhow::Result<bool>;

    /// Returns whether a signal asked for the end.
    fn stopped(&self) -> bool;

    /// Excludes `cpu` from the cost of monitoring: it was spent on drawing.
    fn exclude_cpu(&mut self, _cpu: Nanos) {}

    /// Returns the header of the items' record.
    fn header(&self) -> &Header;

    /// Returns the time by the clock of the items; `None` if they are of the past.
    fn now(&self) -> Option<Nanos> {
        None
    }
}

impl ItemSource for Session {
    fn next(&mut self, timeout: Duration, items: &mut Vec<Item>) -> anyhow::Result<bool> {
        let until = self.now() + Nanos::from(timeout);
        while self.now() < until {
            if self.step(until, items)? != Step::Going {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stopped(&self) -> bool {
        self.is_stopped()
    }

    fn exclude_cpu(&mut self, cpu: Nanos) {
        self.charge(CpuAccount::Reports, cpu);
    }

    fn header(&self) -> &Header {
        self.header()
    }

    fn now(&self) -> Option<Nanos> {
        Some(self.now())
    }
}

/// A record, played back at its own pace or faster.
pub(crate) struct ReplaySource {
    reader: Reader<Box<dyn Read>>,
    speed: f64,
    began: Option<(Instant, Nanos)>,
    waiting: Option<Item>,
    stop: Arc<AtomicBool>,
}

impl ReplaySource {
    pub(crate) fn open(path: &Path, speed: f64) -> anyhow::Result<Self> {
        let input = crate::input::open(path)?;
        let reader = Reader::open(input.bytes)
            .with_context(|| format!("cannot read {}", path.display()))?
            .replay_pages();
        // A signal ends the view in order, so that the terminal is restored.
        let stop = crate::stop::by_signals()?;
        Ok(Self {
            reader,
            speed,
            stop,
            began: None,
            waiting: None,
        })
    }

    /// Returns the time until the moment of `time` is due.
    fn wait_for(&mut self, time: Nanos) -> Duration {
        let (began, first) = *self.began.get_or_insert((Instant::now(), time));
        let due = Duration::from_secs_f64(time.since(first).as_secs_f64() / self.speed);
        due.saturating_sub(began.elapsed())
    }
}

impl ItemSource for ReplaySource {
    fn next(&mut self, timeout: Duration, items: &mut Vec<Item>) -> anyhow::Result<bool> {
        let until = Instant::now() + timeout;
        loop {
            let item = match self.waiting.take() {
                Some(item) => item,
                None => match self.reader.next() {
                    Some(item) => item.context("cannot read on in the record")?,
                    None => return Ok(false),
                },
            };
            let wait = time_of(&item).map_or(Duration::ZERO, |time| self.wait_for(time));
            if Instant::now() + wait > until {
                self.waiting = Some(item);
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                return Ok(true);
            }
            std::thread::sleep(wait);
            items.push(item);
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn header(&self) -> &Header {
        self.reader.header()
    }
}

fn time_of(item: &Item) -> Option<Nanos> {
    match item {
        Item::Snapshot(snapshot) => Some(snapshot.end),
        Item::Pages(pages) => Some(pages.end),
        Item::Usage(usage) => Some(usage.time),
        Item::Cost(cost) => Some(cost.time),
        _ => None,
    }
}
