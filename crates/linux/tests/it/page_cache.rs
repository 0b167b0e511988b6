//! Tests the page cache on the real kernel. Folios of files are found with their offsets, files and states. Accessed
//! marks are cleared without any other change. Files that are deleted or replaced are reported.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use isotherm_engine::PAGE_SIZE;
use isotherm_engine::page_cache::{CachedFolio, CachedKind, FolioState};
use isotherm_linux::cache::clear::Clearer;
use isotherm_linux::cache::file::{self, Mounts, Unopenable};
use isotherm_linux::cache::memmap::{Memmap, SCANNED_TOGETHER};
use isotherm_linux::node;

use crate::common::{beside_others, or_skip};

const MIB: u64 = 1 << 20;

/// Returns the memory map; prints SKIP and returns `None` if this kernel does not support it.
fn memmap() -> Option<Memmap> {
    or_skip(Memmap::new())
}

/// Creates a file of `mib` MiB that is on the disk and in memory. It lies beside the binary, as /tmp may be in memory.
fn cached_file(directory: &Path, name: &str, mib: u64) -> File {
    let path = directory.join(name);
    let file = File::create_new(&path).expect("a new file");
    for at in 0..mib {
        file.write_all_at(&vec![7; MIB as usize], at * MIB)
            .expect("room for some MiB");
    }
    file.sync_all().expect("written");
    File::open(path).expect("just made")
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

fn folios(memmap: &mut Memmap, file: &File) -> Vec<CachedFolio> {
    let wanted = memmap.mapping_of(file.as_fd()).expect("our file");
    let mut found = Vec::new();
    for (_, ram) in node::all().expect("root") {
        let frames = ram.start / PAGE_SIZE..ram.end / PAGE_SIZE;
        let see = |folio: CachedFolio| found.extend((folio.file == wanted).then_some(folio));
        let scanned = memmap.scan(frames, |_| false, see);
        scanned.expect("a program that runs");
    }
    found.sort_by_key(|folio| folio.index);
    found
}

fn frames_of(memory: &[u8]) -> BTreeSet<u64> {
    let pagemap = File::open("/proc/self/pagemap").expect("our own");
    let mut entries = vec![0; memory.len() / PAGE_SIZE as usize * 8];
    let first = memory.as_ptr() as u64 / PAGE_SIZE + 1;
    let read = pagemap.read_exact_at(&mut entries, first * 8);
    read.expect("our own");
    let entries = entries.as_chunks::<8>().0.iter();
    let frames = entries.map(|entry| u64::from_ne_bytes(*entry) & ((1 << 55) - 1));
    frames.collect()
}

/// Returns the group of frames scanned together that holds most of `frames`, and their number.
fn fullest_chunk(frames: &BTreeSet<u64>) -> (Range<u64>, usize) {
    let chunk = |first: u64| first..first + SCANNED_TOGETHER;
    let firsts = frames.iter().map(|frame| frame - frame % SCANNED_TOGETHER);
    let counted = firsts.map(|first| (frames.range(chunk(first)).count(), first));
    let (nr, first) = counted.max().expect("some frames");
    (chunk(first), nr)
}

/// Counts the frames of a group, one of which represents all if the group is assumed to be anonymous.
fn nr_speakers(memmap: &mut Memmap, chunk: &Range<u64>) -> usize {
    let speaks = |_: &u64| {
        let read = memmap.scan(chunk.clone(), |_| true, |_| ());
        read.expect("a program that runs") == 1
    };
    (0..SCANNED_TOGETHER).filter(speaks).count()
}

#[test]
fn one_frame_speaks_for_its_neighbours_where_all_were_anonymous() {
    let _turn = beside_others();
    let Some(mut memmap) = memmap() else { return };
    let heap = std::hint::black_box(vec![1_u8; 128 * MIB as usize]);
    let (chunk, nr_ours) = fullest_chunk(&frames_of(&heap));
    assert!(nr_speakers(&mut memmap, &chunk) >= nr_ours, "{nr_ours}");

    let directory = directory();
    let file = cached_file(directory.path(), "file", 16);
    let found = folios(&mut memmap, &file);
    let frames = |folio: &CachedFolio| folio.frame..folio.frame + folio.nr_pages();
    let frames: BTreeSet<u64> = found.iter().flat_map(frames).collect();
    assert_eq!(frames.len(), 4096);
    let (chunk, nr_files) = fullest_chunk(&frames);
    let nr_others = SCANNED_TOGETHER as usize - nr_files;
    assert!(nr_speakers(&mut memmap, &chunk) <= nr_others, "{nr_files}");
}

fn pages(folios: &[CachedFolio], has: u16) -> u64 {
    let having = folios.iter().filter(|folio| folio.state.has(has));
    having.map(CachedFolio::nr_pages).sum()
}

#[test]
fn marks_are_cleared_and_tell_what_is_read_next() {
    let _turn = beside_others();
    let Some(mut memmap) = memmap() else { return };
    let directory = directory();
    let file = cached_file(directory.path(), "file", 16);
    let mut buffer = vec![0; MIB as usize];
    let mut read = |at: u64| file.read_exact_at(&mut buffer, at * MIB).expect("there");
    (0..16).for_each(&mut read);
    (0..4).for_each(&mut read);
    let before = folios(&mut memmap, &file);
    let covered: u64 = before.iter().map(CachedFolio::nr_pages).sum();
    assert_eq!(covered, 4096, "all of it is cached");
    assert_eq!(pages(&before, FolioState::REFERENCED), 3072, "read once");
    assert_eq!(pages(&before, FolioState::ACTIVE), 1024, "read twice");
    assert_eq!(pages(&before, FolioState::DIRTY | FolioState::MAPPED), 0);

    let mut clearer = Clearer::new().expect("root");
    clearer.add(&file, &before).expect("our file");
    clearer.flush().expect("our own memory");
    let cleared = folios(&mut memmap, &file);
    assert_eq!(pages(&cleared, FolioState::REFERENCED), 0);
    assert_eq!(pages(&cleared, FolioState::ACTIVE), 1024, "none moved");
    assert_eq!(cleared.len(), before.len(), "none was split");

    (8..10).for_each(&mut read);
    let mut nr_marked = 0;
    memmap
        .look(&cleared, |at, now| {
            assert_eq!(now.index, cleared[at].index);
            if now.state.has(FolioState::REFERENCED) {
                let mib = now.index * PAGE_SIZE / MIB;
                assert!((8..10).contains(&mib), "{mib} was not read");
                nr_marked += now.nr_pages();
            }
        })
        .expect("a program that runs");
    assert_eq!(nr_marked, 512);
}

#[test]
fn a_file_is_opened_by_its_name_or_number_and_only_if_it_is_the_same() {
    let _turn = beside_others();
    let Some(mut memmap) = memmap() else { return };
    let directory = directory();
    let ours = cached_file(directory.path(), "a file", 1);
    let path = directory.path().join("a file");
    let mapping = memmap.mapping_of(ours.as_fd()).expect("our file");
    let mut facts = || {
        let reported = memmap.describe(&[mapping]).expect("a program that runs");
        reported[0].clone().expect("a file")
    };
    let mounts = Mounts::read().expect("mounts");
    let found = facts();
    assert_eq!((found.size, found.nr_pages), (MIB, 256));
    assert_eq!((found.kind(), found.nr_links), (CachedKind::File, 1));
    assert_eq!(mounts.name(&found).as_deref(), Some(path.as_path()));
    let group = folios_group(&mut Memmap::new().expect("as before"), &ours);
    assert!(group.is_none_or(|id| id > 0));
    file::open(&found, &mounts).expect("our file");
    // Another file takes its name, and it takes another: opened by its number, on file systems that support it.
    let moved = directory.path().join("moved");
    fs::rename(&path, &moved).expect("moved");
    fs::write(&path, "another").expect("written");
    match file::open(&found, &mounts) {
        Ok(again) => assert_eq!(again.metadata().expect("open").len(), MIB),
        Err(error) => assert_eq!(error, Unopenable::NoName),
    }
    let found = facts();
    assert_eq!(mounts.name(&found).as_deref(), Some(moved.as_path()));
    fs::remove_file(&moved).expect("removed");
    let found = facts();
    assert_eq!(found.kind(), CachedKind::Deleted);
    let gone = file::open(&found, &mounts);
    assert!(matches!(gone, Err(Unopenable::Deleted)));
}

#[test]
fn a_sparse_files_pages_are_listed_in_their_places() {
    let _turn = beside_others();
    let Some(mut memmap) = memmap() else { return };
    let directory = directory();
    let path = directory.path().join("sparse");
    let file = File::create_new(&path).expect("a new file");
    let places = [0, 5, 63, 64, 4095, 4096, (1 << 18) + 7, (1 << 26) + 9];
    for page in places {
        let written = file.write_all_at(&[1; PAGE_SIZE as usize], page * PAGE_SIZE);
        written.expect("room");
    }
    let mapping = memmap.mapping_of(file.as_fd()).expect("our file");
    let mut listed = |pages: std::ops::Range<u64>| {
        let mut found: Vec<u64> = Vec::new();
        let see = |folios: &[CachedFolio]| {
            let all = folios.iter().flat_map(|f| f.index..f.index + f.nr_pages());
            found.extend(all);
            std::ops::ControlFlow::Continue(())
        };
        let listed = memmap.list(mapping, pages, usize::MAX, see);
        listed.expect("a program that runs");
        found
    };
    assert_eq!(listed(0..u64::MAX), places);
    assert_eq!(listed(64..4096), [64, 4095]);
    let whole = cached_file(directory.path(), "whole", 8);
    let mapping = memmap.mapping_of(whole.as_fd()).expect("our file");
    let mut pages = 0;
    let see = |folios: &[CachedFolio]| {
        let mut pairs = folios.windows(2);
        assert!(pairs.all(|f| f[0].index + f[0].nr_pages() == f[1].index));
        assert!(folios[0].index <= 100, "the one that begins before it");
        pages += folios.iter().map(CachedFolio::nr_pages).sum::<u64>();
        std::ops::ControlFlow::Continue(())
    };
    let listed = memmap.list(mapping, 100..300, usize::MAX, see);
    listed.expect("a program that runs");
    assert!(pages >= 200, "{pages}");
}

fn folios_group(memmap: &mut Memmap, file: &File) -> Option<u64> {
    let folio = *folios(memmap, file).first()?;
    let ids = memmap.group_ids(&[folio.group]);
    ids.expect("a program that runs")[0]
}

#[test]
fn a_file_that_is_truncated_meanwhile_harms_nobody() {
    let _turn = beside_others();
    let Some(mut memmap) = memmap() else { return };
    let directory = directory();
    let file = cached_file(directory.path(), "file", 4);
    let found = folios(&mut memmap, &file);
    let path = directory.path().join("file");
    let writable = File::options().write(true).open(path);
    writable.expect("our file").set_len(MIB).expect("shorter");
    let mut clearer = Clearer::new().expect("root");
    clearer.add(&file, &found).expect("some of it is there");
    clearer.flush().expect("our own memory");
    assert_eq!(pages(&folios(&mut memmap, &file), u16::MAX), 0);
}
