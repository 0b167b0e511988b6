//! A program that reads cached files, and the result of `report machine` for each of them beside what was read.
//!
//! It reads known parts of the files again and again, and the rest never after it has written them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use isotherm_engine::page_cache::CachedBytes;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::BenchContext;
use super::child::Guarded;
use super::table::Table;

const MIB: u64 = 1 << 20;
/// Share of each file that is read again and again, from its beginning.
const PARTS: [(&str, f64); 4] = [("all", 1.0), ("half", 0.5), ("tenth", 0.1), ("none", 0.0)];
const REPORT_LIMIT: Duration = Duration::from_mins(2);

/// Arguments: a folder, bytes of each file, and name and share of each.
const READER: &str = r"
import os, sys
folder, size = sys.argv[1], int(sys.argv[2])
piece = memoryview(bytearray(b'\7') * (1 << 20))
files = []
for name, part in zip(sys.argv[3::2], sys.argv[4::2]):
    file = os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT)
    for at in range(0, size, len(piece)):
        os.pwrite(file, piece, at)
    os.fsync(file)
    files.append((file, int(size * float(part))))
print('ready', flush=True)
while True:
    for file, end in files:
        for at in range(0, end, len(piece)):
            os.preadv(file, [piece[:end - at]], at)
";

pub(super) struct CachedFiles {
    folder: TempDir,
    size: u64,
}

impl CachedFiles {
    /// Starts the program and waits until its files are written. It must end before they are removed.
    pub(super) fn start(context: &BenchContext) -> Result<(Guarded, Self)> {
        let size = if context.quick { 32 * MIB } else { 256 * MIB };
        // The files are beside the build: the directory for temporary files may be in memory.
        let folder = tempfile::tempdir_in(context.root.join("target")).context("no folder")?;
        let mut command = Command::new("python3");
        command.args(["-c", READER]).arg(folder.path());
        command.arg(size.to_string());
        for (name, part) in PARTS {
            command.args([name, &part.to_string()]);
        }
        let mut reader = Guarded::spawn(context, command.stdout(Stdio::piped()))?;
        reader.ready()?;
        Ok((reader, Self { folder, size }))
    }

    /// Compares the record's bytes of the files with those that were read.
    pub(super) fn compare(
        &self,
        context: &BenchContext,
        record: &Path,
    ) -> Result<(Table, Vec<Value>)> {
        let mut command = Command::new(&context.isotherm);
        command.args(["report", "machine", "--json"]).arg(record);
        let report = Guarded::json(context, &mut command, REPORT_LIMIT)?;
        let reported = report["page_cache"]["files"]
            .as_array()
            .context("the record has no page cache; `isotherm doctor` says why")?;
        let mut table = Table::new(
            "MiB of each file in the last look, by what was read again and again",
            "file | read | reported as touched | idle | unknown",
        );
        let mut data = Vec::new();
        for (name, part) in PARTS {
            let path = self.folder.path().join(name);
            let path = path.to_string_lossy();
            let file = { reported.iter() }
                .find(|file| file["path"].as_str() == Some(&*path))
                .context("a file is not among the largest that are cached; free some memory")?;
            let bytes: CachedBytes = serde_json::from_value(file["bytes"].clone())?;
            let ages = bytes.ages;
            let read = part * self.size as f64 / MIB as f64;
            let idle = ages.total() - ages.touched - ages.unknown;
            let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB as f64);
            table.row(vec![
                name.to_owned(),
                format!("{read:.1}"),
                mib(ages.touched),
                mib(idle),
                mib(ages.unknown),
            ]);
            data.push(json!({ "file": name, "read_mib": read, "bytes": bytes }));
        }
        Ok((table, data))
    }
}
