//! Writes docs/schema and the tables of docs/reference/record.md and docs/reference/json.md, and fails where they are
//! stale. `UPDATE_GOLDEN=1` renews them.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use isotherm_engine::calibration::Calibration;
use isotherm_eval::experiment::{RunConfiguration, Workload};
use isotherm_linux::host::HostReport;
use isotherm_record::{Header, Item};
use isotherm_report::blame::BlameDiffReport;
use isotherm_report::flat::{Column, TABLES};
use isotherm_report::{
    AccessReport, ActionsReport, BlameReport, DiffReport, EthpCurveReport, FootprintReport,
    FragmentationReport, HeatmapReport, IdleReport, MachineReport, ReclaimCurveReport,
    SummaryReport, WssReport,
};
use isotherm_session::KernelDamonReport;
use isotherm_session::compare::Comparison;
use isotherm_tune::Tuned;
use schemars::{Schema, schema_for};
use serde_json::Value;

use crate::cmd::{check, convert, record, reproduce, restore, swap};

/// A schema: the name of its file, the name of its subject, and the schema itself.
type Named = (&'static str, &'static str, Schema);

/// Returns every schema of printed results.
fn schemas() -> Vec<Named> {
    let mut all = of_records();
    all.extend(of_commands());
    all
}

/// Returns the schemas of records, and of reports about them.
fn of_records() -> Vec<Named> {
    vec![
        (
            "record-header",
            "the header of a record",
            schema_for!(Header),
        ),
        ("record-item", "an item of a record", schema_for!(Item)),
        (
            "report-access",
            "`report access`",
            schema_for!(AccessReport),
        ),
        (
            "report-actions",
            "`report actions`",
            schema_for!(ActionsReport),
        ),
        ("report-blame", "`report blame`", schema_for!(BlameReport)),
        (
            "report-blame-against",
            "`report blame --against`",
            schema_for!(BlameDiffReport),
        ),
        ("report-diff", "`report diff`", schema_for!(DiffReport)),
        (
            "report-footprint",
            "`report footprint`",
            schema_for!(FootprintReport),
        ),
        (
            "report-fragmentation",
            "`report fragmentation`",
            schema_for!(FragmentationReport),
        ),
        (
            "report-heatmap",
            "`report heatmap`",
            schema_for!(HeatmapReport),
        ),
        ("report-idle", "`report idle`", schema_for!(IdleReport)),
        (
            "report-machine",
            "`report machine`",
            schema_for!(MachineReport),
        ),
        (
            "report-summary",
            "`report summary`",
            schema_for!(SummaryReport),
        ),
        ("report-wss", "`report wss`", schema_for!(WssReport)),
        (
            "reclaim-curve",
            "`reclaim-curve`",
            schema_for!(ReclaimCurveReport),
        ),
        ("ethp-curve", "`ethp-curve`", schema_for!(EthpCurveReport)),
    ]
}

/// Returns the schemas of other commands' results.
fn of_commands() -> Vec<Named> {
    let [convert, flat] = convert::schemas();
    let [swap_zram, swap_off] = swap::schemas();
    vec![
        ("record", "`record` and `run`", record::schema()),
        ("convert", "`convert`", convert),
        ("convert-flat", "`convert --flat`", flat),
        ("check", "`check`", check::schema()),
        ("reproduce", "`reproduce`", reproduce::schema()),
        ("restore", "`restore`", restore::schema()),
        ("tune", "`tune`", crate::out::schema::<Tuned>()),
        (
            "calibrate",
            "`calibrate`",
            crate::out::schema::<Calibration>(),
        ),
        ("doctor", "`doctor`", crate::out::schema::<HostReport>()),
        (
            "damon",
            "`damon`",
            crate::out::schema::<KernelDamonReport>(),
        ),
        ("compare", "`compare`", crate::out::schema::<Comparison>()),
        ("swap-zram", "`swap zram`", swap_zram),
        ("swap-off", "`swap off`", swap_off),
    ]
}

/// Returns the schemas of files that serde reads. (Other configurations have a reader of their own:
/// docs/reference/interop.md.)
fn of_files() -> Vec<Named> {
    vec![
        (
            "experiment-workload",
            "`[[workload]]` of an experiment",
            schema_for!(Workload),
        ),
        (
            "experiment-configuration",
            "`[[configuration]]` of an experiment",
            schema_for!(RunConfiguration),
        ),
    ]
}

fn docs() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"))
}

/// Compares a file with its expected content, or renews it.
fn compare(path: &PathBuf, wanted: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, wanted).expect("written");
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    let name = path.display();
    assert!(
        found == wanted,
        "{name} is stale; UPDATE_GOLDEN=1 renews it"
    );
}

#[test]
fn schemas_are_those_of_the_types() {
    for (name, _, schema) in schemas().into_iter().chain(of_files()) {
        let text = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
        compare(&docs().join(format!("schema/{name}.json")), &text);
    }
}

#[test]
fn the_tables_of_the_documentation_are_those_of_the_types() {
    for (page, mark, tables) in [
        ("reference/record.md", "flat", flat_tables()),
        ("reference/json.md", "json", json_tables()),
    ] {
        let path = docs().join(page);
        let found = fs::read_to_string(&path).expect(page);
        compare(&path, &between(&found, mark, &tables));
    }
}

/// Returns `text` with `new` between the marks of this name.
fn between(text: &str, name: &str, new: &str) -> String {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = text.split_once(&begin).expect("a mark");
    let (_, after) = rest.split_once(&end).expect("a mark");
    format!("{before}{begin}{new}{end}{after}")
}

fn flat_tables() -> String {
    let mut text = String::new();
    for (name, columns) in TABLES {
        let file = match name {
            "regions" => "OUT.parquet".to_owned(),
            name => format!("OUT.{name}.parquet"),
        };
        let _ = writeln!(
            text,
            "\n`{file}`\n\n| column | type | meaning |\n|---|---|---|"
        );
        for Column {
            name,
            kind,
            is_nullable,
            about,
        } in columns
        {
            let null = if *is_nullable { ", nullable" } else { "" };
            let kind = kind.describe();
            let _ = writeln!(text, "| `{name}` | {kind}{null} | {about} |");
        }
    }
    text + "\n"
}

fn json_tables() -> String {
    let mut text = String::new();
    for (name, what, schema) in schemas() {
        let link = format!("[schema/{name}.json](../schema/{name}.json)");
        let _ = writeln!(text, "\n## {what}\n\n{link}\n");
        let properties = schema.get("properties").and_then(Value::as_object);
        let Some(properties) = properties else {
            continue;
        };
        let _ = writeln!(text, "| key | type | meaning |\n|---|---|---|");
        for (key, property) in properties {
            let about = property.get("description").and_then(Value::as_str);
            let about = about.unwrap_or_default().replace('\n', " ");
            let _ = writeln!(text, "| `{key}` | {} | {about} |", kind(property));
        }
    }
    text + "\n"
}

/// Returns the type of a property, in a word or two.
fn kind(property: &Value) -> String {
    if let Some(reference) = property.get("$ref").and_then(Value::as_str) {
        return reference.rsplit('/').next().unwrap_or(reference).to_owned();
    }
    if let Some(any) = property.get("anyOf").and_then(Value::as_array) {
        let all: Vec<String> = any.iter().map(kind).collect();
        return all.join(" or ");
    }
    match property.get("type") {
        Some(Value::String(name)) if name == "array" => {
            format!(
                "list of {}",
                property.get("items").map_or("any".to_owned(), kind)
            )
        }
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            names.join(" or ")
        }
        _ => "any".to_owned(),
    }
}
