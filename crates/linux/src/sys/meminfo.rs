//! The kernel's memory statistics: `Name: N kB` lines of the machine, of a node, or of this process
//! (Documentation/filesystems/proc.rst).

use std::collections::BTreeMap;
use std::fs;

use crate::text;

/// Statistics from one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meminfo {
    bytes: BTreeMap<String, u64>,
}

impl Meminfo {
    /// Reads the machine's statistics from `/proc/meminfo`. They are empty if it cannot be read.
    pub fn read() -> Self {
        Self::of("/proc/meminfo", "")
    }

    /// Reads a node's statistics. They are empty if there is no such node.
    pub fn of_node(node: u32) -> Self {
        let path = format!("/sys/devices/system/node/node{node}/meminfo");
        Self::of(&path, &format!("Node {node} "))
    }

    /// Returns the bytes of hugetlbfs pages of a node, in use or not.
    pub fn hugetlb_of_node(node: u32) -> u64 {
        let directory = format!("/sys/devices/system/node/node{node}/hugepages");
        let sizes = fs::read_dir(directory).into_iter().flatten().flatten();
        let bytes = sizes.filter_map(|size| {
            let name = size.file_name().into_string().ok()?;
            let kib: u64 = { name.strip_prefix("hugepages-")?.strip_suffix("kB")? }
                .parse()
                .ok()?;
            let nr: u64 = text::number(size.path().join("nr_hugepages"))?;
            Some(nr * kib * 1024)
        });
        bytes.sum()
    }

    /// Reads this process's statistics from `/proc/self/status`: `VmRSS` and similar fields.
    pub fn of_ourselves() -> Self {
        Self::of("/proc/self/status", "")
    }

    fn of(path: &str, prefix: &str) -> Self {
        Self::parse(&fs::read_to_string(path).unwrap_or_default(), prefix)
    }

    /// Parses the lines that begin with `prefix` and are in kB. Others (counts of huge pages, names) are no amounts of
    /// memory.
    fn parse(text: &str, prefix: &str) -> Self {
        let fields = text.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix(prefix)?.split_once(':')?;
            let kib: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
            Some((name.to_owned(), kib.checked_mul(1024)?))
        });
        Self {
            bytes: fields.collect(),
        }
    }

    /// Returns the bytes of the field `name`, if it exists.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.bytes.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, prefix: &str, name: &str, wanted: Option<u64>) {
        let found = Meminfo::parse(text, prefix).get(name);
        assert_eq!(found, wanted, "{name} of {text:?}");
    }

    #[test]
    fn only_amounts_of_memory_are_taken_and_in_bytes() {
        let machine = "MemTotal:       65786460 kB\nMemFree:  12 kB\nHugePages_Total:       3\n\
                       Active(anon):     100 kB\nMem:\nDirty: x kB\nZswap: 99999999999999999999 kB";
        check(machine, "", "MemTotal", Some(65_786_460 << 10));
        check(machine, "", "MemFree", Some(12 << 10));
        check(machine, "", "Active(anon)", Some(100 << 10));
        for name in ["HugePages_Total", "Mem", "Dirty", "Zswap", "Active", ""] {
            check(machine, "", name, None);
        }
        let node = "Node 1 MemTotal:   8 kB\nNode 10 MemTotal:  9 kB\n";
        check(node, "Node 1 ", "MemTotal", Some(8 << 10));
        check(node, "Node 10 ", "MemTotal", Some(9 << 10));
        let of_process = "Name:\tab c\nVmRSS:\t  2048 kB\n";
        check(of_process, "", "VmRSS", Some(2 << 20));
    }

    #[test]
    fn this_machine_has_memory_and_we_use_some() {
        let machine = Meminfo::read();
        let (total, free) = (machine.get("MemTotal"), machine.get("MemFree"));
        assert!(total > free && free.is_some(), "{machine:?}");
        assert!(Meminfo::of_ourselves().get("VmRSS") > Some(0));
        assert_eq!(Meminfo::of_node(u32::MAX), Meminfo::default());
    }
}
