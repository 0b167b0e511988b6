//! Swap, and commands that bring memory there as a whole or back.

pub(crate) mod park;
pub(crate) mod restore;
pub(crate) mod swap;
