//! Acting: is what schemes did exactly what is reported, and does it do no harm?

mod acting;
pub(crate) mod compaction;
mod goals;
mod guard;
mod huge;
mod parking;
mod pod_policy;
mod safety;
