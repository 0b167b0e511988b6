//! Functions that made idle memory (`record --stacks`): programs of known truth, and harmful ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use isotherm_record::Item;
use serde_json::Value;

use crate::common::{Record, Running, at_once, isotherm, run, scratch, shared, skip};

const MIB: u64 = 1 << 20;

/// Three functions with memory of their own, one of which stays in use; then the behaviour that the argument selects.
const POOLS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define NEVER __attribute__((noinline, noclone))
NEVER char *index_build(size_t n) { char *p = malloc(n); memset(p, 1, n); return p; }
NEVER char *cache_fill(size_t n) { char *p = malloc(n); for (size_t i = 0; i < n; i += 4096) p[i] = 1; return p; }
struct node { struct node *next; char text[88]; };
NEVER struct node *list_grow(size_t n) {
	struct node *head = 0;
	for (size_t i = 0; i < n / 112; i++) {
		struct node *one = malloc(sizeof(*one));
		memset(one->text, 1, 88);
		one->next = head;
		head = one;
	}
	return head;
}
NEVER char *deep(int depth, size_t n) {
	char room[64];
	memset(room, depth, sizeof(room));
	char *p = depth ? deep(depth - 1, n) : index_build(n);
	p[0] += room[0];
	return p;
}
static void *thread(void *n) { return cache_fill((size_t)n); }
int main(int count, char **arguments) {
	const char *how = count > 1 ? arguments[1] : "";
	if (!strcmp(how, "exec")) {
		index_build(20 << 20);
		execl("/proc/self/exe", arguments[0], "", (char *)0);
	}
	char *index = !strcmp(how, "deep") ? deep(10000, 40 << 20) : index_build(40 << 20);
	char *hot = cache_fill(24 << 20);
	struct node *list = list_grow(30 << 20);
	if (!strcmp(how, "threads"))
		for (int i = 0; i < 300; i++) {
			pthread_t id;
			pthread_create(&id, 0, thread, (void *)(64 << 10));
		}
	if (!strcmp(how, "jit")) {
		/* movb $1, (%rdi); ret */
		char *code = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memcpy(code, "\xc6\x07\x01\xc3", 4);
		char *touched = mmap(0, 16 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (size_t i = 0; i < 16 << 20; i += 4096)
			((void (*)(char *))code)(touched + i);
	}
	if (!strcmp(how, "gone"))
		truncate(arguments[0], 0), unlink(arguments[0]);
	puts("ready");
	fflush(stdout);
	for (;;) {
		for (size_t i = 0; i < 24 << 20; i += 4096) hot[i]++;
		usleep(50000);
	}
	return index[0] + (list != 0);
}
"#;

/// Builds the program; prints a skip and returns `None` without a compiler.
fn pools(directory: &Path) -> Option<PathBuf> {
    let (source, program) = (directory.join("pools.c"), directory.join("pools"));
    std::fs::write(&source, POOLS).expect("written");
    let mut compiler = Command::new("gcc");
    let flags = ["-O2", "-w", "-fomit-frame-pointer", "-pthread"];
    compiler.args(flags).arg("-o").arg(&program).arg(&source);
    match compiler.status() {
        Ok(status) if status.success() => Some(program),
        _ => {
            skip("there is no gcc to compile a program with");
            None
        }
    }
}

/// Records a program from its start, for as long as ages of 3 s need.
fn recorded(program: &Path, how: &str, flags: &[&str]) -> Record {
    let path = program.with_file_name("record");
    let mut command = isotherm(["record", "--stacks", "--duration", "9s", "--stop-command"]);
    command.arg("-o").arg(&path).args(flags);
    run(command.arg("--").arg(program).arg(how)).success();
    Record::whole(&path)
}

/// Returns the report of the record beside `program`.
fn blame(program: &Path, flags: &[&str]) -> Value {
    let mut command = isotherm(["report", "blame", "--idle", "3s", "--json"]);
    command.arg(program.with_file_name("record")).args(flags);
    let done = run(&mut command);
    serde_json::from_str(&done.success().stdout).expect("JSON")
}

/// Returns the idle bytes of a function.
fn bytes(report: &Value, function: &str) -> u64 {
    let blamed = report["blamed"].as_array().expect("a list");
    let of = blamed.iter().find(|blamed| blamed["name"] == function);
    of.map_or(0, |of| of["bytes"].as_u64().expect("a number"))
}

fn expect(report: &Value, function: &str, mib: u64) {
    let found = bytes(report, function);
    let most = mib * MIB * 105 / 100;
    assert!(
        (mib * MIB * 95 / 100..=most).contains(&found),
        "{function}: {found} of {mib} MiB: {}",
        report["blamed"]
    );
}

#[test]
fn idle_memory_is_laid_to_who_touched_it_first() {
    let Some(_turn) = shared() else { return };
    let directory = scratch();
    let Some(program) = pools(directory.path()) else {
        return;
    };
    let record = recorded(&program, "", &[]);
    assert!(
        record
            .items
            .iter()
            .any(|item| matches!(item, Item::Symbols(_)))
    );
    let report = blame(&program, &[]);
    expect(&report, "index_build", 40);
    expect(&report, "list_grow", 30);
    assert!(
        bytes(&report, "cache_fill") < MIB,
        "it is in use: {}",
        report["blamed"]
    );
    let sum = |key: &str| report["unknown"][key].as_u64().expect("a number");
    let total = report["total_bytes"].as_u64().expect("a number");
    let blamed = report["blamed_bytes"].as_u64().expect("a number");
    assert_eq!(total, blamed + sum("before_sampling") + sum("not_sampled"));
    assert_eq!(sum("before_sampling"), 0);
    let resident = blame(&program, &["--of", "resident"]);
    expect(&resident, "cache_fill", 24);
}

#[test]
fn what_was_touched_before_is_nobodys() {
    let Some(_turn) = shared() else { return };
    let directory = scratch();
    let Some(program) = pools(directory.path()) else {
        return;
    };
    let running = Running::ready(&mut Command::new(&program));
    let path = program.with_file_name("record");
    let pid = running.pid().to_string();
    let mut command = isotherm(["record", "--stacks", "--duration", "9s", "--pid", &pid]);
    run(command.arg("-o").arg(&path)).success();
    let report = blame(&program, &[]);
    assert_eq!(bytes(&report, "index_build"), 0);
    let before = report["unknown"]["before_sampling"].as_u64();
    assert!(before > Some(65 * MIB), "{}", report["unknown"]);
}

#[test]
fn stacks_that_are_odd_are_told_as_far_as_they_are_known() {
    let Some(_turn) = shared() else { return };
    at_once(&["exec", "deep", "threads", "jit", "gone"], |how| {
        let directory = scratch();
        let Some(program) = pools(directory.path()) else {
            return;
        };
        recorded(&program, how, &[]);
        let report = blame(&program, &[]);
        expect(&report, "list_grow", 30);
        expect(&report, "index_build", 40);
        if *how == "jit" {
            let stacks = report["stacks"].to_string();
            assert!(stacks.contains("[code made at run time]"), "{stacks}");
        }
    });
}
