//! Reads the tracepoints of the kernel's DAMON by BPF: every region of every aggregation interval, and imminent actions
//! of schemes. tracefs is not switched on for other users.
//!
//! Events are passed on as the kernel wrote them; the positions of their fields are read once from tracefs' `format`
//! files. Events that did not fit into the buffer are counted, so that an incomplete snapshot is known to be
//! incomplete.
//!
//! Source: `include/trace/events/damon.h`; `Documentation/trace/events.rst` for the format files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use isotherm_engine::{AddressRange, Nanos};
use libbpf_rs::{Link, MapCore as _, MapFlags, Object, RingBuffer, TracepointCategory};
use thiserror::Error;

use crate::probe::object;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/damon_trace.bpf.o"));
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const HEAD_BYTES: usize = 16;
const EVENT_BYTES: usize = 96;

/// Tracepoints with their programs, indexed by the number of an event.
const EVENTS: [(&str, &str); 4] = [
    ("damon_aggregated", "aggregated"),
    ("damos_before_apply", "before_apply"),
    ("damon_monitor_intervals_tune", "intervals_tune"),
    ("damos_esz", "effective_size"),
];

/// Reason why DAMON's tracepoints cannot be read.
#[derive(Debug, Error)]
pub enum TraceError {
    #[error(
        "no description of DAMON's tracepoints: {0} is not there; is tracefs mounted (`mount -t tracefs none \
         /sys/kernel/tracing`)?"
    )]
    NoFormat(PathBuf),
    #[error("DAMON's tracepoint {event} has no field {field} that can be read here")]
    NoField {
        event: &'static str,
        field: &'static str,
    },
    #[error("cannot load the programs for DAMON's tracepoints: {0}")]
    Load(String),
    #[error("cannot attach to DAMON's tracepoint {event}: {source}")]
    Attach {
        event: &'static str,
        source: libbpf_rs::Error,
    },
    #[error("cannot read the buffer of DAMON's events: {0}")]
    Buffer(libbpf_rs::Error),
}

/// A region as an event reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedRegion {
    /// Index of the target in its context.
    pub target: u32,
    /// Number of regions of that target at present.
    pub nr_regions: u32,
    pub range: AddressRange,
    /// Number of checks in the interval that found an access.
    pub nr_accesses: u32,
    /// Aggregation intervals since the access pattern last changed; `None` if this kernel does not report it.
    pub age: Option<u32>,
}

/// Content of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedWhat {
    /// A region at the end of an aggregation interval.
    Aggregated(TracedRegion),
    /// A region on which a scheme is about to act.
    BeforeApply { scheme: u32, region: TracedRegion },
    /// The new sampling interval.
    IntervalsTuned { sample: Nanos },
    /// The new effective quota of a scheme, in bytes per window.
    EffectiveSize { scheme: u32, bytes: u64 },
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Time of the event by CLOCK_MONOTONIC.
    pub monotonic: Nanos,
    /// The kdamond's process id.
    pub kdamond: u32,
    pub what: TracedWhat,
}

/// A reader of DAMON's events.
pub struct DamonTrace {
    buffer: RingBuffer<'static>,
    taken: Rc<RefCell<Vec<u8>>>,
    layouts: Layouts,
    object: Object,
    /// Links that detach when dropped.
    _links: Vec<Link>,
}

impl DamonTrace {
    /// Attaches to those tracepoints that this kernel has.
    ///
    /// # Errors
    /// Fails if the first tracepoint, that of aggregation intervals, is not available.
    pub fn attach() -> Result<Self, TraceError> {
        let layouts = Layouts::read(&events_directory()?)?;
        let object = object::load(OBJECT).map_err(TraceError::Load)?;
        let mut links = Vec::new();
        for (at, (event, program)) in EVENTS.iter().enumerate() {
            if !layouts.0.contains_key(&(at as u32)) {
                continue;
            }
            let mut programs = object.progs_mut();
            let program = programs.find(|found| found.name() == *program);
            let program = program.expect("a program of our object");
            let link =
                program.attach_tracepoint(TracepointCategory::Custom("damon".to_owned()), event);
            links.push(link.map_err(|source| TraceError::Attach { event, source })?);
        }
        let taken = Rc::new(RefCell::new(Vec::new()));
        let sink: Rc<RefCell<Vec<u8>>> = Rc::clone(&taken);
        let keep = move |bytes: &[u8]| sink.borrow_mut().extend_from_slice(bytes);
        Ok(Self {
            buffer: object::ring_buffer(&object, keep).map_err(TraceError::Buffer)?,
            taken,
            layouts,
            object,
            _links: links,
        })
    }

    /// Reports the events of this kdamond as well from now on.
    ///
    /// # Errors
    /// Fails if the kernel has no memory for it.
    pub fn follow(&self, kdamond: u32) -> Result<(), TraceError> {
        let one = 1_u32.to_ne_bytes();
        object::map(&self.object, "kdamonds")
            .update(&kdamond.to_ne_bytes(), &one, MapFlags::ANY)
            .map_err(TraceError::Buffer)
    }

    /// Appends the events since the last call, in order.
    pub fn take(&mut self, events: &mut Vec<Traced>) -> Result<(), TraceError> {
        self.buffer.consume().map_err(TraceError::Buffer)?;
        let mut taken = self.taken.borrow_mut();
        let whole = taken.chunks_exact(HEAD_BYTES + EVENT_BYTES);
        events.extend(whole.filter_map(|bytes| self.layouts.parse(bytes)));
        taken.clear();
        Ok(())
    }

    /// Returns the number of events so far that did not fit into the buffer.
    pub fn nr_lost(&self) -> u64 {
        let map = object::map(&self.object, "lost");
        let value = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let bytes: Option<[u8; 8]> = value.ok().flatten().and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }
}

fn events_directory() -> Result<PathBuf, TraceError> {
    let directories = TRACEFS.map(|root| Path::new(root).join("events/damon"));
    let first = directories[0].clone();
    let found = directories.into_iter().find(|directory| directory.is_dir());
    found.ok_or(TraceError::NoFormat(first))
}

/// Positions of the fields of each event: offset and size by name, by the event's number.
struct Layouts(BTreeMap<u32, BTreeMap<String, (usize, usize)>>);

impl Layouts {
    fn read(events: &Path) -> Result<Self, TraceError> {
        let mut layouts = BTreeMap::new();
        for (at, (event, _)) in EVENTS.iter().enumerate() {
            let path = events.join(event).join("format");
            match fs::read_to_string(&path) {
                Ok(text) => {
                    layouts.insert(at as u32, parse_format(&text));
                }
                Err(error) if at > 0 && error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => return Err(TraceError::NoFormat(path)),
            }
        }
        let layouts = Self(layouts);
        for field in ["target_id", "nr_regions", "start", "end", "nr_accesses"] {
            layouts.require(0, field)?;
        }
        Ok(layouts)
    }

    fn require(&self, event: u32, field: &'static str) -> Result<(), TraceError> {
        let fields = self.0.get(&event);
        let place = fields.and_then(|fields| fields.get(field));
        let is_readable = place.is_some_and(|(at, size)| {
            matches!(size, 4 | 8) && at.saturating_add(*size) <= EVENT_BYTES
        });
        is_readable.then_some(()).ok_or(TraceError::NoField {
            event: EVENTS[event as usize].0,
            field,
        })
    }

    /// Parses an event of the buffer; returns `None` if it lacks a field.
    fn parse(&self, bytes: &[u8]) -> Option<Traced> {
        let (head, bytes) = bytes.split_at_checked(HEAD_BYTES)?;
        let time = u64::from_ne_bytes(head[..8].try_into().ok()?);
        let kdamond = u32::from_ne_bytes(head[8..12].try_into().ok()?);
        let kind = u32::from_ne_bytes(head[12..].try_into().ok()?);
        let fields = self.0.get(&kind)?;
        let number = |name: &str| -> Option<u64> {
            let (at, size) = *fields.get(name)?;
            let bytes = bytes.get(at..at.checked_add(size)?)?;
            match size {
                4 => Some(u32::from_ne_bytes(bytes.try_into().ok()?).into()),
                8 => Some(u64::from_ne_bytes(bytes.try_into().ok()?)),
                _ => None,
            }
        };
        let region = |target: &str| -> Option<TracedRegion> {
            Some(TracedRegion {
                target: u32::try_from(number(target)?).ok()?,
                nr_regions: number("nr_regions")? as u32,
                range: AddressRange::checked(number("start")?, number("end")?)?,
                nr_accesses: number("nr_accesses")? as u32,
                age: number("age").map(|age| age as u32),
            })
        };
        let what = match kind {
            0 => TracedWhat::Aggregated(region("target_id")?),
            1 => TracedWhat::BeforeApply {
                scheme: number("scheme_idx")? as u32,
                region: region("target_idx")?,
            },
            2 => TracedWhat::IntervalsTuned {
                sample: Nanos(number("sample_us")?.saturating_mul(1_000)),
            },
            _ => TracedWhat::EffectiveSize {
                scheme: number("scheme_idx")? as u32,
                bytes: number("esz")?,
            },
        };
        Some(Traced {
            monotonic: Nanos(time),
            kdamond,
            what,
        })
    }
}

/// Parses the fields of a format file: offset and size by name.
fn parse_format(text: &str) -> BTreeMap<String, (usize, usize)> {
    let lines = text.lines().map(str::trim);
    let fields = lines.filter_map(|line| {
        let parts = line.strip_prefix("field:")?.split(';');
        let mut parts = parts.map(str::trim);
        let name = parts.next()?.rsplit([' ', '*']).next()?.to_owned();
        let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
        Some((name, (number("offset:")?, number("size:")?)))
    });
    fields.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMAT: &str = "name: damon_aggregated\nID: 544\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:unsigned long target_id;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int nr_regions;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned long start;\toffset:24;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned long end;\toffset:32;\tsize:8;\tsigned:0;\n\
        \tfield:unsigned int nr_accesses;\toffset:40;\tsize:4;\tsigned:0;\n\
        \tfield:unsigned int age;\toffset:44;\tsize:4;\tsigned:0;\n\n\
        print fmt: \"target_id=%lu\", REC->target_id\n";

    fn layouts() -> Layouts {
        Layouts([(0, parse_format(FORMAT))].into())
    }

    #[test]
    fn events_are_read_by_the_kernels_own_description() {
        let mut bytes = vec![0; HEAD_BYTES + EVENT_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &77_u64.to_ne_bytes());
        put(8, &12_u32.to_ne_bytes());
        let fields = HEAD_BYTES;
        put(fields + 8, &1_u64.to_ne_bytes());
        put(fields + 16, &9_u32.to_ne_bytes());
        put(fields + 24, &0x1000_u64.to_ne_bytes());
        put(fields + 32, &0x3000_u64.to_ne_bytes());
        put(fields + 40, &5_u32.to_ne_bytes());
        put(fields + 44, &600_u32.to_ne_bytes());
        let region = TracedRegion {
            target: 1,
            nr_regions: 9,
            range: AddressRange::new(0x1000, 0x3000),
            nr_accesses: 5,
            age: Some(600),
        };
        let event = Traced {
            monotonic: Nanos(77),
            kdamond: 12,
            what: TracedWhat::Aggregated(region),
        };
        assert_eq!(layouts().parse(&bytes), Some(event));
        assert!(layouts().require(0, "age").is_ok());
        assert!(layouts().require(0, "nothing").is_err());
    }

    proptest! {
        #[test]
        fn no_description_and_no_event_is_too_strange(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let format = format!("{FORMAT}{text}");
            let layouts = Layouts([(0, parse_format(&format))].into());
            let _ = layouts.parse(&bytes);
        }
    }
}
