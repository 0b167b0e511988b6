//! The budget of a monitor: a share of one CPU, by measured cost.
//!
//! [`BudgetShares`] divides it. On a shared virtual machine the reported CPU time is sometimes far more than was used,
//! so all three controllers tolerate single outliers. They differ in the controlled quantity:
//!
//! - [`BudgetController`]: the pace of work of one kind (the region monitor's samples per second);
//! - `TokenBucket`: the amount of work that can be planned piece by piece (clears of accessed bits);
//! - `FixedCost`: the length of intervals that all cost the same (reading all tables).

mod fixed_cost;
mod pace;
mod shares;
mod token_bucket;

pub(super) use fixed_cost::FixedCost;
pub use pace::BudgetController;
pub use shares::BudgetShares;
pub(super) use token_bucket::{TokenBucket, total_ns};
