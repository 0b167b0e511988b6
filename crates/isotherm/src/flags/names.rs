//! Options that take one of several names.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Parses one of these names to its value. Each has a help text, which may be empty.
pub(crate) fn one_of<T: Clone + Send + Sync + 'static>(
    values: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let values = values.iter();
    one_of_these(values.map(|(name, help, value)| (*name, *help, value)))
}

/// Parses a name, as [`one_of`] does, of values in any list.
pub(crate) fn one_of_these<T: Clone + Send + Sync + 'static>(
    values: impl Iterator<Item = (&'static str, &'static str, &'static T)>,
) -> impl TypedValueParser<Value = T> {
    let values: Vec<(&str, &str, &T)> = values.collect();
    let names = values.iter().map(|(name, help, _)| {
        let named = PossibleValue::new(*name);
        if help.is_empty() {
            named
        } else {
            named.help(*help)
        }
    });
    PossibleValuesParser::new(names).map(move |name: String| {
        let found = values.iter().find(|(known, ..)| *known == name);
        found.expect("the name is one of these").2.clone()
    })
}
