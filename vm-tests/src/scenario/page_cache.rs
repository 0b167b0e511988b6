//! Page cache that no process maps, on a file system of its own. One of two files is read: the report must distinguish
//! it, and a scheme must drop the other. Both kinds of the kernel's LRU lists are tested if the kernel has the second
//! (MGLRU), which marks accesses differently.

use isotherm_engine::frames::AgeBytes;
use serde_json::Value;

use super::Report;
use super::acting::{about, mib};
use crate::error::{Result, VmError};
use crate::kernel::Kernel;
use crate::vm::{Vm, VmOutput};

const FILE: u64 = 48 << 20;
/// Tolerance in bytes: pages are on their way to lists, and a scan falls between two reads.
const SLACK: u64 = FILE / 10;
/// Index of 5 s in [`isotherm_engine::frames::AGE_BOUNDS`].
const FIVE_SECONDS: usize = 1;

pub(super) fn run(kernel: Kernel, report: &mut Report) -> Result<()> {
    let script = format!(
        "echo 256M >/sys/block/zram0/disksize && mke2fs -b 4096 /dev/zram0 >/dev/null && mkdir /f || exit 1\n\
         mount -t ext4 /dev/zram0 /f || mount -t ext2 /dev/zram0 /f || exit 1\n\
         for name in hot cold; do head -c {FILE} /dev/urandom >/f/$name; done\n\
         sync\n\
         look() {{\n\
             isotherm record --all --cpu-budget 20% --duration $2s -o /tmp/record || exit 1\n\
             isotherm report machine /tmp/record --format json >/out/$1.json || exit 1\n\
             rm /tmp/record\n\
         }}\n\
         lists=/sys/kernel/mm/lru_gen/enabled\n\
         for generations in n y; do\n\
             [ -e $lists ] && echo $generations >$lists\n\
             [ -e $lists ] || [ $generations = n ] || continue\n\
             echo 3 >/proc/sys/vm/drop_caches\n\
             cat /f/cold /f/hot >/dev/null\n\
             (while :; do cat /f/hot >/dev/null; sleep 0.2; done) & reader=$!\n\
             look seen-$generations 25\n\
             isotherm run --all --cpu-budget 20% --no-guard --scheme '4K max 0 0 5s max pageout' --duration 20s || exit 1\n\
             look after-$generations 10\n\
             kill $reader\n\
         done\n\
         exit 0\n"
    );
    let mut vm = Vm::new(kernel);
    if kernel == Kernel::Debian612Arm64Pages16K {
        vm = vm.module("crc32c_generic").module("ext4");
    }
    let vm = vm
        // Reading all of a file every 200 ms leaves a slower guest no time to scan pages.
        .instruction_ns_log2(2)
        .product()?
        .zram()
        .script(&script);
    let output = vm.run_ok()?;
    for lists in ["n", "y"] {
        if output.bytes(&format!("seen-{lists}.json")).is_err() {
            report.say("no MGLRU in this kernel".to_owned());
            continue;
        }
        check(report, &output, lists)?;
    }
    Ok(())
}

fn check(report: &mut Report, output: &VmOutput, lists: &str) -> Result<()> {
    let ages = |look: &str, file: &str| ages(output, &format!("{look}-{lists}"), file);
    let (hot, cold) = (ages("seen", "hot")?, ages("seen", "cold")?);
    let (hot_after, cold_after) = (ages("after", "hot")?, ages("after", "cold")?);
    report.say(format!(
        "MGLRU {lists}: of the file that is read {} idle for 5 s, of the other {} of {}; after `pageout` {} and {} \
         are cached",
        mib(hot.idle_from(FIVE_SECONDS)),
        mib(cold.idle_from(FIVE_SECONDS)),
        mib(cold.total()),
        mib(hot_after.total()),
        mib(cold_after.total()),
    ));
    about(&[
        ("read, idle", hot.idle_from(FIVE_SECONDS), 0, SLACK),
        ("not read, idle", cold.idle_from(FIVE_SECONDS), FILE, SLACK),
        ("read, after pageout", hot_after.total(), FILE, SLACK),
        ("not read, after pageout", cold_after.total(), 0, SLACK),
    ])
}

/// Reads the bytes of a file by age from a machine report.
fn ages(output: &VmOutput, report: &str, file: &str) -> Result<AgeBytes> {
    let json: Value = output.json(report)?;
    let files = json["page_cache"]["files"].as_array();
    let path = format!("/f/{file}");
    let mut files = files.into_iter().flatten();
    let Some(found) = files.find(|of| of["path"] == path.as_str()) else {
        return Ok(AgeBytes::default());
    };
    serde_json::from_value(found["bytes"]["ages"].clone())
        .map_err(|error| VmError::Wrong(format!("{report}: {error}")))
}
