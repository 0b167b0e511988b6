//! Isotherm.
