//! What a monitor may spend: a share of one CPU, by measured cost.
//!
//! [`BudgetShares`] says how it is divided. CPU time as a shared virtual machine tells it is now and then far more
//! than was used, so all three of these bear single outliers. They differ in what they control:
//!
//! - [`BudgetController`]: the pace of work of one kind (the region monitor's samples per second);
//! - `TokenBucket`: how much of work that can be planned piece by piece fits now (clears of accessed
//!   bits);
//! - `FixedCost`: the length of an interval of which each costs the same (reading all tables).

mod fixed_cost;
mod pace;
mod shares;
mod token_bucket;

pub(super) use fixed_cost::FixedCost;
pub use pace::BudgetController;
pub use shares::BudgetShares;
pub(super) use token_bucket::{TokenBucket, total_ns};
