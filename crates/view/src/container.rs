//! One file for JSON and the arrays that it refers to. It has the length of the JSON (32 bits), the JSON, and the
//! arrays, which begin at the next multiple of 8 bytes. Each array begins at a multiple of 8 bytes. All numbers are
//! little-endian.
//!
//! A browser makes typed arrays of it without copying: `page/data.js`.

use serde::Serialize;

/// A reference to an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ref {
    /// Offset in bytes from the first array.
    at: usize,
    count: usize,
    #[serde(rename = "type")]
    kind: &'static str,
}

/// Arrays in one buffer, one after the other.
#[derive(Debug, Default)]
pub struct Arrays {
    bytes: Vec<u8>,
}

impl Arrays {
    /// Adds numbers of 16 bits.
    pub fn u16(&mut self, numbers: &[u16]) -> Ref {
        self.add("u16", numbers.iter().map(|number| number.to_le_bytes()))
    }

    /// Adds numbers of 32 bits.
    pub fn u32(&mut self, numbers: impl Iterator<Item = u32>) -> Ref {
        self.add("u32", numbers.map(u32::to_le_bytes))
    }

    /// Adds floating-point numbers of 64 bits.
    pub fn f64(&mut self, numbers: impl Iterator<Item = f64>) -> Ref {
        self.add("f64", numbers.map(f64::to_le_bytes))
    }

    fn add<const N: usize>(
        &mut self,
        kind: &'static str,
        numbers: impl Iterator<Item = [u8; N]>,
    ) -> Ref {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let at = self.bytes.len();
        self.bytes.extend(numbers.flatten());
        Ref {
            at,
            count: (self.bytes.len() - at) / N,
            kind,
        }
    }

    /// Builds the file from `json`, which refers to the arrays.
    pub fn finish(self, json: &impl Serialize) -> serde_json::Result<Vec<u8>> {
        let json = serde_json::to_vec(json)?;
        let mut whole = Vec::with_capacity(json.len() + self.bytes.len() + 12);
        whole.extend((json.len() as u32).to_le_bytes());
        whole.extend(json);
        whole.resize(whole.len().next_multiple_of(8), 0);
        whole.extend(self.bytes);
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_begin_at_multiples_of_eight_bytes() {
        let mut arrays = Arrays::default();
        let first = arrays.u16(&[1, 2, 3]);
        let second = arrays.u32([4, 5].into_iter());
        let third = arrays.f64([6.5].into_iter());
        assert_eq!([first.at, second.at, third.at], [0, 8, 16]);
        assert_eq!([first.count, second.count, third.count], [3, 2, 1]);
        let whole = arrays.finish(&["json"]).expect("it is written");
        assert_eq!(whole[..4], 8_u32.to_le_bytes());
        assert_eq!(&whole[4..12], br#"["json"]"#);
        assert_eq!(whole[16..22], [1, 0, 2, 0, 3, 0]);
        assert_eq!(whole.len(), 16 + 24);
    }
}
