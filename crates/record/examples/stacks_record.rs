//! Writes a small record with stacks, for tests of stack displays: `stacks_record FILE [HOSTILE NAME]`.
//!
//! A server is watched for 400 s. It has loaded an index that is no longer used, fills a cache that is idle for 45 s,
//! and answers requests. An archive existed before sampling began; pages of a table were read back from swap. A hostile
//! name becomes the name of a function, its library, a thread and a mapping.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;

use isotherm_engine::{AddressRange, Nanos, RegionMemory, RegionSnapshot, Snapshot, TargetId};
use isotherm_record::stacks::{NO_STACK, STACKS_SETTING};
use isotherm_record::{
    CodeModule, FaultSample, FrameSymbol, FrameSymbols, Header, Item, Mapping, MappingChange,
    StackFrame, StackId, StackNode, StackSamples, TargetStart, Writer,
};

const STARTED: Nanos = Nanos(1_790_000_000_000_000_000);
const MIB: u64 = 1 << 20;
const LASTS_S: u64 = 400;
const STEP_S: u64 = 10;

/// An area of memory that a stack touches.
struct Area {
    name: &'static str,
    start: u64,
    mib: u64,
    /// The stack's functions, the outermost first; none where it is unknown.
    functions: &'static [usize],
    /// Seconds before the end of the record at which the last touch happens.
    idle_s: u64,
    is_major: bool,
}

/// Functions with name, file, and whether they have a line. A function without a name is recorded as a place in its
/// file.
const FUNCTIONS: [(&str, usize, bool); 8] = [
    ("main", 0, false),
    ("Server::load_index(std::string const&)", 0, false),
    ("std::vector<Posting>::reserve(unsigned long)", 0, true),
    ("malloc", 1, false),
    ("Server::serve()", 0, false),
    ("Cache::insert(Key const&, Value&&)", 0, true),
    ("", 2, false),
    ("Table::scan(Range)", 0, true),
];
const MODULES: [&str; 3] = [
    "/usr/bin/server",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/libplugin.so",
];
const AREAS: [Area; 6] = [
    area("[heap]", 0x5600_0000_0000, 96, &[0, 1, 2, 3], 380),
    area("", 0x7f10_0000_0000, 64, &[0, 4, 5, 3], 45),
    area("", 0x7f20_0000_0000, 24, &[0, 4, 6], 0),
    area("", 0x7f30_0000_0000, 16, &[], 400),
    area("", 0x7f40_0000_0000, 8, &[0, 4, 5], 380),
    Area {
        is_major: true,
        ..area("", 0x7f50_0000_0000, 12, &[0, 4, 7], 15)
    },
];

const fn area(
    name: &'static str,
    start: u64,
    mib: u64,
    functions: &'static [usize],
    idle_s: u64,
) -> Area {
    Area {
        name,
        start,
        mib,
        functions,
        idle_s,
        is_major: false,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: stacks_record FILE [HOSTILE NAME]";
    let path = arguments.next().ok_or(usage)?;
    let hostile = arguments.next();
    let header = Header {
        writer: "stacks_record".into(),
        command: vec!["server".into()],
        started: STARTED,
        operations: "vaddr".into(),
        settings: [(STACKS_SETTING.to_owned(), "0.5 %".to_owned())].into(),
        ..Header::default()
    };
    let mut writer = Writer::create(BufWriter::new(File::create(path)?), &header)?;
    let hostile = hostile.as_deref();
    for item in first_items(hostile) {
        writer.write(&item)?;
    }
    let begun = StackSamples {
        time: STARTED,
        begun_before: vec![TargetId(0)],
        ..StackSamples::default()
    };
    writer.write(&Item::Stacks(begun))?;
    for second in (0..LASTS_S).step_by(STEP_S as usize) {
        writer.write(&Item::Snapshot(snapshot(second)))?;
        if second == 0 {
            writer.write(&Item::Stacks(samples(hostile)))?;
        }
    }
    writer.write(&Item::Symbols(symbols(hostile)))?;
    writer.finish()?;
    Ok(())
}

fn at(second: u64) -> Nanos {
    STARTED + Nanos::from_millis(second * 1000)
}

fn range(area: &Area) -> AddressRange {
    AddressRange::new(area.start, area.start + area.mib * MIB)
}

fn first_items(hostile: Option<&str>) -> [Item; 2] {
    let name = |area: &Area| match hostile {
        Some(name) if area.name.is_empty() => name.to_owned(),
        _ => area.name.to_owned(),
    };
    let mapping = |area: &Area| Mapping::private(range(area), name(area));
    let mappings = AREAS.iter().map(mapping).collect();
    [
        Item::TargetStart(TargetStart::new(STARTED, TargetId(0), 4242, "server")),
        Item::Mappings(MappingChange::adding(STARTED, TargetId(0), mappings)),
    ]
}

/// Builds a sample for each MiB with a known stack, and marks the archive as memory from before.
fn samples(hostile: Option<&str>) -> StackSamples {
    let mut stacks: Vec<StackNode> = Vec::new();
    let mut samples = Vec::new();
    for area in AREAS.iter().filter(|area| !area.functions.is_empty()) {
        let mut caller = NO_STACK;
        for &frame in area.functions {
            let frame = frame as u32;
            stacks.push(StackNode { caller, frame });
            caller = StackId(stacks.len() as u32);
        }
        for mib in 0..area.mib {
            samples.push(FaultSample {
                time: at(12) + Nanos(samples.len() as u64),
                address: area.start + mib * MIB,
                stack: caller,
                pages: 256,
                is_major: area.is_major,
                ..FaultSample::default()
            });
        }
    }
    let mut modules = MODULES.map(str::to_owned);
    if let Some(name) = hostile {
        modules[2] = format!("/usr/lib/{}", name.replace('/', "_"));
    }
    let frames = FUNCTIONS.iter().zip(0..);
    StackSamples {
        time: at(15),
        period: 256,
        modules: modules
            .map(|path| CodeModule {
                path,
                build_id: None,
            })
            .to_vec(),
        frames: frames
            .map(|((_, module, _), number): (_, u64)| StackFrame::File {
                module: *module as u32,
                offset: 0x1000 + number * 0x40,
            })
            .collect(),
        threads: vec![hostile.unwrap_or("worker").to_owned()],
        stacks,
        samples,
        ..StackSamples::default()
    }
}

fn symbols(hostile: Option<&str>) -> FrameSymbols {
    let named = FUNCTIONS.iter().zip(0..);
    let named = named.filter(|((name, ..), _)| !name.is_empty());
    let symbols = named.map(|((name, _, has_line), frame)| {
        let name = match hostile {
            Some(hostile) if frame == 5 => hostile,
            _ => name,
        };
        let symbol = FrameSymbol {
            name: name.to_owned(),
            file: has_line.then(|| "src/server.cc".to_owned()),
            line: has_line.then_some(100 + frame),
            ..FrameSymbol::default()
        };
        (frame, symbol)
    });
    FrameSymbols {
        time: at(LASTS_S),
        symbols: symbols.collect(),
    }
}

fn snapshot(second: u64) -> Snapshot {
    let regions = AREAS.iter().map(|area| {
        let idle = (second + STEP_S).saturating_sub(LASTS_S - area.idle_s);
        // Only the archive existed at the beginning.
        let is_there = second > 0 || area.functions.is_empty();
        let (is_idle, bytes) = (idle >= STEP_S, u64::from(is_there) * area.mib * MIB);
        RegionSnapshot {
            range: range(area),
            nr_accesses: Some(if is_idle { 0.0 } else { 10.0 }),
            age: (idle / STEP_S) as u32,
            age_ns: Nanos::from_millis(idle.saturating_sub(STEP_S) * 1000),
            memory: Some(RegionMemory {
                resident: bytes,
                touched: if is_idle { 0 } else { bytes },
                ..RegionMemory::default()
            }),
        }
    });
    let times = (at(second), at(second + STEP_S));
    Snapshot::new(TargetId(0), times, 10, regions.collect())
}
