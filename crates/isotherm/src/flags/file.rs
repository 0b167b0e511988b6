//! Configuration files.

use std::path::Path;

use anyhow::Context as _;
use isotherm_config::{ConfigFormat, Configuration, ContextConfig};
use tracing::warn;

/// Reads a configuration file; warnings go to standard error.
pub(crate) fn load(path: &Path) -> anyhow::Result<Configuration> {
    let name = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let text =
        isotherm_config::text_of(&bytes).map_err(|problem| anyhow::anyhow!("{name}: {problem}"))?;
    let configuration = parse(&name.to_string(), text)?;
    for warning in &configuration.warnings {
        warn!("{name}: {warning}");
    }
    Ok(configuration)
}

pub(crate) fn contexts_of(file: Option<&Path>) -> anyhow::Result<Vec<ContextConfig>> {
    file.map_or(Ok(Vec::new()), |path| Ok(load(path)?.contexts))
}

/// Parses a configuration's text; `name` stands in the errors.
pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Configuration> {
    isotherm_config::load(text, ConfigFormat::Detect).map_err(|problems| {
        let problems: Vec<String> = problems
            .iter()
            .map(|problem| format!("  {problem}"))
            .collect();
        anyhow::anyhow!("{name} cannot be used:\n{}", problems.join("\n"))
    })
}
