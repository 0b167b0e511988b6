//! Parsers of flags of reports other than sizes and times.

use isotherm_engine::units::{Decimal, UnitError, parse_share};

/// Parses an access rate, such as `5%`, to 0 to 1.
pub(super) fn rate(text: &str) -> Result<f32, UnitError> {
    parse_share(text).map(|share| share as f32)
}

/// Parses a percentile of 0 to 100, such as `99` or `99.9`.
pub(super) fn percentile(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let percentile = Decimal::parse(number).map(Decimal::to_f64);
    percentile
        .filter(|percentile| *percentile <= 100.0)
        .ok_or_else(|| format!("`{text}` is not a percentile of 0 to 100, e.g. 99 or 99.9"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_sign_and_percentiles_need_none() {
        assert_eq!(rate("5%"), Ok(0.05));
        assert!(rate("5").is_err() && rate("120%").is_err());
        assert_eq!(percentile("99.9"), Ok(99.9));
        assert!(percentile("101").is_err() && percentile("most").is_err());
    }
}
