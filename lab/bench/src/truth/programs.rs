//! Real programs: their requirements, their setup and their load.
//!
//! The steps are shell scripts. `$DIR` is a folder of the program's own, `$EXPERIMENT` holds the start scripts of the
//! shipped evaluation, and `$HERE` is this folder. The program and its load are `exec`ed, so that they are children of
//! the bench and end with it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::super::BenchContext;
use super::super::child::{Group, Guarded, children};

/// Time for a step of preparation: one installs a package from the network.
const STEP_LIMIT: Duration = Duration::from_mins(3);
const READY_LIMIT: Duration = Duration::from_mins(2);

pub(crate) struct Program {
    pub(crate) name: &'static str,
    requires: &'static [&'static str],
    setup: &'static str,
    serve: &'static str,
    fill: &'static str,
    /// Script of the load; empty if the program keeps itself busy.
    load: &'static str,
    /// A word of the command line of the watched child; without it the program itself is watched.
    child: Option<&'static str>,
    pub(crate) progress: Progress,
}

#[derive(Clone, Copy)]
pub(crate) enum Progress {
    BytesRead,
    Waits,
    /// Numbers that it writes to `$DIR/said`.
    Said,
}

pub(crate) const PROGRAMS: [Program; 7] = [
    Program {
        name: "redis",
        requires: &["redis-server", "redis-cli", "redis-benchmark"],
        setup: "",
        serve: "exec redis-server --port 0 --unixsocket $DIR/redis.sock --dir $DIR --save '' --appendonly no",
        fill: "bash $EXPERIMENT/redis_fill 150000 4096",
        load: "exec redis-benchmark -s $DIR/redis.sock -c 2 -n 1000000000 -r 15000 -q get key:__rand_int__",
        child: None,
        progress: Progress::BytesRead,
    },
    Program {
        name: "memcached",
        requires: &["memcached", "python3"],
        setup: "",
        serve: "exec memcached -u root -s $DIR/memcached.sock -m 1024 -t 2",
        fill: "python3 $EXPERIMENT/memcached_client.py fill $DIR/memcached.sock 150000",
        load: "exec python3 $EXPERIMENT/memcached_client.py read $DIR/memcached.sock 150000 100000",
        child: None,
        progress: Progress::BytesRead,
    },
    Program {
        name: "postgresql",
        requires: &["pgbench", "setpriv"],
        setup: "bash $EXPERIMENT/postgresql setup",
        serve: "exec bash $EXPERIMENT/postgresql serve",
        fill: "bash $EXPERIMENT/postgresql fill",
        // `read` runs pgbench as its child, which ends when its parent's connection does.
        load: "exec bash $EXPERIMENT/postgresql read 100000",
        child: Some("[local]"),
        progress: Progress::Waits,
    },
    Program {
        name: "jvm",
        requires: &["java", "javac"],
        setup: "javac -d $DIR $EXPERIMENT/IdleHeap.java",
        serve: "exec java -Xms1g -Xmx1g -XX:+UseSerialGC -cp $DIR IdleHeap 700 100000 tell >$DIR/said",
        fill: "sleep 8",
        load: "",
        child: None,
        progress: Progress::Said,
    },
    Program {
        name: "sqlite",
        requires: &["python3"],
        setup: "python3 -c 'import sqlite3'",
        serve: "exec python3 $HERE/sqlite_reads.py $DIR/items.db >$DIR/said",
        fill: "until grep -q ready $DIR/said; do sleep 0.1; done",
        load: "",
        child: None,
        progress: Progress::Said,
    },
    Program {
        name: "duckdb",
        requires: &["python3"],
        setup: "test -x $CACHE/duckdb/bin/python || { python3 -m venv $CACHE/duckdb && $CACHE/duckdb/bin/pip install -q duckdb; }; \
                $CACHE/duckdb/bin/python -c 'import duckdb'",
        serve: "exec $CACHE/duckdb/bin/python $HERE/duckdb_sums.py >$DIR/said",
        fill: "until grep -q ready $DIR/said; do sleep 0.1; done",
        load: "",
        child: None,
        progress: Progress::Said,
    },
    Program {
        name: "x264",
        requires: &["x264"],
        setup: "",
        serve: "exec x264 --quiet --threads 1 --demuxer raw --input-res 1280x720 --preset medium -o /dev/null - </dev/urandom",
        fill: "sleep 3",
        load: "",
        child: None,
        progress: Progress::BytesRead,
    },
];

impl Program {
    pub(crate) fn lacks(&self) -> Option<String> {
        let found = |command: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(command).exists())
        };
        let missing = self.requires.iter().find(|command| !found(command))?;
        Some(format!(
            "there is no {missing}; `scripts/install-deps truth` installs it"
        ))
    }

    /// Starts and fills it, and starts its load.
    pub(crate) fn start(&self, context: &BenchContext) -> Result<Group> {
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        // PostgreSQL runs as another user.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
        let step = |script: &str, name: &str| -> Result<()> {
            if script.is_empty() {
                return Ok(());
            }
            let mut child = Guarded::spawn(context, &mut shell(context, script, folder.path()))?;
            child
                .finish(context, STEP_LIMIT)
                .with_context(|| format!("cannot {name} {}", self.name))
        };
        step(self.setup, "set up")?;
        let mut server = Guarded::spawn(context, &mut shell(context, self.serve, folder.path()))?;
        step(self.fill, "fill")?;
        server.check_running()?;
        let load = (!self.load.is_empty())
            .then(|| Guarded::spawn(context, &mut shell(context, self.load, folder.path())))
            .transpose()?;
        context.sleep(Duration::from_secs(2))?;
        let pid = match self.child {
            None => server.id(),
            Some(word) => child_of(context, server.id(), word)?,
        };
        Ok(Group {
            children: load.into_iter().chain([server]).collect(),
            pid,
            folder: Some(folder),
        })
    }
}

fn shell(context: &BenchContext, script: &str, folder: &Path) -> Command {
    let mut command = Command::new("bash");
    let here = context.root.join("lab/bench/src/truth");
    command
        .args(["-c", &format!("set -e; {script}")])
        .env("DIR", folder)
        .env("EXPERIMENT", context.root.join("experiments"))
        .env("HERE", here)
        .env("CACHE", cache(context))
        .current_dir(folder)
        .stdout(Stdio::null());
    command
}

/// Returns the folder of downloads, which are not fetched again.
fn cache(context: &BenchContext) -> PathBuf {
    context.root.join("target/truth")
}

/// Returns the child of `parent` whose command line contains `word`.
fn child_of(context: &BenchContext, parent: u32, word: &str) -> Result<u32> {
    let end = Instant::now() + READY_LIMIT;
    loop {
        for pid in children(parent) {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(word) {
                return Ok(pid);
            }
        }
        if Instant::now() > end {
            bail!("no child of process {parent} is called `{word}`");
        }
        context.sleep(Duration::from_millis(100))?;
    }
}
