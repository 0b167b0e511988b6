//! The project's rules that neither rustc nor clippy checks.
//!
//! - the picture of the crates in ARCHITECTURE.md is true: [`CRATES`] lists the permitted imports, and `cargo metadata`
//!   the actual ones;
//! - only `linux` contains `unsafe` (and the file of the test guest that [`CRATES`] names);
//! - every public item is documented, except fields and variants with self-explanatory names, so that no documentation
//!   is one word;
//! - examples of documentation are in a language that rustdoc does not run, since no suite runs rustdoc;
//! - a file has at most [`LINES_MAX`] lines and starts with a description of its purpose;
//! - no files of a crate import each other ([`circles`]), and no public type has the name of another;
//! - lines, files beside each other and public items of a crate have limits ([`crate::weight`]);
//! - links of documents lead to existing places, and the book has every document of docs/ ([`crate::docs`]);
//! - nothing unfinished (`todo!`, `unimplemented!`) or left over (`dbg!`) is committed.
//!
//! Function lengths are clippy's `too_many_lines`, set in the `clippy.toml` files.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::circles;
use crate::files;
use crate::picture::{CRATES, CrateRule};
use crate::weight::Weight;

/// A longer file has two subjects.
const LINES_MAX: usize = 600;

const FRAGMENTS: &[&str] = &[
    "What", "Who", "Whose", "Whom", "How", "Of", "By", "Where", "Which", "That", "Likewise",
    "Says", "Tells", "Told",
];

/// Text that must not be committed. It is in two halves, so that this file does not match.
const UNFINISHED: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
];

/// Documents that readers of the repository do not have: docs/reference/references.md names the published ones.
const NOT_HERE: &[&str] = &[
    concat!("DESIGN", ".md"),
    concat!("ANCHORS", ".md"),
    concat!("the ", "seeds"),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Set for crates of the workspace.
    path: Option<PathBuf>,
}

pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let metadata = metadata(root)?;
    let mut faults = picture_faults(&metadata);
    faults.extend(crate::docs::faults(root)?);
    let mut weight = Weight::default();
    let mut nr_files = 0;
    for package in &metadata.packages {
        let directory = package
            .manifest_path
            .parent()
            .context("a manifest lies in a directory")?;
        let unsafe_under = find_rule(&package.name).and_then(|crate_rule| crate_rule.unsafe_under);
        let mut parsed = Vec::new();
        for path in files::below(directory, "rs", &["target", "cache"])? {
            let source = files::read(&path)?;
            let shown = path.strip_prefix(root).unwrap_or(&path);
            let shown = shown.display().to_string();
            let may_be_unsafe = unsafe_under.is_some_and(|p| path.starts_with(directory.join(p)));
            faults.extend(file_faults(&shown, &source, may_be_unsafe));
            let file = syn::parse_file(&source).with_context(|| format!("cannot parse {shown}"))?;
            weight.add(&package.name, &shown, &source, &file);
            parsed.push((path, file));
        }
        nr_files += parsed.len();
        let source = directory.join("src");
        faults.extend(circles::faults(&package.name, &source, &parsed));
    }
    faults.extend(weight.faults());
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() {
        println!("tidy: {nr_files} files are in order: {}", weight.summary());
        Ok(ExitCode::SUCCESS)
    } else {
        println!("tidy: {} faults in {nr_files} files", faults.len());
        Ok(ExitCode::FAILURE)
    }
}

fn metadata(root: &Path) -> anyhow::Result<Metadata> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version=1", "--no-deps"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("cargo metadata failed: {}", errors.trim());
    }
    serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata printed")
}

fn find_rule(name: &str) -> Option<&'static CrateRule> {
    CRATES.iter().find(|crate_rule| crate_rule.name == name)
}

fn picture_faults(metadata: &Metadata) -> Vec<String> {
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let Some(crate_rule) = find_rule(&package.name) else {
            faults.push(format!(
                "{}: this crate is not in the picture; add it to CRATES in xtask/src/picture.rs and to \
                 ARCHITECTURE.md",
                package.name
            ));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            let import = &dependency.name;
            if !crate_rule.imports().any(|name| name == *import) {
                let fault = "which the picture in ARCHITECTURE.md does not allow";
                faults.push(format!("{}: imports {import}, {fault}", package.name));
            }
        }
    }
    faults
}

fn file_faults(path: &str, source: &str, may_be_unsafe: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let nr_lines = source.lines().count();
    if nr_lines > LINES_MAX {
        let most = format!("at most {LINES_MAX}, split it by subject");
        faults.push(format!("{path}: {nr_lines} lines; {most}"));
    }
    if !source.starts_with("//!") {
        let fault = "does not open with `//!`: say what the file is for";
        faults.push(format!("{path}:1: {fault}"));
    }
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    for (number, line) in source.lines().enumerate() {
        let code = code_of(line);
        let at = format!("{path}:{}", number + 1);
        if !may_be_unsafe && has_word(code, "unsafe") {
            faults.push(format!("{at}: unsafe code belongs to crates/linux"));
        }
        for name in NOT_HERE.iter().filter(|name| line.contains(**name)) {
            faults.push(format!(
                "{at}: `{name}` is not in the repository; see docs/reference/references.md"
            ));
        }
        let fault = doc_fault(&lines, number).or_else(|| fragment_fault(&lines, number));
        if let Some(fault) = fault {
            faults.push(format!("{at}: {fault}"));
        }
        for word in UNFINISHED.iter().filter(|word| code.contains(**word)) {
            let word = word.trim_end_matches('(');
            faults.push(format!("{at}: `{word}` is not to be committed"));
        }
    }
    faults
}

/// Returns the fault of a comment whose first line begins with part of a sentence.
fn fragment_fault(lines: &[&str], number: usize) -> Option<&'static str> {
    let (mark, text) = lines[number].split_once(' ')?;
    let is_first = number == 0 || !lines[number - 1].starts_with(mark);
    let first = text.split_whitespace().next()?;
    let is_fault = ["///", "//!"].contains(&mark) && is_first && FRAGMENTS.contains(&first);
    is_fault.then_some(
        "a comment is a sentence, or a noun phrase that names the thing: it does not begin with a relative clause",
    )
}

fn doc_fault(lines: &[&str], number: usize) -> Option<&'static str> {
    let line = lines[number];
    let before = &lines[..number];
    let is_doc = |line: &&str| line.starts_with("///");
    if begins_example(lines, number) {
        return Some("no suite runs examples of comments: make it a test, and the block ```text");
    }
    if let Some(text) = line.strip_prefix("///") {
        let is_whole =
            !before.last().is_some_and(is_doc) && !lines.get(number + 1).is_some_and(is_doc);
        let text = text.trim();
        let is_word = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '`');
        return (is_whole && is_word)
            .then_some("one word says no more than a name: a sentence, or none");
    }
    let item = line.strip_prefix("pub ")?;
    let mut words = item
        .split([' ', '<', '('])
        .skip_while(|word| QUALIFIERS.contains(word));
    if !words.next().is_some_and(|word| ITEMS.contains(&word)) {
        return None;
    }
    // Attributes are in between; those of several lines end with `)]`.
    let mut is_inside = false;
    for line in before.iter().rev() {
        if line.starts_with("#[") {
            is_inside = false;
        } else if line.ends_with(")]") {
            is_inside = true;
        } else if !is_inside {
            return (!is_doc(line)).then_some("a public item without documentation");
        }
    }
    Some("a public item without documentation")
}

/// Returns whether a line of a comment starts a block of code that rustdoc treats as Rust.
fn begins_example(lines: &[&str], number: usize) -> bool {
    let before = lines[..number].iter().rev();
    let comment = before.map_while(|line| text_of_comment(line));
    let nr_fences = comment.filter(|text| text.starts_with("```")).count();
    let language = text_of_comment(lines[number]).and_then(|text| text.strip_prefix("```"));
    let is_rust = |language: &str| language.is_empty() || language.starts_with("rust");
    nr_fences.is_multiple_of(2) && language.is_some_and(is_rust)
}

fn text_of_comment(line: &str) -> Option<&str> {
    let text = line.strip_prefix("///").or(line.strip_prefix("//!"));
    text.map(str::trim)
}

/// Qualifiers before the kind of an item, and the kinds that are documented.
const QUALIFIERS: &[&str] = &["async", "unsafe", "extern"];
const ITEMS: &[&str] = &[
    "fn", "struct", "enum", "trait", "type", "static", "union", "const",
];

/// Returns the line without its comment. A `//` inside a string ends it too early, which can only hide the rest of that
/// line.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

/// Returns whether `word` is in `code` as the keyword: before a block, a function, an impl or a trait.
fn has_word(code: &str, word: &str) -> bool {
    let words: Vec<&str> = code
        .split(|c: char| c.is_whitespace() || c == '(')
        .filter(|w| !w.is_empty())
        .collect();
    words
        .windows(2)
        .any(|pair| pair[0] == word && ["{", "fn", "impl", "trait", "extern"].contains(&pair[1]))
        || words.last() == Some(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, imports: &[&str]) -> Metadata {
        let dependencies = imports.iter().map(|name| Dependency {
            name: (*name).to_owned(),
            path: name.starts_with("isotherm").then(PathBuf::new),
        });
        let package = Package {
            name: name.to_owned(),
            manifest_path: PathBuf::new(),
            dependencies: dependencies.collect(),
        };
        Metadata {
            packages: vec![package],
        }
    }

    #[test]
    fn imports_against_the_picture_are_faults() {
        let faults = |name, imports: &[&str]| picture_faults(&package(name, imports));
        let permitted = faults("isotherm-record", &["isotherm-engine", "serde"]);
        assert_eq!(permitted.len(), 0);
        let found = faults("isotherm-record", &["isotherm-linux"]);
        let fault = "isotherm-record: imports isotherm-linux, which the picture in ARCHITECTURE.md does not allow";
        assert_eq!(found, [fault]);
        assert_eq!(faults("isotherm-engine", &["isotherm-record"]).len(), 1);
        assert_eq!(faults("isotherm-unheard-of", &[]).len(), 1);
    }

    #[test]
    fn the_picture_has_no_circle() {
        // Each crate imports only crates above it in the table.
        for (index, crate_rule) in CRATES.iter().enumerate() {
            for import in crate_rule.imports() {
                let is_above = CRATES[..index].iter().any(|above| above.name == import);
                assert!(is_above, "{} imports {import}", crate_rule.name);
            }
        }
    }

    #[test]
    fn a_file_says_what_it_is_for_and_ends_at_six_hundred_lines() {
        let check = |source: &str, faults: &[&str]| {
            assert_eq!(file_faults("f.rs", source, false), faults, "{source}");
        };
        check("//! For.\nfn a() {}\n", &[]);
        let fault = "f.rs:1: does not open with `//!`: say what the file is for";
        check("fn a() {}\n", &[fault]);
        let just = format!("//! For.\n{}", "a\n".repeat(LINES_MAX - 1));
        check(&just, &[]);
        let fault = "f.rs: 601 lines; at most 600, split it by subject";
        check(&format!("{just}a\n"), &[fault]);
    }

    #[test]
    fn faults_of_a_line_are_found() {
        let undocumented = "a public item without documentation";
        let one_word = "one word says no more than a name: a sentence, or none";
        let fragment = "a comment is a sentence, or a noun phrase that names the thing: it does not begin with a \
                        relative clause";
        let example = "no suite runs examples of comments: make it a test, and the block ```text";
        let unfinished = format!("fn a() {{ {}) }}", UNFINISHED[0]);
        let absent = NOT_HERE[0];
        let elsewhere = format!("// See {absent}.");
        let not_here =
            format!("`{absent}` is not in the repository; see docs/reference/references.md");
        let derived = "/// An a.\n#[derive(Debug)]\n#[error(\n    \"b\"\n)]\npub struct A {\n    pub b: u8,\n}";
        for (lines, fault) in [
            ("pub fn a() {}", undocumented),
            ("pub const fn a() {}", undocumented),
            (derived, ""),
            ("pub(crate) fn a() {}\npub use b;", ""),
            ("/// Whose.\npub a: u8,", one_word),
            ("/// As long as a\n/// b.\npub a: u8,", ""),
            ("    /// What it is.\n    a: u8,", fragment),
            ("/// The thing,\n/// Whose name it is.\nfn a() {}", ""),
            ("//! ```text\n//! a\n//! ```", ""),
            ("/// ```\n/// a();\n/// ```", example),
            (&unfinished, "`todo!` is not to be committed"),
            (&elsewhere, &not_here),
        ] {
            let found = file_faults("f.rs", &format!("//! For.\n{lines}\n"), false);
            let wanted = (!fault.is_empty()).then(|| format!("f.rs:2: {fault}"));
            assert_eq!(found.first(), wanted.as_ref(), "{lines}");
            assert!(found.len() < 2, "{lines}: {found:?}");
        }
    }

    #[test]
    fn unsafe_is_found_as_code_only() {
        // Each text begins with a comment, so that this file does not match.
        for text in [
            "//! For.\nlet x = unsafe { *p };",
            "//! For.\nlet x = f(unsafe { *p });",
            "//! For.\nunsafe fn a() {}",
            "//! For.\nlet x = unsafe",
        ] {
            let fault = "f.rs:2: unsafe code belongs to crates/linux";
            assert_eq!(file_faults("f.rs", text, false), [fault], "{text}");
            assert!(file_faults("f.rs", text, true).is_empty(), "{text}");
        }
        for text in [
            "//! For.\n#![forbid(unsafe_code)]\n// unsafe {",
            "//! For.\nlet s = \"an unsafe speed\";",
        ] {
            assert!(file_faults("f.rs", text, false).is_empty(), "{text}");
        }
    }
}
