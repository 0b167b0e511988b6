//! The page cache: the cached pages of files, and the times of their accesses.
//!
//! [`memmap`] finds them, [`file`] opens their files, [`clear`] clears the kernel's marks of accesses, [`discard`]
//! drops them.

pub mod clear;
pub mod discard;
pub mod file;
pub mod memmap;
mod window;

use isotherm_engine::page_cache::Lru;

/// Returns the LRU that the kernel uses now (`/sys/kernel/mm/lru_gen/enabled`, which any administrator may change).
pub fn lru() -> Lru {
    match std::fs::read_to_string("/sys/kernel/mm/lru_gen/enabled") {
        Ok(enabled) => lru_of(&enabled),
        Err(_) => Lru::Classic,
    }
}

/// Parses the bits, in hexadecimal: the first shows whether it is on, the others configure page table walks.
fn lru_of(enabled: &str) -> Lru {
    let bits = u32::from_str_radix(enabled.trim().trim_start_matches("0x"), 16);
    match bits {
        Ok(bits) if bits & 1 == 0 => Lru::Classic,
        _ => Lru::MultiGen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_to_be_off_may_be_on() {
        assert_eq!(lru_of("0x0000\n"), Lru::Classic);
        assert_eq!(lru_of("0x0006\n"), Lru::Classic);
        assert_eq!(lru_of("0x0007\n"), Lru::MultiGen);
        assert_eq!(lru_of("y\n"), Lru::MultiGen);
    }
}
