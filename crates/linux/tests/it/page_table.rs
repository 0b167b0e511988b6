//! Tests the page-table probe on this machine's kernel, against memory of this process that the test itself accesses.

use isotherm_engine::drive::TableProbe as _;
use isotherm_engine::table::BlockFacts;
use isotherm_engine::{AccessProbe, Gap, PAGE_SIZE, Sample, TargetId, Touch};
use isotherm_linux::process::Process;

use crate::common::{BLOCKS, ME, Memory, beside_others, probe};

fn sample(address: u64) -> Sample {
    Sample {
        target: ME,
        address,
    }
}

fn pages(memory: &Memory, pages: impl Iterator<Item = u64>) -> Vec<Sample> {
    let start = memory.range().start;
    pages.map(|p| sample(start + p * PAGE_SIZE)).collect()
}

#[test]
fn touched_pages_are_accessed_and_others_idle() {
    let _turn = beside_others();
    let Some(mut probe) = probe() else { return };
    let memory = Memory::new();
    let samples = pages(&memory, 0..1500);
    let mut touches = Vec::new();
    probe.arm(&samples).expect("arm");
    for page in (0..1500).step_by(3) {
        memory.write(page, 1);
    }
    probe.check(&mut touches).expect("check");
    let wanted = |page: usize| Touch::of(page.is_multiple_of(3));
    let wrong = (0..1500).filter(|page| touches[*page] != wanted(*page));
    assert_eq!(wrong.count(), 0, "of 1500 pages");
    let cost = probe.cost();
    assert!(cost.clears > 1000 && cost.monitor_cpu.0 > 0, "{cost:?}");
}

#[test]
fn locked_pages_are_unknown_and_unmapped_ones_idle() {
    let _turn = beside_others();
    let Some(mut probe) = probe() else { return };
    let memory = Memory::new();
    memory.lock(memory.pages(7, 8));
    let mut touches = Vec::new();
    let samples = pages(&memory, [6, 7, 8].into_iter());
    probe.arm(&samples).expect("arm");
    probe.check(&mut touches).expect("check");
    let unknown = Touch::Unknown(Gap::Unclearable);
    assert_eq!(touches, [Touch::Idle, unknown, Touch::Idle]);
    probe.arm(&[sample(PAGE_SIZE)]).expect("arm");
    probe.check(&mut touches).expect("check");
    assert_eq!(touches, [Touch::Idle], "nothing is there, and nothing came");
}

#[test]
fn whole_tables_tell_the_same_as_samples() {
    let _turn = beside_others();
    let Some(mut probe) = probe() else { return };
    let memory = Memory::new();
    let range = memory.range();
    let blocks = probe.occupied_blocks(ME, &[range]).expect("read");
    let blocks = blocks.expect("we live");
    assert_eq!(blocks.len() as u64, BLOCKS);
    probe.clear(ME, &[range]).expect("clear");
    for page in [5, 64, 511] {
        memory.write(page, 1);
    }
    let mut facts: Vec<BlockFacts> = Vec::new();
    let are_read = probe.read_blocks(ME, &blocks, |block| facts.push(block));
    assert!(are_read.expect("read"));
    let accessed: u32 = facts[0].accessed.iter().map(|word| word.count_ones()).sum();
    assert_eq!(facts[0].present, [u64::MAX; 8]);
    assert_eq!(facts[0].accessed[0], 1 << 5);
    assert_eq!(facts[0].accessed[1], 1);
    assert_eq!((facts[0].accessed[7], accessed), (1 << 63, 3));
    assert!(facts[1..].iter().all(|f| f.accessed == [0; 8]));
}

#[test]
fn the_end_of_a_target_is_unknown_not_idle() {
    let _turn = beside_others();
    let Some(mut probe) = probe() else { return };
    let child = std::process::Command::new("sleep").arg("100").spawn();
    let mut child = child.expect("sleep(1)");
    let target = TargetId(1);
    let process = Process::open(child.id()).expect("it runs");
    probe.add(target, process).expect("its tables");
    let maps = probe.process(target).and_then(|p| p.mappings().ok());
    let mut maps = maps.expect("its mappings").into_iter();
    let stack = maps.find(|m| &*m.name == "[stack]").expect("a stack");
    let sample = Sample {
        target,
        address: stack.range.end - PAGE_SIZE,
    };
    probe.arm(&[sample]).expect("arm");
    child.kill().expect("our child");
    child.wait().expect("our child");
    let mut touches = Vec::new();
    probe.check(&mut touches).expect("check");
    assert_eq!(touches, [Touch::Unknown(Gap::Exited)]);
    assert!(!probe.refresh(target).expect("refresh"));
}
