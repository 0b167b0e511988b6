//! Reports by the code that touched memory first.

pub(crate) mod blame;
pub(crate) mod blame_diff;
pub(crate) mod flame;
