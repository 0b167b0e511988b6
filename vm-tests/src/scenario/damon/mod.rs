//! Scenarios of the kernel's DAMON.

pub(crate) mod kernel_damon;
pub(crate) mod kernel_damon_actions;
pub(crate) mod kernel_damon_daemon;
pub(crate) mod kernel_damon_damo;
pub(crate) mod kernel_damon_killed;
pub(crate) mod kernel_damon_quotas;
pub(crate) mod kernel_damon_truth;
