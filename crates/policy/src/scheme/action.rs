//! Actions on a region's memory: DAMOS's.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Declares the actions, in DAMOS's order: the variant, DAMOS's name, the order in which it takes memory, its effect.
macro_rules! actions {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $order:ident, $effect:expr;)*) => {
        /// An action, by DAMOS's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum Action {
            $($(#[$doc])* $variant,)*
        }

        impl Action {
            /// Every action, in DAMOS's order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns DAMOS's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the order in which it takes memory.
            pub const fn order(self) -> Order {
                match self {
                    $(Self::$variant => Order::$order,)*
                }
            }

            /// Returns its effect on memory, if it has one.
            pub const fn effect(self) -> Option<Effect> {
                match self {
                    $(Self::$variant => $effect,)*
                }
            }
        }
    };
}

const NEAR: Option<Effect> = Some(Effect::Nearness(true));
const FAR: Option<Effect> = Some(Effect::Nearness(false));
const HUGE: Option<Effect> = Some(Effect::HugePages(true));
const SMALL: Option<Effect> = Some(Effect::HugePages(false));

actions! {
    /// Read it in ahead of use (`MADV_WILLNEED`).
    Willneed, "willneed", Equal, NEAR;
    /// Let reclaim take it first (`MADV_COLD`).
    Cold, "cold", Equal, FAR;
    /// Reclaim it now (`MADV_PAGEOUT`).
    Pageout, "pageout", ColdFirst, FAR;
    /// Back it with huge pages when that suits the kernel (`MADV_HUGEPAGE`).
    Hugepage, "hugepage", Equal, HUGE;
    /// Do not back it with huge pages, and split those that are there (`MADV_NOHUGEPAGE`).
    Nohugepage, "nohugepage", Equal, SMALL;
    /// Back it with huge pages now (`MADV_COLLAPSE`).
    Collapse, "collapse", Equal, HUGE;
    /// Let reclaim take it last.
    LruPrio, "lru_prio", HotFirst, NEAR;
    /// Let reclaim take it first.
    LruDeprio, "lru_deprio", ColdFirst, FAR;
    /// Move it to another node, the hottest first.
    MigrateHot, "migrate_hot", HotFirst, NEAR;
    /// Move it to another node, the coldest first.
    MigrateCold, "migrate_cold", ColdFirst, FAR;
    /// Only count it.
    Stat, "stat", Equal, None;
}

/// Order in which an action takes memory, if a quota does not allow all of it (`damos_pageout_score` and related
/// functions in mm/damon/ops-common.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The hottest.
    HotFirst,
    /// The coldest.
    ColdFirst,
    /// No order.
    Equal,
}

/// Effect of an action on memory. Two schemes with contrary effects on the same memory undo each other's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Memory is in huge pages, or not.
    HugePages(bool),
    /// Memory is near, or far: in fast memory or in slow, in swap, next to be reclaimed.
    Nearness(bool),
}

impl Effect {
    /// Returns whether the two effects are contrary.
    pub fn is_contrary(self, other: Self) -> bool {
        match (self, other) {
            (Self::HugePages(one), Self::HugePages(other))
            | (Self::Nearness(one), Self::Nearness(other)) => one != other,
            _ => false,
        }
    }
}

impl Action {
    /// Names under which actions were published before DAMOS had its present ones: `DAMOS_DEMOTE` and `DAMOS_PROMOTE`
    /// of *HMSDK v2.0* and of the first patches for tiered memory.
    pub const FORMER_NAMES: [(&'static str, Self); 2] =
        [("demote", Self::MigrateCold), ("promote", Self::MigrateHot)];

    /// Returns whether the kernel applies it through the LRU lists, which hold no locked memory.
    pub const fn is_reclaim(self) -> bool {
        matches!(self, Self::Pageout | Self::Cold | Self::LruDeprio)
    }

    /// Returns whether it makes huge pages.
    pub const fn makes_huge(self) -> bool {
        matches!(self, Self::Hugepage | Self::Collapse)
    }

    /// Returns whether it moves memory to another node, so that a destination must be named.
    pub const fn migrates(self) -> bool {
        matches!(self, Self::MigrateHot | Self::MigrateCold)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Action {
    type Err = ();

    /// Parses a present or former name, in capitals and as the kernel's constant as well: `pageout`, `DEMOTE`,
    /// `DAMOS_MIGRATE_HOT`.
    fn from_str(name: &str) -> Result<Self, ()> {
        let plain = name.to_ascii_lowercase();
        let plain = plain.strip_prefix("damos_").unwrap_or(&plain);
        let names = Self::ALL.iter().map(|action| (action.name(), *action));
        let mut names = names.chain(Self::FORMER_NAMES);
        let found = names.find(|(name, _)| *name == plain);
        found.map(|(_, action)| action).ok_or(())
    }
}

/// A node to migrate to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Destination {
    /// NUMA node.
    pub node: u32,
    /// Weight relative to the other destinations' weights; not zero.
    pub weight: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_known_by_their_former_names() {
        for action in Action::ALL {
            assert_eq!(action.name().parse(), Ok(*action));
        }
        for (name, action) in [
            ("DEMOTE", Action::MigrateCold),
            ("promote", Action::MigrateHot),
            ("DAMOS_PROMOTE", Action::MigrateHot),
            ("DAMOS_PAGEOUT", Action::Pageout),
        ] {
            assert_eq!(name.parse(), Ok(action), "{name}");
        }
        for none in ["", "damos_", "damos_damos_demote", "demotion"] {
            assert_eq!(none.parse::<Action>(), Err(()), "{none}");
        }
    }
}
