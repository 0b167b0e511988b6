//! Parameters of an experiment: sizes, times and nodes that a user may set (`--set SIZE=8GiB`).
//!
//! Commands get them as environment variables. Values in the experiment's file may refer to them as `$NAME`, such as
//! the memory that a workload needs.

use std::collections::BTreeMap;

/// Values of parameters, by name.
pub type Parameters = BTreeMap<String, String>;

/// Names with a meaning of their own to a shell or the runner.
const TAKEN: [&str; 9] = [
    "DIR",
    "ISOTHERM",
    "EXPERIMENT",
    "CGROUP",
    "PATH",
    "HOME",
    "IFS",
    "SECONDS",
    "RANDOM",
];

/// Returns the reason why `name` is not valid, if it is not.
pub fn name_fault(name: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let starts_well = name.starts_with(|c: char| c.is_ascii_uppercase());
    if !starts_well || !name.chars().all(fits) {
        return Some(format!(
            "parameter '{name}': capitals, digits and `_` only, a capital first, such as SIZE"
        ));
    }
    TAKEN.contains(&name).then(|| {
        format!("parameter '{name}': commands have another variable of that name; choose another")
    })
}

/// Replaces the parameters in `text` by their values. Fails with the name of an unknown parameter.
pub fn expand(text: &str, parameters: &Parameters) -> Result<String, String> {
    let mut parts = text.split('$');
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = part.find(|c| !is_name(c)).unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        let value = parameters.get(name).ok_or_else(|| name.to_owned())?;
        expanded += value;
        expanded += rest;
    }
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_stand_for_their_values() {
        let parameters =
            Parameters::from([("SIZE".into(), "4GiB".into()), ("N".into(), "2".into())]);
        let check = |text: &str, expected: Result<&str, &str>| {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(expand(text, &parameters), expected, "{text}");
        };
        check("1GiB", Ok("1GiB"));
        check("$SIZE", Ok("4GiB"));
        check("$N-$SIZE.", Ok("2-4GiB."));
        check("$SIZES", Err("SIZES"));
        check("$", Err(""));
    }

    #[test]
    fn names_are_those_of_variables_that_are_free() {
        assert_eq!(name_fault("COLD_1"), None);
        for name in ["size", "1A", "", "A-B", "PATH", "DIR"] {
            assert!(name_fault(name).is_some(), "{name}");
        }
    }
}
