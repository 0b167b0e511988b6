//! Reads a configuration from standard input and writes it as JSON, or as YAML with the argument `yaml`: `cargo run -p
//! isotherm-config --example rewrite < FILE`.

use std::io::Read;

use isotherm_config::{ConfigFormat, load, text_of, to_json, to_yaml};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    let configuration = load(text_of(&bytes)?, ConfigFormat::Detect)?;
    let is_yaml = std::env::args().any(|argument| argument == "yaml");
    let write = if is_yaml { to_yaml } else { to_json };
    print!("{}", write(&configuration));
    Ok(())
}
