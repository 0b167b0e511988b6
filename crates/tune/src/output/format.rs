//! Formats of shares and of numbers that may be below zero.

/// Formats a loss with two decimals of a per cent: limits are of one per cent and less.
pub(crate) fn percent(share: f64) -> String {
    signed(share, |share| format!("{:.2} %", 100.0 * share))
}

/// Formats a number that may be below zero.
pub(crate) fn signed(value: f64, show: impl Fn(f64) -> String) -> String {
    let text = show(value.abs());
    let is_none = text.starts_with("0 ");
    if value < 0.0 && !is_none {
        format!("-{text}")
    } else {
        text
    }
}
