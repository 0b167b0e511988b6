//! Monitoring settings that only the kernel's DAMON has: attribute probes, and control of sampling (`probes` and
//! `sample_control` of a context).

use isotherm_engine::KernelSettings;
use isotherm_engine::damon::{AttributeProbe, KernelFilter, SampleControl};

use crate::cursor::{Cursor, Fields};
use crate::form::damo_size_text;
use crate::node::{Node, list, map, map_of};

/// Actions before a sample is probed.
const PREPS: [&str; 1] = ["set_pgidle"];
/// The kernel's files of a filter's details, and damo's keys of these.
const KEYS_OF_FILES: [(&str, &str); 5] = [
    ("path", "path"),
    ("min", "range_min"),
    ("max", "range_max"),
    ("cpumask", "cpumask"),
    ("tid_arr", "tid_arr"),
];

/// Reads the keys of newer kernels' DAMON that no other world has. Another unit of addresses is refused.
pub(crate) fn read(fields: &Fields) -> KernelSettings {
    if let Some(unit) = fields.get("addr_unit")
        && unit.size().is_some_and(|unit| unit != 1)
    {
        unit.wrong(
            "another unit of addresses",
            "1 byte: addresses here have 64 bits",
        );
    }
    let probes = fields.get("probes").map(|list| list.items(read_probe));
    KernelSettings {
        probes: probes.unwrap_or_default(),
        samples: fields
            .optional("sample_control", read_samples)
            .unwrap_or_default(),
    }
}

fn read_probe(cursor: &Cursor) -> Option<AttributeProbe> {
    let fields = cursor.map()?;
    let preps = fields.get("preps").map(|list| list.items(read_prep));
    let read = |c: &Cursor| read_kernel_filter(c, &KernelFilter::OF_PROBES);
    let filters = fields.required("filters", |list| Some(list.items(read)));
    let weight = fields.optional("weight", Cursor::count_u32);
    fields.finish();
    Some(AttributeProbe {
        preps: preps.unwrap_or_default(),
        filters: filters?,
        weight: weight.unwrap_or(0),
    })
}

fn read_prep(cursor: &Cursor) -> Option<String> {
    let fields = cursor.map()?;
    let action = fields.required("prep_action", |c| c.word(&PREPS));
    fields.finish();
    action.map(|index| PREPS[index].to_owned())
}

fn read_samples(cursor: &Cursor) -> Option<SampleControl> {
    let fields = cursor.map()?;
    let mut samples = SampleControl::default();
    if let Some(primitives) = fields.optional("primitives_enabled", Cursor::map) {
        let set = |key, flag: &mut bool| {
            *flag = primitives.optional(key, Cursor::flag).unwrap_or(*flag);
        };
        set("page_table", &mut samples.page_table);
        set("page_fault", &mut samples.page_fault);
        primitives.finish();
    }
    let read = |c: &Cursor| read_kernel_filter(c, &KernelFilter::OF_SAMPLES);
    let filters = fields.get("sample_filters").map(|list| list.items(read));
    samples.filters = filters.unwrap_or_default();
    fields.finish();
    Some(samples)
}

/// Reads a filter of one of these kinds, each with the kernel's files of its details.
fn read_kernel_filter(cursor: &Cursor, kinds: &[(&str, &[&str])]) -> Option<KernelFilter> {
    let fields = cursor.map()?;
    let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
    let kind = fields.required("filter_type", |c| c.word(&names));
    let matching = fields.required("matching", Cursor::flag);
    let allow = fields.optional("allow", Cursor::flag);
    let files = kind.map_or(&[][..], |index| kinds[index].1);
    let details = files.iter().map(|file| {
        let (_, key) = KEYS_OF_FILES.iter().find(|(of, _)| of == file)?;
        let cursor = fields.need(key)?;
        let text = match *file {
            "min" | "max" => cursor.size()?.to_string(),
            _ => cursor.text("a text")?.to_owned(),
        };
        Some(((*file).to_owned(), text))
    });
    let details: Option<Vec<(String, String)>> = details.collect();
    fields.skip(&KEYS_OF_FILES.map(|(_, key)| key));
    fields.finish();
    Some(KernelFilter {
        kind: kinds[kind?].0.to_owned(),
        matching: matching?,
        allow: allow.unwrap_or(false),
        details: details?,
    })
}

/// Writes probes as damo does.
pub(crate) fn write_probes(probes: &[AttributeProbe]) -> Node {
    list(probes.iter().map(|probe| {
        let prep = |action: &String| map([("prep_action", action.as_str().into())]);
        let filter = |of| write_filter(of, &["path", "min", "max"]);
        map([
            ("preps", list(probe.preps.iter().map(prep))),
            ("filters", list(probe.filters.iter().map(filter))),
            ("weight", u64::from(probe.weight).into()),
        ])
    }))
}

/// Writes the control of sampling as damo does.
pub(crate) fn write_samples(samples: &SampleControl) -> Node {
    let primitives = map([
        ("page_table", samples.page_table.into()),
        ("page_fault", samples.page_fault.into()),
    ]);
    let filter = |of| write_filter(of, &["cpumask", "tid_arr"]);
    map([
        ("primitives_enabled", primitives),
        ("sample_filters", list(samples.filters.iter().map(filter))),
    ])
}

/// Writes a filter with the keys of all these files.
fn write_filter(filter: &KernelFilter, files: &[&str]) -> Node {
    let text_of = |file: &str| {
        let (_, text) = filter.details.iter().find(|(of, _)| of == file)?;
        let size = text.parse().ok().filter(|_| ["min", "max"].contains(&file));
        Some(size.map_or_else(|| text.clone(), damo_size_text))
    };
    let details = KEYS_OF_FILES
        .iter()
        .filter(|(file, _)| files.contains(file));
    let details = details.map(|(file, key)| (*key, Node::from(text_of(file))));
    let entries: [(&str, Node); 3] = [
        ("filter_type", filter.kind.as_str().into()),
        ("matching", filter.matching.into()),
        ("allow", filter.allow.into()),
    ];
    map_of(entries.into_iter().chain(details))
}
