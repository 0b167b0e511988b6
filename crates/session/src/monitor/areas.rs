//! Classes of a target's pages, by its mappings.

use isotherm_engine::frames::MappedClass;
use isotherm_linux::areas::MappedArea;

/// Mappings of a target, to be queried by ascending addresses.
pub(super) struct Areas<'a> {
    rest: &'a [MappedArea],
    /// Range of the last result and its class; `None` between mappings.
    found: (std::ops::Range<u64>, Option<MappedClass>),
}

impl<'a> Areas<'a> {
    pub(super) fn new(areas: &'a [MappedArea]) -> Self {
        Self {
            rest: areas,
            found: (0..0, None),
        }
    }

    pub(super) fn class_at(&mut self, address: u64) -> Option<MappedClass> {
        if !self.found.0.contains(&address) {
            let ended = self.rest.partition_point(|area| area.range.end <= address);
            self.rest = &self.rest[ended..];
            self.found = match self.rest.first() {
                Some(area) if area.range.start <= address => {
                    (area.range.start..area.range.end, Some(class_of(area)))
                }
                area => {
                    let end = area.map_or(u64::MAX, |area| area.range.start);
                    (address..end, None)
                }
            };
        }
        self.found.1
    }
}

/// Returns the class of a mapping's pages. Most pages of a writable private file mapping have been written, so they
/// count as anonymous.
fn class_of(area: &MappedArea) -> MappedClass {
    if area.is_file() {
        if area.permissions.is_private() && area.permissions.is_writable() {
            MappedClass::Anonymous
        } else {
            MappedClass::File
        }
    } else if area.permissions.is_private() {
        MappedClass::Anonymous
    } else {
        MappedClass::Shared
    }
}

#[cfg(test)]
mod tests {
    use isotherm_engine::{AddressRange, PAGE_SIZE};
    use isotherm_linux::areas::Permissions;

    use super::*;

    fn area((start, end): (u64, u64), permissions: &str, name: &str) -> MappedArea {
        MappedArea {
            range: AddressRange::new(start, end),
            permissions: Permissions::new(permissions).expect("four flags"),
            name: name.into(),
            file: None,
            unreclaimable: None,
        }
    }

    #[test]
    fn mappings_tell_what_their_pages_are() {
        let check = |permissions: &str, name: &str, wanted| {
            let class = class_of(&area((0, PAGE_SIZE), permissions, name));
            assert_eq!(class, wanted, "{permissions} {name}");
        };
        check("rw-p", "", MappedClass::Anonymous);
        check("rw-p", "[heap]", MappedClass::Anonymous);
        check("rw-p", "/lib/libc.so.6", MappedClass::Anonymous);
        check("r-xp", "/lib/libc.so.6", MappedClass::File);
        check("rw-s", "/var/lib/data", MappedClass::File);
        check("rw-s", "/dev/shm/x", MappedClass::Shared);
        check("rw-s", "/memfd:x (deleted)", MappedClass::Shared);
        check("rw-s", "", MappedClass::Shared);
    }

    #[test]
    fn mappings_are_found_by_address() {
        let all = [((10, 20), ""), ((20, 30), "/file"), ((50, 60), "")];
        let all = all.map(|(range, name)| area(range, "r--p", name));
        let mut areas = Areas::new(&all);
        let (anonymous, file) = (Some(MappedClass::Anonymous), Some(MappedClass::File));
        let asked = [5, 10, 19, 20, 29, 30, 49, 50, 60, 70];
        let wanted = [
            None, anonymous, anonymous, file, file, None, None, anonymous, None, None,
        ];
        assert_eq!(asked.map(|address| areas.class_at(address)), wanted);
    }
}
