//! Digests that protect against oversight, not against an adversary.

/// Start value of [`fnv`].
pub const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues an FNV-1a hash of 64 bits (Fowler, Noll, Vo; draft-eastlake-fnv).
pub fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
