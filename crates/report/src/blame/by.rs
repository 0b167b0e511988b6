//! Bytes of stacks, summed by a common property.

use std::collections::BTreeMap;

use serde::Serialize;

use super::StackBytes;
use crate::context::RecordContext;

/// The grouping of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The function that requested the memory.
    #[default]
    Function,
    /// The innermost function, even in an allocator, a copy function or a run time.
    Innermost,
    /// The whole stack.
    Stack,
    /// The file of the function.
    Library,
    /// The thread's name.
    Thread,
    /// The name of the mapping.
    Mapping,
    /// The target.
    Target,
}

/// Bytes of one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Blamed {
    /// Name of the group.
    pub name: String,
    /// Bytes of the stacks in this group.
    pub bytes: u64,
    /// Bytes of these that count for the nearer of two stacks.
    pub likely_bytes: u64,
    /// Bytes that the function and its callees touched, where groups are functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inclusive_bytes: Option<u64>,
}

pub(super) fn sum_up(by: By, stacks: &[StackBytes], context: &RecordContext) -> Vec<Blamed> {
    let mut sums: BTreeMap<String, Blamed> = BTreeMap::new();
    for stack in stacks {
        let sum = sums.entry(name(by, stack, context)).or_default();
        sum.bytes += stack.bytes;
        sum.likely_bytes += stack.likely_bytes;
    }
    if matches!(by, By::Function | By::Innermost) {
        for stack in stacks {
            let mut functions: Vec<&String> = stack.stack.iter().collect();
            functions.sort_unstable();
            functions.dedup();
            for function in functions {
                if let Some(sum) = sums.get_mut(function) {
                    *sum.inclusive_bytes.get_or_insert(0) += stack.bytes;
                }
            }
        }
    }
    let sums = sums.into_iter().map(|(name, sum)| Blamed { name, ..sum });
    let mut sums: Vec<Blamed> = sums.collect();
    sums.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    sums
}

fn name(by: By, stack: &StackBytes, context: &RecordContext) -> String {
    match by {
        By::Function => stack.function.clone(),
        By::Innermost => stack.stack.last().cloned().unwrap_or_default(),
        By::Stack => stack.stack.join(";"),
        By::Library => {
            let library = stack.library();
            library.unwrap_or("[code made at run time]").to_owned()
        }
        By::Thread => stack.thread.clone(),
        By::Mapping => stack.mapping.to_string(),
        By::Target => context.target_info(stack.target).label(),
    }
}
