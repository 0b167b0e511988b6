//! A JSON Schema as a page: tables of keys, one for the whole and one for each type in it.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::docs::anchor;

pub(super) fn page(name: &str, schema: &Value) -> String {
    let mut page =
        format!("# {name}\n\nThe schema itself: [{name}.json](../../schema/{name}.json).\n\n");
    add_type(&mut page, schema);
    let types = schema.get("$defs").and_then(Value::as_object);
    for (name, schema) in types.into_iter().flatten() {
        let _ = writeln!(page, "## {name}\n");
        add_type(&mut page, schema);
    }
    page
}

fn add_type(page: &mut String, schema: &Value) {
    if let Some(about) = description(schema) {
        let _ = writeln!(page, "{about}\n");
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        add_keys(page, schema, properties);
        return;
    }
    let variants = ["oneOf", "anyOf"].iter().find_map(|key| schema.get(key));
    if let Some(variants) = variants.and_then(Value::as_array) {
        for variant in variants {
            add_variant(page, variant);
        }
        page.push('\n');
    } else {
        let _ = writeln!(page, "Type: {}.\n", kind(schema));
    }
}

fn add_keys(page: &mut String, schema: &Value, properties: &Map<String, Value>) {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required =
        |key: &str| required.is_some_and(|keys| keys.iter().any(|found| found == key));
    let _ = writeln!(page, "| key | type | meaning |\n|---|---|---|");
    for (key, property) in properties {
        let optional = if is_required(key) { "" } else { ", optional" };
        let about = description(property).unwrap_or_default().replace('\n', " ");
        let default = match property.get("default") {
            None | Some(Value::Null) => String::new(),
            Some(default) => format!(" Default: `{default}`."),
        };
        let kind = kind(property);
        let _ = writeln!(page, "| `{key}` | {kind}{optional} | {about}{default} |");
    }
    page.push('\n');
}

fn add_variant(page: &mut String, variant: &Value) {
    let about = description(variant).map(|about| format!(": {}", about.replace('\n', " ")));
    let about = about.unwrap_or_default();
    if let Some(values) = variant.get("enum").and_then(Value::as_array) {
        for value in values {
            let _ = writeln!(page, "- `{value}`{about}");
        }
    } else if let Some(value) = variant.get("const") {
        let _ = writeln!(page, "- `{value}`{about}");
    } else if let Some(properties) = variant.get("properties").and_then(Value::as_object) {
        let keys: Vec<String> = properties
            .iter()
            .map(|(key, property)| format!("`{key}` ({})", kind(property)))
            .collect();
        let _ = writeln!(page, "- an object with {}{about}", keys.join(", "));
    } else {
        let _ = writeln!(page, "- {}{about}", kind(variant));
    }
}

/// Returns the description of a type or key, as Markdown shows it. Names in rustdoc's links become code.
fn description(schema: &Value) -> Option<String> {
    let text = schema.get("description").and_then(Value::as_str)?;
    let text = text.replace("[`", "`").replace("`]", "`");
    let mut shown = String::with_capacity(text.len());
    for (nr, part) in text.split('`').enumerate() {
        if nr % 2 == 1 {
            let _ = write!(shown, "`{part}`");
        } else {
            shown.push_str(&part.replace('<', "&lt;").replace('|', "\\|"));
        }
    }
    Some(shown)
}

/// Returns a type in a few words, with links to those that have a table.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.rsplit('/').next().unwrap_or(reference);
        return format!("[{name}](#{})", anchor(name));
    }
    if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
        return any.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    let items = |word: &str| match schema.get("items") {
        Some(items) => format!("{word} of {}", kind(items)),
        None => word.to_owned(),
    };
    let words = |name: &str| match name {
        "array" => items("list"),
        "object" => match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => format!("object of {}", kind(values)),
            _ => "object".to_owned(),
        },
        name => name.to_owned(),
    };
    match schema.get("type") {
        Some(Value::String(name)) => words(name),
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str).map(words);
            names.collect::<Vec<_>>().join(" or ")
        }
        _ => match schema.get("const") {
            Some(value) => format!("`{value}`"),
            None => "any".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_types_and_forms_are_told() {
        let schema = json!({
            "description": "A [`Thing`] of <b>, a | b.",
            "properties": {
                "a": {"type": ["integer", "null"], "description": "How many."},
                "b": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
                "c": {"type": "boolean", "default": false},
            },
            "required": ["b"],
            "$defs": {
                "Part": {"oneOf": [
                    {"const": "one", "description": "A single one."},
                    {"type": "object", "properties": {"more": {"type": "string"}}},
                ]},
            },
        });
        let wanted = "# thing\n\nThe schema itself: [thing.json](../../schema/thing.json).\n\n\
            A `Thing` of &lt;b>, a \\| b.\n\n\
            | key | type | meaning |\n|---|---|---|\n\
            | `a` | integer or null, optional | How many. |\n\
            | `b` | list of [Part](#part) |  |\n\
            | `c` | boolean, optional |  Default: `false`. |\n\n\
            ## Part\n\n- `\"one\"`: A single one.\n- an object with `more` (string)\n\n";
        assert_eq!(page("thing", &schema), wanted);
    }
}
