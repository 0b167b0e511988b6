//! Results as text, figures and pages.

pub mod figure;
pub(crate) mod format;
pub(crate) mod page;
