//! The book's source for mdBook, which needs all of it in one folder. It consists of docs/, the files at the top that
//! the list of chapters names, and generated chapters. These are made from clap (`isotherm man --format markdown`) and
//! from the schemas of docs/schema. `scripts/book` builds a book of it; `--check` checks the links of its pages.
//!
//! In the list of chapters, a line `<!-- commands -->` or `<!-- json -->` marks the place of the generated chapters.
//! Links to files that are not in the book (source code) are shown as their text only.

mod html;
mod schema;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::docs::{self, SUMMARY};
use crate::files::{self, read};

/// Folders of generated pages, in the book's source.
const COMMANDS: &str = "reference/commands";
const JSON: &str = "reference/json";

/// Write the book's source, or check the pages that mdBook made of it.
#[derive(clap::Parser)]
#[command(name = "xtask book")]
pub(crate) struct Args {
    /// The folder of the book; its source is written to `src` in it.
    #[arg(long, default_value = "target/book")]
    out: PathBuf,
    /// The `isotherm` that describes its commands.
    #[arg(long, value_name = "FILE", required_unless_present = "check")]
    isotherm: Option<PathBuf>,
    /// Check the pages in `html` instead.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let out = root.join(&args.out);
    if let Some(isotherm) = args.isotherm.as_ref().filter(|_| !args.check) {
        write_source(root, &out, isotherm)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (nr_pages, faults) = html::faults(&out.join("html"))?;
    for fault in &faults {
        println!("{fault}");
    }
    println!("book: {nr_pages} pages, {} dead links", faults.len());
    Ok(ExitCode::from(u8::from(!faults.is_empty())))
}

fn write_source(root: &Path, out: &Path, isotherm: &Path) -> anyhow::Result<()> {
    let source = out.join("src");
    // Files of an earlier version would stay in the book.
    if source.exists() {
        fs::remove_dir_all(&source)
            .with_context(|| format!("cannot remove {}", source.display()))?;
    }
    copy_folder(&root.join("docs"), &source)?;
    fs::rename(source.join("book.toml"), out.join("book.toml"))
        .context("cannot move docs/book.toml's copy")?;
    let summary = read(&root.join(SUMMARY))?;
    let mut chapters = docs::documents_of(root)?;
    chapters.retain(|path| path.starts_with("docs") || is_chapter(&summary, path));
    for path in &chapters {
        let text = for_book(path, &read(&root.join(path))?, &chapters);
        let to = source.join(in_book(path));
        fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))?;
    }
    let commands = write_commands(isotherm, &source)?;
    let json = write_json(root, &source)?;
    let list = read(&source.join("SUMMARY.md"))?;
    let list = list
        .replace("<!-- commands -->\n", &commands)
        .replace("<!-- json -->\n", &json);
    fs::write(source.join("SUMMARY.md"), list).context("cannot write the list of chapters")
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for path in files::list(from)? {
        let to = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_folder(&path, &to)?;
        } else {
            fs::copy(&path, &to).with_context(|| format!("cannot copy to {}", to.display()))?;
        }
    }
    Ok(())
}

fn is_chapter(summary: &str, path: &Path) -> bool {
    docs::links(summary)
        .into_iter()
        .filter_map(|link| docs::resolve(Path::new(SUMMARY), &summary[link.target]))
        .any(|(chapter, _)| chapter == path)
}

/// Returns the path of a repository's file in the book's source. mdBook makes an index of each README.md, but does not
/// change links to it.
fn in_book(path: &Path) -> PathBuf {
    let inside = path.strip_prefix("docs").unwrap_or(path);
    if inside.ends_with("README.md") {
        return inside.with_file_name("index.md");
    }
    inside.to_owned()
}

/// Converts a document to a chapter: links lead to other chapters and to files beside them, or become text.
fn for_book(path: &Path, text: &str, chapters: &[PathBuf]) -> String {
    let mut chapter = String::with_capacity(text.len());
    let mut done = 0;
    for link in docs::links(text) {
        let Some((to, anchor)) = docs::resolve(path, &text[link.target.clone()]) else {
            continue;
        };
        chapter.push_str(&text[done..link.whole.start]);
        done = link.whole.end;
        let shown = &text[link.text];
        // The list itself is not a chapter.
        let is_in_book = to.starts_with("docs") || chapters.contains(&to);
        if is_in_book && to != Path::new(SUMMARY) {
            let anchor = anchor.map(|anchor| format!("#{anchor}"));
            let to = relative(&in_book(path), &in_book(&to));
            let _ = write!(chapter, "[{shown}]({to}{})", anchor.unwrap_or_default());
        } else {
            chapter.push_str(shown);
        }
    }
    chapter.push_str(&text[done..]);
    chapter
}

fn relative(from: &Path, to: &Path) -> String {
    let depth = from.components().count() - 1;
    format!("{}{}", "../".repeat(depth), to.display())
}

/// Writes the pages of the commands by `isotherm`; returns their part of the list of chapters.
fn write_commands(isotherm: &Path, source: &Path) -> anyhow::Result<String> {
    let folder = source.join(COMMANDS);
    let status = Command::new(isotherm)
        .args(["man", "--format", "markdown", "--out"])
        .arg(&folder)
        .status()
        .with_context(|| format!("cannot run {}", isotherm.display()))?;
    if !status.success() {
        bail!("{} man: {status}", isotherm.display());
    }
    // The order is that of the overview, which is that of `isotherm --help`.
    let overview = read(&folder.join("isotherm.md"))?;
    let mut list = format!("- [Commands]({COMMANDS}/isotherm.md)\n");
    for link in docs::links(&overview) {
        let file = &overview[link.target];
        let name = file.trim_end_matches(".md");
        let _ = writeln!(list, "  - [{name}]({COMMANDS}/{file})");
    }
    Ok(list)
}

/// Writes a page for each schema; returns their part of the list of chapters.
fn write_json(root: &Path, source: &Path) -> anyhow::Result<String> {
    let folder = source.join(JSON);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut list = format!("- [Keys of JSON and of experiments]({JSON}/index.md)\n");
    let mut index = String::from(
        "# Keys of JSON and of experiments\n\nA page for each JSON Schema of `docs/schema`, which are made from the types that \
         serde writes and reads.\n\n",
    );
    let paths = files::below(&root.join("docs/schema"), "json", &[])?;
    let names = paths.iter().filter_map(|path| path.file_stem()?.to_str());
    for name in names.collect::<BTreeSet<_>>() {
        let text = read(&root.join(format!("docs/schema/{name}.json")))?;
        let schema = serde_json::from_str(&text).with_context(|| format!("{name}: no JSON"))?;
        let page = folder.join(format!("{name}.md"));
        fs::write(&page, schema::page(name, &schema))
            .with_context(|| format!("cannot write {}", page.display()))?;
        let _ = writeln!(list, "  - [{name}]({JSON}/{name}.md)");
        let _ = writeln!(index, "- [{name}]({name}.md)");
    }
    fs::write(folder.join("index.md"), index).context("cannot write the index of schemas")?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_a_chapter_stay_within_the_book() {
        let chapters = ["README.md", "docs/a.md", "docs/how-to/b.md"].map(PathBuf::from);
        let check = |path: &str, text: &str, wanted: &str| {
            assert_eq!(for_book(Path::new(path), text, &chapters), wanted);
        };
        let text = "[a](../a.md#x), [top](../../README.md), ![p](../images/p.png) [code](../../crates/c.rs).";
        let wanted = "[a](../a.md#x), [top](../index.md), ![p](../images/p.png) code.";
        check("docs/how-to/b.md", text, wanted);
        let text =
            "[a](docs/a.md), [web](https://a.b), [rules](CONTRIBUTING.md), [book](docs/SUMMARY.md)";
        let wanted = "[a](a.md), [web](https://a.b), rules, book";
        check("README.md", text, wanted);
    }
}
