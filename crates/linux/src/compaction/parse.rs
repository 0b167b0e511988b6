//! Parses `/proc/buddyinfo` (Documentation/filesystems/proc.rst), without trust.
//!
//! Limits: numbers beyond any machine (2^40 pages are 4 PiB) are refused, so that no sum overflows.
//! Kernels built for larger blocks than order 10 exist; their blocks are counted as several of 10.

use isotherm_policy::compaction::{NR_ORDERS, ZoneFacts};
use thiserror::Error;

use crate::arch;

/// Maximum pages of a zone: more than physical addresses reach.
const MAX_PAGES: u64 = 1 << 40;
/// Maximum zones of all nodes: 1024 nodes with 6 zones each, and a reserve.
const MAX_ZONES: usize = 1 << 13;
/// Maximum orders of any build of the kernel.
const MAX_ORDERS: usize = 20;

/// Position and reason of a format error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {why}")]
pub struct ParseError {
    pub line: usize,
    pub why: &'static str,
}

/// Parses `/proc/buddyinfo`: zones with their nodes, still without their sizes. Orders become those of pages of 4 KiB.
pub fn parse_buddyinfo(text: &str) -> Result<Vec<(u32, ZoneFacts)>, ParseError> {
    let mut zones = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |why| ParseError {
            line: index + 1,
            why,
        };
        let (node, rest) =
            node_of(line).ok_or_else(|| wrong("does not begin with `Node N, zone NAME`"))?;
        let mut fields = rest.split_whitespace();
        let name = fields.next().ok_or_else(|| wrong("names no zone"))?;
        let mut free_blocks = [0; NR_ORDERS];
        let mut nr_orders = 0;
        for (order, field) in fields.enumerate() {
            nr_orders = order + 1;
            if order >= MAX_ORDERS {
                return Err(wrong("has more orders than a kernel can have"));
            }
            let blocks = pages(field).ok_or_else(|| wrong("has a count that is no such number"))?;
            let (order, last) = (order + arch::frame_shift() as usize, NR_ORDERS - 1);
            free_blocks[order.min(last)] += blocks << order.saturating_sub(last);
        }
        if nr_orders == 0 {
            return Err(wrong("counts no blocks"));
        }
        if zones.len() >= MAX_ZONES {
            return Err(wrong("is one zone more than a machine can have"));
        }
        let zone = ZoneFacts {
            name: name.to_owned(),
            free_blocks,
            ..ZoneFacts::default()
        };
        zones.push((node, zone));
    }
    Ok(zones)
}

/// Splits `Node 0, zone   Normal ...` into the number and the text after `zone`.
fn node_of(line: &str) -> Option<(u32, &str)> {
    let (node, rest) = line.strip_prefix("Node ")?.split_once(',')?;
    let rest = rest.trim_start().strip_prefix("zone")?;
    rest.starts_with(' ')
        .then(|| Some((node.trim().parse().ok()?, rest)))?
}

fn pages(text: &str) -> Option<u64> {
    text.parse().ok().filter(|pages| *pages <= MAX_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_refused(text: &str, line: usize, why: &str) {
        let error = parse_buddyinfo(text).expect_err("is refused");
        assert_eq!((error.line, error.why), (line, why));
    }

    #[test]
    fn buddyinfo_is_read() {
        let text = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n\
                    Node 1, zone   Normal    285     51    186   1065    937    609    331    185    564    825   4099 \n";
        let zones = parse_buddyinfo(text).expect("parses");
        assert_eq!(zones.len(), 2);
        assert_eq!((zones[1].0, &*zones[1].1.name), (1, "Normal"));
        let free = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3];
        assert_eq!(zones[0].1.free_blocks, free);
        assert_eq!(zones[1].1.free_blocks[10], 4099);
        assert_eq!(parse_buddyinfo(""), Ok(Vec::new()));
    }

    #[test]
    fn kernels_with_more_or_fewer_orders_are_understood() {
        let text = "Node 0, zone Normal 0 0 0 0 0 0 0 0 0 0 1 1 1\nNode 0, zone Movable 7 1\n";
        let zones = parse_buddyinfo(text).expect("parses");
        assert_eq!(zones[0].1.free_blocks[10], 1 + 2 + 4);
        assert_eq!(zones[1].1.free_blocks[..3], [7, 1, 0]);
    }

    #[test]
    fn what_is_no_buddyinfo_is_refused_by_line() {
        let good = "Node 0, zone DMA 1 2\n";
        check_refused("hello", 1, "does not begin with `Node N, zone NAME`");
        check_refused(&format!("{good}Node 0, zone "), 2, "names no zone");
        check_refused("Node 0, zone DMA", 1, "counts no blocks");
        let wrong = "has a count that is no such number";
        check_refused("Node 0, zone DMA 1 -2", 1, wrong);
        check_refused("Node 0, zone DMA 1 1099511627777", 1, wrong);
        let many = format!("Node 0, zone DMA{}", " 1".repeat(21));
        check_refused(&many, 1, "has more orders than a kernel can have");
    }
}
