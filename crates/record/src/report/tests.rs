//! Golden outputs.
