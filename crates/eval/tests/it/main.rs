//! Integration tests of experiments.

mod shipped;
