//! Any YAML or JSON as plain values, for descriptions in these languages that are no configurations: a simulated
//! machine, for instance.

use serde_json::Value as Plain;

use crate::cursor::Log;
use crate::node::{Node, Value};
use crate::problem::Problems;
use crate::{ConfigFormat, parse};

/// Reads a text. Numbers stay text, as their units are not known here.
///
/// # Errors
/// Fails if the text is neither YAML nor JSON, or longer than [`crate::TEXT_MAX`].
pub fn plain(text: &str) -> Result<Plain, Problems> {
    let log = Log::new(text);
    let root = parse(text, ConfigFormat::Detect, &log);
    root.map(value).ok_or_else(|| log.into_problems())
}

fn value(node: Node) -> Plain {
    match node.value {
        Value::Null => Plain::Null,
        Value::Flag(flag) => Plain::Bool(flag),
        Value::Number(text) | Value::Text(text) => Plain::String(text),
        Value::List(nodes) => Plain::Array(nodes.into_iter().map(value).collect()),
        Value::Map(entries) => {
            let entries = entries.into_iter();
            Plain::Object(
                entries
                    .map(|entry| (entry.key, value(entry.value)))
                    .collect(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = "nodes:\n- {size: 8 GiB, latency: 90ns}\nhuge: true\ncpus: 4\nnone: ~\n";
        let json = r#"{"nodes": [{"size": "8 GiB", "latency": "90ns"}], "huge": true, "cpus": 4,
            "none": null}"#;
        let read = plain(yaml).expect("it is YAML");
        assert_eq!(read, plain(json).expect("it is JSON"));
        assert_eq!(read["cpus"], "4");
        assert!(plain("a: [").is_err());
    }
}
