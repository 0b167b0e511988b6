//! The schema of a record: its metadata, and a check of its columns.
//!
//! The schema's metadata has the header twice. It is whole, as JSON under [`HEADER_KEY`], for us. Its main parts are
//! also under plain names, for someone who opens the file with pyarrow or polars.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{Field, Schema};

use crate::columns::Kind;
use crate::error::RecordError;
use crate::item::Header;
use crate::stacks::STACKS_SETTING;

/// Metadata key of the header's JSON.
pub(crate) const HEADER_KEY: &str = "isotherm.header";
/// Metadata key of the format's version.
pub(crate) const VERSION_KEY: &str = "isotherm.version";
/// The highest version that is read. Version 1 has no columns about memory, version 2 no page-by-page blocks
/// ([`crate::blocks`]), version 3 no stacks ([`crate::stacks`]).
pub(crate) const VERSION: u32 = 4;
/// The version that is written where there are no stacks.
const VERSION_WITHOUT_STACKS: u32 = 3;
/// Metadata key, on a message without rows, of an item as JSON.
pub(crate) const ITEM_KEY: &str = "isotherm.item";
/// Metadata key, on a message, of the CRC-32 of all of it but this value.
pub(crate) const CHECKSUM_KEY: &str = "isotherm.crc32";

pub(crate) fn schema_of(header: &Header) -> Result<Schema, RecordError> {
    let json = serde_json::to_string(header)
        .map_err(|error| RecordError::Unwritable(format!("the header: {error}")))?;
    let mut metadata: HashMap<String, String> = header
        .settings
        .iter()
        .map(|(name, value)| (format!("setting.{name}"), value.clone()))
        .collect();
    let nanos = |name: &str, value: isotherm_engine::Nanos| (name.to_string(), value.0.to_string());
    metadata.extend([
        (HEADER_KEY.to_string(), json),
        (VERSION_KEY.to_string(), version_of(header).to_string()),
        ("writer".to_string(), header.writer.clone()),
        ("host".to_string(), header.host.clone()),
        ("kernel".to_string(), header.kernel.clone()),
        ("command".to_string(), header.command.join(" ")),
        ("operations".to_string(), header.operations.clone()),
        nanos("started_ns", header.started),
        nanos("sample_interval_ns", header.sample_interval),
        nanos("aggregation_interval_ns", header.aggregation_interval),
        nanos("update_interval_ns", header.update_interval),
    ]);
    Ok(Schema::new_with_metadata(
        Kind::of(header).fields(),
        metadata,
    ))
}

/// Returns the lowest version that supports all content of a record with this header.
fn version_of(header: &Header) -> u32 {
    if header.settings.contains_key(STACKS_SETTING) {
        VERSION
    } else {
        VERSION_WITHOUT_STACKS
    }
}

/// Returns the header in a schema and the kind of the rows, after a check that the schema is a record's.
///
/// Columns must be ours in name, type and order. Their nullability is left to the rows, since other programs that
/// rewrite a record mark every column as nullable.
pub(crate) fn header_of(schema: &Schema) -> Result<(Header, Kind), RecordError> {
    let metadata = schema.metadata();
    let Some(json) = metadata.get(HEADER_KEY) else {
        return Err(RecordError::NotARecord(format!(
            "an Arrow stream without `{HEADER_KEY}` in its metadata"
        )));
    };
    let version = metadata.get(VERSION_KEY).map_or("1", String::as_str);
    if version.parse::<u32>().is_ok_and(|v| v > VERSION) {
        return Err(RecordError::Version {
            found: version.to_string(),
            known: VERSION,
        });
    }
    let header: Header = serde_json::from_str(json)
        .map_err(|error| RecordError::NotARecord(format!("its header does not parse: {error}")))?;
    let kind = Kind::of(&header);
    if has_columns_of(schema, kind) {
        Ok((header, kind))
    } else if kind == Kind::Regions && has_columns_of(schema, Kind::BareRegions) {
        Ok((header, Kind::BareRegions))
    } else {
        let names = |fields: Vec<String>| fields.join(", ");
        Err(RecordError::NotARecord(format!(
            "its columns are {}; a record's are {}",
            names(schema.fields().iter().map(|f| describe(f)).collect()),
            names(kind.fields().iter().map(describe).collect()),
        )))
    }
}

fn has_columns_of(schema: &Schema, kind: Kind) -> bool {
    let expected = kind.fields();
    let is_same = |(found, wanted): (&Arc<Field>, &Field)| {
        found.name() == wanted.name() && found.data_type() == wanted.data_type()
    };
    schema.fields().len() == expected.len() && schema.fields().iter().zip(&expected).all(is_same)
}

fn describe(field: &Field) -> String {
    format!("{} {}", field.name(), field.data_type())
}

/// Returns the schema to decode rows with: only its columns count.
pub(crate) fn decoding_schema(kind: Kind) -> Arc<Schema> {
    let fields: Vec<Field> = kind
        .fields()
        .into_iter()
        .map(|field| field.with_nullable(true))
        .collect();
    Arc::new(Schema::new(fields))
}
