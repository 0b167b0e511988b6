//! The budget of the page-table monitor: a share of one CPU, by measured cost.
//!
//! [`BudgetShares`] divides it. On a shared virtual machine the reported CPU time is sometimes far more than was used,
//! so both controllers tolerate single outliers. They differ in the controlled quantity:
//!
//! - `TokenBucket`: the amount of work that can be planned piece by piece (clears of accessed bits);
//! - `FixedCost`: the length of intervals that all cost the same (reading all tables).

mod fixed_cost;
mod shares;
mod token_bucket;

pub(super) use fixed_cost::FixedCost;
pub use shares::BudgetShares;
pub(super) use token_bucket::{TokenBucket, total_ns};
