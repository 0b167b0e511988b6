//! Changes of a target's mappings between two scans.

use isotherm_engine::{Nanos, TargetId};
use isotherm_linux::areas::MappedArea;
use isotherm_record::{Mapping, MappingChange};

/// Returns the difference between two lists of mappings, both in address order.
pub(super) fn change(
    target: TargetId,
    time: Nanos,
    old: &[MappedArea],
    new: &[MappedArea],
) -> MappingChange {
    let mut change = MappingChange::adding(time, target, Vec::new());
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        match (old.peek(), new.peek()) {
            (Some(a), Some(b)) if a == b => {
                old.next();
                new.next();
            }
            (Some(a), b) if b.is_none_or(|b| a.range.start <= b.range.start) => {
                change.removed.push(a.range);
                old.next();
            }
            (_, Some(b)) => {
                change.added.push(Mapping {
                    range: b.range,
                    permissions: b.permissions.to_string(),
                    name: b.name.to_string(),
                    unreclaimable: b.unreclaimable,
                });
                new.next();
            }
            (_, None) => return change,
        }
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::AddressRange;
    use isotherm_linux::areas::Permissions;

    use super::*;

    fn area(start: u64, end: u64, name: &str) -> MappedArea {
        MappedArea {
            range: AddressRange::new(start, end),
            permissions: Permissions::new("rw-p").expect("four flags"),
            name: name.into(),
            file: None,
            unreclaimable: None,
        }
    }

    #[test]
    fn changes_hold_what_came_and_what_went() {
        let old = [area(1, 2, "a"), area(3, 4, "b"), area(5, 6, "c")];
        let new = [area(1, 2, "a"), area(3, 9, "b"), area(10, 11, "d")];
        let change = change(TargetId(0), Nanos(7), &old, &new);
        let removed = [(3, 4), (5, 6)].map(|(start, end)| AddressRange::new(start, end));
        assert_eq!(change.removed, removed);
        let added = change.added.iter();
        let added = added.map(|m| (m.range.start, m.name.as_str()));
        assert!(added.eq([(3, "b"), (10, "d")]));
    }
}
