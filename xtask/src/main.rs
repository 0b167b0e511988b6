//! Isotherm.
fn main() {}
