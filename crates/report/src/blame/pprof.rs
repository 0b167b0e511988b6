//! Stacks as a gzipped `profile.proto`, which `go tool pprof` and most stores of profiles read.
//!
//! The messages are those of <https://github.com/google/pprof/blob/main/proto/profile.proto>, written by hand without
//! the parts that Isotherm does not use. A record's frames have no addresses of one process. A location is therefore a
//! function at a line, and a mapping is a library without a range.

use std::collections::HashMap;
use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::export::{measure_name, named, source_line, unknown};
use super::{BlameReport, StackBytes};

/// Declares messages: each field with its kind, its number, and whether it is repeated.
macro_rules! messages {
    ($($name:ident {
        $($(#[$doc:meta])* $field:ident: $type:ty = $kind:ident $tag:literal $($repeated:ident)?,)*
    })*) => {$(
        #[derive(Clone, PartialEq, Message)]
        struct $name {
            $($(#[$doc])* #[prost($kind, $($repeated,)? tag = $tag)] $field: $type,)*
        }
    )*};
}

messages! {
    Profile {
        sample_type: Vec<ValueType> = message "1" repeated,
        sample: Vec<Sample> = message "2" repeated,
        mapping: Vec<Mapping> = message "3" repeated,
        location: Vec<Location> = message "4" repeated,
        function: Vec<Function> = message "5" repeated,
        /// All texts by number; the first is empty.
        string_table: Vec<String> = string "6" repeated,
        time_nanos: i64 = int64 "9",
        duration_nanos: i64 = int64 "10",
        comment: Vec<i64> = int64 "13" repeated,
        default_sample_type: i64 = int64 "14",
    }
    ValueType {
        kind: i64 = int64 "1",
        unit: i64 = int64 "2",
    }
    Sample {
        /// Locations, the innermost first.
        location_id: Vec<u64> = uint64 "1" repeated,
        value: Vec<i64> = int64 "2" repeated,
        label: Vec<Label> = message "3" repeated,
    }
    Label {
        key: i64 = int64 "1",
        text: i64 = int64 "2",
    }
    Mapping {
        id: u64 = uint64 "1",
        filename: i64 = int64 "5",
        /// Whether functions have names. Without these flags pprof looks for the file to name functions.
        has_functions: bool = bool "7",
        has_filenames: bool = bool "8",
        has_line_numbers: bool = bool "9",
        has_inline_frames: bool = bool "10",
    }
    Location {
        id: u64 = uint64 "1",
        mapping_id: u64 = uint64 "2",
        line: Vec<Line> = message "4" repeated,
    }
    Line {
        function_id: u64 = uint64 "1",
        line: i64 = int64 "2",
    }
    Function {
        id: u64 = uint64 "1",
        name: i64 = int64 "2",
        system_name: i64 = int64 "3",
        filename: i64 = int64 "4",
    }
}

/// Builds a profile of two kinds of values: all bytes of the report, and the part that is only likely. Labels hold
/// thread, target and mapping.
///
/// # Errors
/// Only gzip could fail, and it does not when it writes to memory.
pub fn pprof(report: &BlameReport) -> io::Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&profile(report).encode_to_vec())?;
    packed.finish()
}

fn profile(report: &BlameReport) -> Profile {
    let mut made = Making::default();
    made.text("");
    let name = measure_name(report.measure);
    let likely = format!("likely_{name}");
    let kinds = [name, likely.as_str()];
    made.profile.sample_type = kinds
        .map(|kind| ValueType {
            kind: made.text(kind),
            unit: made.text("bytes"),
        })
        .into();
    made.profile.default_sample_type = made.text(name);
    made.profile.time_nanos = signed(report.record.started_ns.0 + report.time_ns.0);
    made.profile.duration_nanos = signed(report.watched_ns.0);
    let comment = isotherm_record::printable(&report.record.command.join(" ")).into_owned();
    made.profile.comment = vec![made.text(&comment)];
    for stack in &report.stacks {
        made.sample(stack);
    }
    for (name, bytes) in unknown(report) {
        let sample = Sample {
            location_id: vec![made.location(name, None, None)],
            value: vec![signed(bytes), 0],
            label: Vec::new(),
        };
        made.profile.sample.push(sample);
    }
    made.profile
}

#[derive(Default)]
struct Making {
    profile: Profile,
    texts: HashMap<String, i64>,
    mappings: HashMap<String, u64>,
    functions: HashMap<(i64, i64), u64>,
    locations: HashMap<(u64, u64, i64), u64>,
}

impl Making {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(number) = self.texts.get(text) {
            return *number;
        }
        let number = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), number);
        number
    }

    fn sample(&mut self, stack: &StackBytes) {
        let innermost = stack.stack.len().saturating_sub(1);
        let mut location_id = Vec::with_capacity(stack.stack.len());
        // The loop starts at the outermost frame: readers take the first mapping for the program.
        for (at, name) in stack.stack.iter().enumerate() {
            let library = stack.libraries.get(at).and_then(Option::as_deref);
            let place = (at == innermost).then(|| source_line(stack)).flatten();
            location_id.push(self.location(name, library, place));
        }
        location_id.reverse();
        let labels = [
            ("thread", stack.thread.clone()),
            ("target", stack.target.0.to_string()),
            ("mapping", stack.mapping.to_string()),
        ];
        let labels = labels.into_iter().filter(|(_, text)| !text.is_empty());
        let labels = labels.map(|(key, text)| Label {
            key: self.text(key),
            text: self.text(&text),
        });
        let label = labels.collect();
        self.profile.sample.push(Sample {
            location_id,
            value: vec![signed(stack.bytes), signed(stack.likely_bytes)],
            label,
        });
    }

    fn location(&mut self, name: &str, library: Option<&str>, place: Option<(&str, i64)>) -> u64 {
        let mapping_id = library.map_or(0, |library| self.mapping(library));
        let name = self.text(&named(name));
        let library = library.map_or(0, |library| self.text(library));
        let functions = self.functions.len() as u64;
        let function = self.functions.entry((name, library));
        let function_id = *function.or_insert(functions + 1);
        if function_id > functions {
            self.profile.function.push(Function {
                id: function_id,
                name,
                system_name: name,
                filename: 0,
            });
        }
        if let Some((file, _)) = place {
            // A function belongs to one file, regardless of its callers.
            let file = self.text(file);
            self.profile.function[function_id as usize - 1].filename = file;
        }
        let line = place.map_or(0, |(_, line)| line);
        let locations = self.locations.len() as u64;
        let key = (mapping_id, function_id, line);
        let id = *self.locations.entry(key).or_insert(locations + 1);
        if id > locations {
            self.profile.location.push(Location {
                id,
                mapping_id,
                line: vec![Line { function_id, line }],
            });
        }
        id
    }

    fn mapping(&mut self, library: &str) -> u64 {
        if let Some(id) = self.mappings.get(library) {
            return *id;
        }
        let id = self.mappings.len() as u64 + 1;
        let filename = self.text(library);
        self.profile.mapping.push(Mapping {
            id,
            filename,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        });
        self.mappings.insert(library.to_owned(), id);
        id
    }
}

/// Converts bytes and times to the format's signed numbers.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::super::samples::{hostile_report, report};
    use super::*;

    /// Returns a reader's view: each sample's functions from the innermost on, its values and labels.
    fn read(report: &BlameReport) -> (Profile, Vec<String>) {
        let packed = pprof(report).expect("memory takes everything");
        let mut bytes = Vec::new();
        let mut gzip = GzDecoder::new(&packed[..]);
        gzip.read_to_end(&mut bytes).expect("gzip");
        let profile = Profile::decode(&bytes[..]).expect("a profile");
        let text = |number: i64| profile.string_table[number as usize].as_str();
        let location = |id: &u64| {
            let location = &profile.location[*id as usize - 1];
            assert_eq!(location.id, *id);
            let line = &location.line[0];
            let function = &profile.function[line.function_id as usize - 1];
            let mapping = (location.mapping_id as usize).checked_sub(1);
            let library = mapping.map_or("", |at| text(profile.mapping[at].filename));
            let place = format!("{}:{}", text(function.filename), line.line);
            format!("{} ({library}) {place}", text(function.name))
        };
        let label = |label: &Label| format!("{}={}", text(label.key), text(label.text));
        let samples = profile.sample.iter().map(|sample| {
            let functions: Vec<String> = sample.location_id.iter().map(location).collect();
            let labels: Vec<String> = sample.label.iter().map(label).collect();
            let (functions, labels) = (functions.join(" < "), labels.join(" "));
            format!("{functions} {:?} {labels}", sample.value)
        });
        let samples = samples.collect();
        (profile, samples)
    }

    #[test]
    fn a_profile_reads_back_as_it_was() {
        let (profile, samples) = read(&report());
        let wanted = [
            "malloc (libc.so.6) malloc.c:7 < load (app) :0 < main (app) :0 [6291456, 1048576] thread=worker target=0 mapping=[heap]",
            "serve (app) :0 < main (app) :0 [2097152, 0] thread=worker target=0 mapping=[heap]",
            "[before sampling] () :0 [1048576, 0] ",
            "[not sampled] () :0 [524288, 0] ",
        ];
        assert_eq!(samples, wanted);
        let text = |number: i64| profile.string_table[number as usize].as_str();
        let kinds: Vec<&str> = profile.sample_type.iter().map(|of| text(of.kind)).collect();
        assert_eq!(kinds, ["idle_space", "likely_idle_space"]);
        assert_eq!(text(profile.default_sample_type), "idle_space");
        assert_eq!(profile.mapping.len(), 2);
        assert_eq!(profile.function.len(), 6);
    }

    #[test]
    fn any_name_and_no_stack_make_a_profile() {
        let (profile, samples) = read(&hostile_report());
        let wanted = "[no name] (app) :0 < <b>&\"x\" y (app) :0 < a;b (app) :0 [4096";
        assert!(samples[0].starts_with(wanted), "{samples:?}");
        assert_eq!(profile.string_table[0], "");
        let (profile, samples) = read(&BlameReport::default());
        assert!(samples.is_empty() && profile.location.is_empty());
    }
}
