//! Exact decimal numbers.

/// A non-negative number: `digits * 10^-scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: u128,
    scale: i32,
}

impl Decimal {
    /// Parses `1.5`, `4,096`, `.5` or `2.5e-1`. Commas separate thousands, as damo prints them; a decimal comma is not
    /// guessed. Returns `None` for anything else, and for more digits than 128 bits hold.
    pub fn parse(text: &str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i16>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut groups = whole.split(',');
        let first = groups.next().unwrap_or_default();
        let has_groups = first.len() < whole.len();
        if has_groups && !(1..=3).contains(&first.len()) || groups.any(|group| group.len() != 3) {
            return None;
        }
        let (mut digits, mut nr_digits) = (0_u128, 0_usize);
        for c in whole.chars().filter(|c| *c != ',').chain(fraction.chars()) {
            digits = digits
                .checked_mul(10)?
                .checked_add(u128::from(c.to_digit(10)?))?;
            nr_digits += 1;
        }
        let scale = i32::try_from(fraction.len()).ok()? - i32::from(exponent);
        (nr_digits > 0).then_some(Self { digits, scale })
    }

    /// Returns the number at the start of `text`, as text, and the rest.
    pub(super) fn split(text: &str) -> (&str, &str) {
        let text = text.trim();
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, ',' | '.');
        let mut end = text.find(|c| !is_part(c)).unwrap_or(text.len());
        // An exponent, but not the E of exbibytes.
        let exponent = text[end..].strip_prefix(['e', 'E']).map(|rest| {
            let digits = rest.trim_start_matches(['+', '-']);
            let after = digits.trim_start_matches(|c: char| c.is_ascii_digit());
            (digits.len() - after.len(), rest.len() - digits.len())
        });
        if let Some((nr_digits @ 1.., nr_signs @ 0..=1)) = exponent {
            end += 1 + nr_signs + nr_digits;
        }
        let (number, rest) = text.split_at(end);
        (number, rest.trim_start())
    }

    /// Returns whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// Returns the whole part of `self * factor`, and whether that is exact; `None` if it is too large for 128 bits.
    pub fn times(self, factor: u64) -> Option<(u128, bool)> {
        let product = self.digits.checked_mul(u128::from(factor))?;
        if product == 0 {
            return Some((0, true));
        }
        let power = 10_u128.checked_pow(self.scale.unsigned_abs());
        match (self.scale >= 0, power) {
            (true, Some(power)) => Some((product / power, product % power == 0)),
            (true, None) => Some((0, false)),
            (false, power) => Some((product.checked_mul(power?)?, true)),
        }
    }

    /// Returns a hundredth of it.
    #[must_use]
    pub const fn per_cent(self) -> Self {
        Self {
            digits: self.digits,
            scale: self.scale + 2,
        }
    }

    /// Returns whether it is 2^64 - 1, which is damo's `max`, in any unit that damo writes.
    pub fn is_max(self) -> bool {
        let mut digits = self.digits;
        while digits > u128::from(u64::MAX) && digits.is_multiple_of(10) {
            digits /= 10;
        }
        digits == u128::from(u64::MAX)
    }

    /// Returns the nearest binary fraction.
    pub fn to_f64(self) -> f64 {
        // One correctly rounded conversion of the decimal text.
        let text = format!("{}e{}", self.digits, -self.scale);
        text.parse().unwrap_or(f64::MAX)
    }
}
