//! Scenarios on Debian's kernels, one target, so that `cargo test --test vm` boots machines and no other does.

mod act;
mod boot;
mod first;
mod product;
