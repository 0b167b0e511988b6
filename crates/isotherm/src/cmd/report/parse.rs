//! Sizes, durations and shares as people type them.
//!
//! DAMON users have unit strings in their files (`4 KiB`, `"4,096"`, `5 ms`, `max`): these work too.

use isotherm_engine::Nanos;

/// Powers of 1024, whether spelt `K`, `KB` or `KiB`, as `damo` and the kernel do.
const BYTE_UNITS: [(&str, f64); 7] = [
    ("", 1.0),
    ("k", 1024.0),
    ("m", 1_048_576.0),
    ("g", 1_073_741_824.0),
    ("t", 1_099_511_627_776.0),
    ("p", 1_125_899_906_842_624.0),
    ("e", 1_152_921_504_606_846_976.0),
];

/// A size: `2M`, `2 MiB`, `4,096`, `1.5G`, `max`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    if text.trim() == "max" {
        return Ok(u64::MAX);
    }
    let (number, unit) = split(text)?;
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let unit = unit.strip_suffix('i').unwrap_or(unit);
    let factor = BYTE_UNITS.iter().find(|(name, _)| *name == unit);
    let (_, factor) = factor.ok_or_else(|| hint(text, "a size such as 2M, 512 KiB or 4,096"))?;
    Ok((number * factor).round() as u64)
}

/// A duration: `5s`, `100 ms`, `2m`, `1h`; without a unit, seconds.
pub(super) fn duration(text: &str) -> Result<Nanos, String> {
    if text.trim() == "max" {
        return Ok(Nanos(u64::MAX));
    }
    let (number, unit) = split(text)?;
    let nanos = match unit.as_str() {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "" | "s" | "sec" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        "d" => 86_400e9,
        _ => return Err(hint(text, "a duration such as 5s, 100ms or 2m")),
    };
    Ok(Nanos((number * nanos).round() as u64))
}

/// A share in percent: `5%` or `5`; gives 0 to 1.
pub(super) fn percent(text: &str) -> Result<f32, String> {
    let (number, unit) = split(text)?;
    match unit.as_str() {
        "" | "%" if number <= 100.0 => Ok((number / 100.0) as f32),
        _ => Err(hint(text, "a share from 0% to 100%")),
    }
}

/// A percentile, 0 to 100.
pub(super) fn percentile(text: &str) -> Result<f64, String> {
    percent(text).map(|_| ())?;
    split(text).map(|(number, _)| number)
}

fn split(text: &str) -> Result<(f64, String), String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.replace(',', "");
    let number = number
        .parse::<f64>()
        .map_err(|_| hint(text, "a number, with a unit"))?;
    Ok((number, unit.trim().to_ascii_lowercase()))
}

fn hint(text: &str, wanted: &str) -> String {
    format!("{text:?} is not {wanted}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_all_spellings() {
        let sizes = ["4,096", "2M", "2 MiB", "1.5k", "1gb", "0", "max"].map(size);
        let expected = [4096, 2 << 20, 2 << 20, 1536, 1 << 30, 0, u64::MAX];
        assert_eq!(sizes, expected.map(Ok));
        assert!(size("2 parsecs").is_err() && size("M").is_err() && size("-1").is_err());
    }

    #[test]
    fn durations_and_shares() {
        let times = ["5s", "5", "100 ms", "2m", "1.5h"].map(duration);
        let expected = [5_000, 5_000, 100, 120_000, 5_400_000].map(Nanos::from_millis);
        assert_eq!(times, expected.map(Ok));
        assert_eq!(percent("5%"), Ok(0.05));
        assert_eq!(percentile("99.9"), Ok(99.9));
        assert!(percent("120%").is_err() && duration("5 bananas").is_err());
    }
}
