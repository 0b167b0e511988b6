//! Writes docs/schema and the tables of docs/reference/record.md and docs/reference/json.md, and fails where they are
//! stale. `UPDATE_GOLDEN=1` renews them.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use isotherm_config::damo::DamoTranslation;
use isotherm_engine::calibration::Calibration;
use isotherm_eval::experiment::{RunConfiguration, Workload};
use isotherm_fleet::FleetReport;
use isotherm_linux::host::HostReport;
use isotherm_park::{ParkEvent, ParkReport, WakeReport};
use isotherm_record::{Header, Item};
use isotherm_report::blame::BlameDiffReport;
use isotherm_report::flat::{Column, TABLES};
use isotherm_report::{EthpCurveReport, ReclaimCurveReport, Tabulate};
use isotherm_session::compare::Comparison;
use isotherm_session::restore::RestoreReport;
use isotherm_session::thp::ThpReport;
use isotherm_session::{CheckReport, KernelDamonReport};
use isotherm_tune::Tuned;
use schemars::{JsonSchema, Schema, schema_for};
use serde_json::Value;

use crate::cmd::{advise, calibrate::MeasuredNodes, convert, record, reproduce, swap};
use crate::out;

pub(crate) struct Printed {
    /// Name of the schema's file.
    name: String,
    subject: String,
    schema: Schema,
    columns: &'static [Column],
}

fn named(name: &str, subject: &str, schema: Schema) -> Printed {
    Printed {
        name: name.to_owned(),
        subject: subject.to_owned(),
        schema,
        columns: &[],
    }
}

fn command(command: &str, schema: Schema) -> Printed {
    let name = command.replace(" --", "-").replace(' ', "-");
    named(&name, &format!("`{command}`"), schema)
}

pub(crate) fn report<R: JsonSchema + Tabulate>(name: &str) -> Printed {
    Printed {
        columns: R::COLUMNS,
        ..command(name, schema_for!(R))
    }
}

fn schemas() -> Vec<Printed> {
    let mut all = of_records();
    all.extend(of_commands());
    all
}

/// Returns the schemas of records, and of reports about them.
fn of_records() -> Vec<Printed> {
    let mut all = vec![
        named(
            "record-header",
            "the header of a record",
            schema_for!(Header),
        ),
        named("record-item", "an item of a record", schema_for!(Item)),
        report::<BlameDiffReport>("report blame --against"),
        report::<ReclaimCurveReport>("reclaim-curve"),
        report::<isotherm_size::SizeReport>("size"),
        report::<EthpCurveReport>("ethp-curve"),
    ];
    all.extend(crate::cmd::report::schemas());
    all
}

/// Returns the schemas of other commands' results.
fn of_commands() -> Vec<Printed> {
    vec![
        named(
            "record",
            "`record` and `run`",
            out::schema::<record::summary::Summary>(),
        ),
        command("convert", out::schema::<convert::Summary<'static>>()),
        command(
            "convert --flat",
            out::schema::<convert::flat::FlatSummary<'static>>(),
        ),
        command("check", out::schema::<CheckReport>()),
        command("reproduce", out::schema::<reproduce::Numbers>()),
        command("restore", out::schema::<RestoreReport>()),
        command("thp", out::schema::<ThpReport>()),
        command("recommend", out::schema::<FleetReport>()),
        command("park", out::schema::<ParkReport>()),
        command("park --idle", out::schema::<ParkEvent>()),
        command("wake", out::schema::<WakeReport>()),
        command("tune", out::schema::<Tuned>()),
        command("calibrate", out::schema::<Calibration>()),
        command("calibrate --nodes", out::schema::<MeasuredNodes>()),
        command("doctor", out::schema::<HostReport>()),
        command("damo", out::schema::<DamoTranslation>()),
        command("damon", out::schema::<KernelDamonReport>()),
        command("compare", out::schema::<Comparison>()),
        named(
            "swap-zram",
            "`swap zram` and `swap zswap`",
            out::schema::<swap::SetUp>(),
        ),
        command("swap advise", out::schema::<advise::SwapAdvice>()),
        command("swap off", out::schema::<swap::TakenAway>()),
    ]
}

/// Returns the schemas of files that serde reads. (Other configurations have a reader of their own:
/// docs/reference/interop.md.)
fn of_files() -> [Printed; 2] {
    let (workload, configuration) = (schema_for!(Workload), schema_for!(RunConfiguration));
    let of = |table: &str| format!("`[[{table}]]` of an experiment");
    [
        named("experiment-workload", &of("workload"), workload),
        named(
            "experiment-configuration",
            &of("configuration"),
            configuration,
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
    for Printed { name, schema, .. } in schemas().into_iter().chain(of_files()) {
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
        let _ = write!(text, "\n`{file}`\n\n{}", column_table(columns));
    }
    text + "\n"
}

fn column_table(columns: &[Column]) -> String {
    let mut text = "| column | type | meaning |\n|---|---|---|\n".to_owned();
    for column in columns {
        let null = if column.is_nullable { ", nullable" } else { "" };
        let (name, kind, about) = (column.name, column.kind.describe(), column.about);
        let _ = writeln!(text, "| `{name}` | {kind}{null} | {about} |");
    }
    text
}

fn json_tables() -> String {
    let mut text = String::new();
    for printed in schemas() {
        let (name, subject) = (&printed.name, &printed.subject);
        let link = format!("[schema/{name}.json](../schema/{name}.json)");
        let _ = writeln!(text, "\n## {subject}\n\n{link}\n");
        let properties = printed.schema.get("properties").and_then(Value::as_object);
        let Some(properties) = properties else {
            continue;
        };
        let _ = writeln!(text, "| key | type | meaning |\n|---|---|---|");
        for (key, property) in properties {
            let about = property.get("description").and_then(Value::as_str);
            let about = about.unwrap_or_default().replace('\n', " ");
            let _ = writeln!(text, "| `{key}` | {} | {about} |", kind(property));
        }
        if !printed.columns.is_empty() {
            let _ = write!(text, "\nCSV:\n\n{}", column_table(printed.columns));
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
