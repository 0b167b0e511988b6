//! Entries for fuzz targets.

/// Parses any text as `/proc/zoneinfo`; returns the number of zones.
pub fn zones(zoneinfo: &str) -> usize {
    super::node::parse_zones(zoneinfo).len()
}
