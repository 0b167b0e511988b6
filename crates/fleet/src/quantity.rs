//! Kubernetes' quantities of memory: `128Mi`, `1.5G`, `1e9`.
//!
//! Source: k8s.io/apimachinery, pkg/api/resource, `Quantity`.

const MIB: u64 = 1 << 20;

/// Parses a quantity, in bytes; a part of a byte counts as one. Returns `None` for what is no quantity, or negative.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let end = text
        .char_indices()
        .find(|(at, c)| match c {
            '0'..='9' | '.' => false,
            '+' | '-' => *at > 0 && !text[..*at].ends_with(['e', 'E']),
            // An exponent has digits after it, `E` alone is exa.
            'e' | 'E' => {
                !text[at + 1..].starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c))
            }
            _ => true,
        })
        .map_or(text.len(), |(at, _)| at);
    let (number, suffix) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor: f64 = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024_f64.powi(2),
        "Gi" => 1024_f64.powi(3),
        "Ti" => 1024_f64.powi(4),
        "Pi" => 1024_f64.powi(5),
        "Ei" => 1024_f64.powi(6),
        _ => return None,
    };
    let bytes = (number * factor).ceil();
    (bytes >= 0.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

/// Returns `bytes`, rounded up to whole MiB.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(MIB) * MIB
}

/// Returns `bytes` as a quantity.
pub(crate) fn format(bytes: u64) -> String {
    if bytes.is_multiple_of(MIB) {
        format!("{}Mi", bytes / MIB)
    } else {
        bytes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("128Mi", Some(128 << 20)),
            ("1.5Gi", Some(3 << 29)),
            ("129M", Some(129_000_000)),
            ("129e6", Some(129_000_000)),
            ("1E3", Some(1000)),
            ("1e+3", Some(1000)),
            ("2E", Some(2_000_000_000_000_000_000)),
            ("128974848000m", Some(128_974_848)),
            ("100m", Some(1)),
            ("", None),
            ("Mi", None),
            ("-1", None),
            ("1Zi", None),
            ("1 Mi", None),
            ("1e99", None),
        ] {
            assert_eq!(parse(text), bytes, "{text}");
        }
        let written = [0, 1, 3 << 20, rounded(1)].map(format);
        assert_eq!(written, ["0Mi", "1", "3Mi", "1Mi"]);
    }

    proptest! {
        #[test]
        fn no_text_panics_and_written_ones_are_read(text in ".*", bytes in 0..1_u64 << 50) {
            let _ = parse(&text);
            prop_assert_eq!(parse(&format(bytes)), Some(bytes));
        }
    }
}
