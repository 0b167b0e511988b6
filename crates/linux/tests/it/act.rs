//! Actions on this machine's kernel, on memory of this process.

#![expect(unsafe_code, reason = "fills memory with noise")]

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use isotherm_engine::{AddressRange, BLOCK_SIZE, PAGE_SIZE, TargetId};
use isotherm_linux::act::{ActOptions, ProcessActuator};
use isotherm_linux::process::Process;
use isotherm_linux::swap::{self, SwapSetup, ZramOptions};
use isotherm_policy::scheme::{Action, OpsFilter};
use isotherm_policy::{Actuator, Refusal};

use crate::common::{
    BLOCKS, Memory, PAGES, SIZE, act, actuator, alone, beside_a_child, execute, operation, or_skip,
    skip,
};

/// Swap for a test, removed at its end.
struct Swap {
    ours: Option<PathBuf>,
}

impl Swap {
    fn new() -> Option<Self> {
        if swap::facts().total > 0 {
            return Some(Self { ours: None });
        }
        let device = or_skip(zram(256 << 20))?;
        Some(Self { ours: Some(device) })
    }
}

fn zram(bytes: u64) -> Result<PathBuf, swap::SwapError> {
    SwapSetup::zram(&ZramOptions {
        bytes,
        ..ZramOptions::default()
    })
}

impl Drop for Swap {
    fn drop(&mut self) {
        if let Some(device) = &self.ours {
            SwapSetup::take_down(device).expect("our own swap");
        }
    }
}

/// Calls `check` with an actuator on this process and memory of it, alone on this machine.
fn on_memory(check: impl FnOnce(&mut ProcessActuator, &Memory)) {
    let _turn = alone();
    if let Some(mut actuator) = actuator(ActOptions::default()) {
        check(&mut actuator, &Memory::new());
    }
}

/// Calls `check` with swap, too.
fn on_swap(options: ActOptions, check: impl FnOnce(&mut ProcessActuator, &Memory)) {
    let _turn = alone();
    if let Some(mut actuator) = actuator(options)
        && let Some(_swap) = Swap::new()
    {
        check(&mut actuator, &Memory::new());
    }
}

#[test]
fn swap_is_taken_away_device_by_device() {
    let _turn = alone();
    let before = swap::facts().total;
    let (first, second) = match (zram(8 << 20), zram(16 << 20)) {
        (Ok(first), Ok(second)) => (first, second),
        (first, second) => {
            for device in [&first, &second].into_iter().flatten() {
                SwapSetup::take_down(device).expect("our own swap");
            }
            skip(&first.and(second).expect_err("one of them failed"));
            return;
        }
    };
    // One page of each holds the header.
    let sizes = |mib: u64| (mib << 20) - PAGE_SIZE;
    let both = swap::facts().total - before;
    SwapSetup::take_down(&first).expect("our own swap");
    let one = swap::facts().total - before;
    let again = SwapSetup::take_down(&first);
    SwapSetup::take_down(&second).expect("our own swap");
    assert_eq!((both, one), (sizes(8) + sizes(16), sizes(16)));
    let is_refused = matches!(again, Err(swap::SwapError::NotOurDevice(_)));
    assert!(is_refused, "{again:?}");
    assert_eq!(swap::facts().total, before);
}

#[test]
fn pageout_swaps_out_just_what_it_is_asked_for_and_nothing_is_lost() {
    on_swap(ActOptions::default(), |actuator, memory| {
        let asked = memory.pages(100, 1124);
        let outcome = act(actuator, Action::Pageout, asked);
        let (present, swapped) = memory.placed();
        assert_eq!(outcome.applied, swapped, "{outcome:?}");
        assert!(swapped >= 1000 * PAGE_SIZE, "{outcome:?}");
        assert_eq!(present + swapped, SIZE);
        assert!(outcome.took.0 > 0);
        let again = act(actuator, Action::Pageout, asked);
        let absent = again.refused[&Refusal::NotPresent];
        assert!(absent >= 1000 * PAGE_SIZE, "{again:?}");
        memory.assert_content(|_, _| true);
    });
}

#[test]
fn memory_that_does_not_compress_is_not_paged_out_twice() {
    on_swap(ActOptions::default(), |actuator, memory| {
        if !std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.contains("/dev/zram")) {
            skip(&"swap is no zram");
            return;
        }
        let noise = memory.pages(0, 1024);
        // SAFETY: pages of a mapping that nothing else uses now.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(noise.start as *mut u8, noise.len() as usize) };
        File::open("/dev/urandom")
            .and_then(|mut random| std::io::Read::read_exact(&mut random, bytes))
            .expect("random bytes");
        for (first, is_kept) in [(0, true), (1024, false)] {
            let range = memory.pages(first, first + 1024);
            let most = range.len() / 10 * 9;
            let outcome = act(actuator, Action::Pageout, range);
            assert!(outcome.applied >= most, "{outcome:?}");
            for page in first..first + 1024 {
                memory.read(page);
            }
            let second = act(actuator, Action::Pageout, range);
            let refused = second.refused.get(&Refusal::Incompressible);
            let refused = refused.copied().unwrap_or(0);
            assert_eq!(refused >= most, is_kept, "{second:?}");
            assert_eq!(second.applied >= most, !is_kept, "{second:?}");
        }
    });
}

#[test]
fn without_swap_nothing_is_tried_and_huge_pages_stay_huge() {
    on_memory(|actuator, memory| {
        if swap::facts().total > 0 {
            skip(&"this machine has swap of its own");
            return;
        }
        let collapsed = act(actuator, Action::Collapse, memory.range());
        assert_eq!(collapsed.applied, SIZE, "{collapsed:?}");
        let outcome = act(actuator, Action::Pageout, memory.range());
        let refused = outcome.refused.get(&Refusal::NoSwap);
        assert_eq!(refused, Some(&SIZE), "{outcome:?}");
        assert_eq!((memory.sizes(), memory.placed()), ((SIZE, SIZE), (SIZE, 0)));
    });
}

#[test]
fn collapse_makes_huge_pages_where_enough_is_in_use() {
    on_memory(|actuator, memory| {
        // Only a quarter of the last block is left.
        let emptied = memory.pages(BLOCKS * PAGES - 384, BLOCKS * PAGES);
        assert!(memory.advise(emptied, libc::MADV_DONTNEED));
        let outcome = act(actuator, Action::Hugepage, memory.range());
        assert_eq!(outcome.applied, (BLOCKS - 1) * BLOCK_SIZE, "{outcome:?}");
        assert_eq!(outcome.refused[&Refusal::Sparse], 128 * PAGE_SIZE);
        assert_eq!(memory.sizes().1, outcome.applied);
    });
}

#[test]
fn part_of_a_huge_page_is_not_split() {
    on_memory(|actuator, memory| {
        act(actuator, Action::Collapse, memory.range());
        let outcome = act(actuator, Action::Nohugepage, memory.pages(10, 1000));
        assert_eq!(outcome.applied, 0, "{outcome:?}");
        assert_eq!(memory.sizes().1, SIZE);
    });
}

#[test]
fn locked_and_shared_memory_is_refused_by_name() {
    on_swap(ActOptions::default(), |actuator, memory| {
        let locked = memory.pages(0, 10);
        memory.lock(locked);
        let outcome = act(actuator, Action::Pageout, memory.pages(0, 512));
        let refused = outcome.refused.get(&Refusal::Locked);
        assert_eq!(refused, Some(&locked.len()), "{outcome:?}");
        assert!(outcome.applied > 490 * PAGE_SIZE, "{outcome:?}");
        let block = memory.pages(1024, 1536);
        let outcome = beside_a_child(|| act(actuator, Action::Pageout, block));
        let refused = outcome.refused.get(&Refusal::Shared);
        assert_eq!(refused, Some(&BLOCK_SIZE), "{outcome:?}");
        memory.assert_content(|_, _| true);
    });
}

#[test]
fn cold_clears_accessed_bits_and_filters_leave_out_what_they_are_told_to() {
    on_swap(ActOptions::default(), |actuator, memory| {
        let cold = act(actuator, Action::Cold, memory.range());
        assert!(cold.applied >= SIZE - 16 * PAGE_SIZE, "{cold:?}");
        assert_eq!(memory.placed(), (SIZE, 0));
        for page in (0..512).step_by(4) {
            memory.write(page, page + 1);
        }
        let mut page_out = |filter: OpsFilter, range| {
            let mut filtered = operation(Action::Pageout, range);
            filtered.filters = [(filter, true, false)].into();
            execute(actuator, filtered)
        };
        let is_about = |bytes: u64, pages: u64| bytes.abs_diff(pages * PAGE_SIZE) <= 8 * PAGE_SIZE;
        let young = page_out(OpsFilter::Young, memory.pages(0, 512));
        assert!(is_about(young.filter_passed, 384), "{young:?}");
        assert!(is_about(young.applied, 384), "{young:?}");
        // The filter clears accessed bits: pages not touched since pass the next time.
        let again = page_out(OpsFilter::Young, memory.pages(0, 512));
        assert!(is_about(again.applied, 128), "{again:?}");
        let anonymous = page_out(OpsFilter::Anon, memory.pages(512, 1024));
        let passed = (anonymous.filter_passed, anonymous.applied);
        assert_eq!(passed, (0, 0), "{anonymous:?}");
        memory.assert_content(|_, _| true);
    });
}

#[test]
fn what_was_touched_is_spared_if_asked() {
    let options = ActOptions {
        spare_accessed: true,
        ..ActOptions::default()
    };
    on_swap(options, |actuator, memory| {
        let block = memory.pages(0, PAGES);
        assert!(memory.advise(block, libc::MADV_COLD));
        memory.write(7, 8);
        let outcome = act(actuator, Action::Pageout, block);
        assert!(outcome.refused[&Refusal::Kept] >= PAGE_SIZE, "{outcome:?}");
        assert!(outcome.applied >= 500 * PAGE_SIZE, "{outcome:?}");
    });
}

#[test]
fn a_target_that_has_gone_is_said_to_have() {
    on_memory(|actuator, _| {
        let mut sleep = Command::new("sleep");
        let child = sleep.arg("60").stdin(Stdio::null()).spawn();
        let mut child = child.expect("sleep(1)");
        let target = TargetId(1);
        let process = Process::open(child.id()).expect("just started");
        actuator.add(target, process).expect("it has memory");
        child.kill().expect("our child");
        child.wait().expect("our child");
        let mut gone = operation(Action::Pageout, AddressRange::new(0, 1 << 30));
        gone.target = target;
        let outcome = execute(actuator, gone);
        assert_eq!(outcome.refused.get(&Refusal::Exited), Some(&(1 << 30)));
    });
}

#[test]
fn unmapped_ranges_are_not_there_and_large_ones_come_in_parts() {
    on_memory(|actuator, memory| {
        let ours = memory.range();
        // The advice for huge pages is optional.
        memory.advise(ours, libc::MADV_HUGEPAGE);
        let around = AddressRange::new(ours.start - (300 << 20), ours.start + (300 << 20));
        let outcome = act(actuator, Action::Stat, around);
        assert!(outcome.filter_passed >= SIZE, "{outcome:?}");
        let accounted: u64 = outcome.refused.values().sum::<u64>() + outcome.filter_passed;
        assert_eq!(accounted, around.len(), "{outcome:?}");
    });
}

#[test]
fn what_this_machine_cannot_do_is_said_beforehand() {
    let Some(actuator) = actuator(ActOptions::default()) else {
        return;
    };
    assert!(actuator.lacks(Action::LruPrio).is_some());
    assert!(actuator.lacks(Action::Pageout).is_none());
    if isotherm_linux::node::count() < 2 {
        assert!(actuator.lacks(Action::MigrateHot).is_some());
    }
}
