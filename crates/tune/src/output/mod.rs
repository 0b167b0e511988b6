//! Results as text and pages.

pub(crate) mod format;
pub(crate) mod page;
