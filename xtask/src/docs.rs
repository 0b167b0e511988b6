//! Checks the documents: links lead somewhere, the book's list of chapters (docs/SUMMARY.md) is complete, and each page is
//! short enough to be read.
//!
//! Anchors of headings are made as GitHub and mdBook make them. Text in blocks or spans of code is never a link. Links
//! to other sites are not followed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use crate::files;

/// Longest page in lines; generated tables do not count.
const PAGE_LINES: usize = 300;
/// Longest line of prose in characters. Tables and code may be longer.
const LINE_CHARS: usize = 120;
const SHORT_PAGES: [(&str, usize, usize); 2] =
    [("README.md", 120, 8_000), ("ARCHITECTURE.md", 130, 10_000)];
/// A list of all that changed, which is not read as a page.
const CHANGELOG: &str = "CHANGELOG.md";

pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// A link `[text](target)` or `![text](target)`, by the positions of its parts in the document.
pub(crate) struct Link {
    /// The range from its bracket to its last parenthesis, without the exclamation mark of a picture.
    pub(crate) whole: Range<usize>,
    pub(crate) text: Range<usize>,
    pub(crate) target: Range<usize>,
}

pub(crate) fn faults(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut documents = BTreeMap::new();
    for path in documents_of(root)? {
        let text = files::read(&root.join(&path))?;
        documents.insert(path, text);
    }
    let mut faults = Vec::new();
    for (path, text) in &documents {
        for link in links(text) {
            let target = &text[link.target];
            if let Some(fault) = link_fault(root, &documents, path, target) {
                let line = text[..link.whole.start].lines().count().max(1);
                faults.push(format!("{}:{line}: {fault}", path.display()));
            }
        }
    }
    faults.extend(summary_faults(&documents));
    for (path, text) in &documents {
        faults.extend(size_faults(&path.display().to_string(), text));
    }
    Ok(faults)
}

fn size_faults(path: &str, text: &str) -> Vec<String> {
    let short = SHORT_PAGES.iter().find(|(name, ..)| *name == path);
    let (most, bytes) = short.map_or((PAGE_LINES, usize::MAX), |(_, lines, bytes)| {
        (*lines, *bytes)
    });
    let own = match text.split_once("\n<!-- ") {
        Some((before, _)) => before,
        None => text,
    };
    let mut faults = Vec::new();
    if path != CHANGELOG && (own.lines().count() > most || text.len() > bytes) {
        faults.push(format!(
            "{path}: longer than {most} lines, or than its bytes; split it"
        ));
    }
    for (at, (line, is_prose)) in lines(text).enumerate() {
        let is_long = line.trim_end().chars().count() > LINE_CHARS;
        if is_prose && is_long && !line.starts_with('|') {
            faults.push(format!("{path}:{}: over {LINE_CHARS} characters", at + 1));
        }
    }
    faults
}

/// The documents at the top and below docs/, relative to `root`.
pub(crate) fn documents_of(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = files::list(root)?;
    paths.retain(|path| !path.is_dir() && path.extension().is_some_and(|end| end == "md"));
    paths.extend(files::below(&root.join("docs"), "md", &[])?);
    let relative = paths.iter().filter_map(|path| path.strip_prefix(root).ok());
    let mut found: Vec<PathBuf> = relative.map(Path::to_owned).collect();
    found.sort();
    Ok(found)
}

/// Returns the target of a link of the document at `from`, relative to the top, and its anchor. `None` for other sites.
pub(crate) fn resolve<'a>(from: &Path, target: &'a str) -> Option<(PathBuf, Option<&'a str>)> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (target, None),
    };
    if path.is_empty() {
        return Some((from.to_owned(), anchor));
    }
    let mut resolved = from.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    Some((resolved, anchor))
}

fn link_fault(
    root: &Path,
    documents: &BTreeMap<PathBuf, String>,
    from: &Path,
    target: &str,
) -> Option<String> {
    let (path, anchor) = resolve(from, target)?;
    if !root.join(&path).exists() {
        return Some(format!("the link to `{target}` leads nowhere"));
    }
    let anchor = anchor?;
    let Some(text) = documents.get(&path) else {
        return Some(format!("`{target}`: only documents have anchors"));
    };
    let is_there = anchors(text).iter().any(|found| found == anchor);
    (!is_there).then(|| format!("`{target}`: there is no such heading"))
}

/// Returns the documents that the list of chapters lacks, or has more than once.
fn summary_faults(documents: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let summary = Path::new(SUMMARY);
    let Some(text) = documents.get(summary) else {
        return vec![format!("{SUMMARY}: the book has no list of chapters")];
    };
    let chapters = links(text).into_iter();
    let chapters: Vec<PathBuf> = chapters
        .filter_map(|link| resolve(summary, &text[link.target]))
        .map(|(path, _)| path)
        .collect();
    let below = |path: &&PathBuf| path.starts_with("docs") && *path != summary;
    let mut faults = Vec::new();
    for path in documents.keys().filter(below) {
        let nr = chapters.iter().filter(|chapter| *chapter == path).count();
        if nr != 1 {
            let path = path.display();
            faults.push(format!("{SUMMARY}: names {path} {nr} times, not once"));
        }
    }
    faults
}

pub(crate) fn links(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    let mut at = 0;
    for (line, is_text) in lines(text) {
        if is_text {
            let spans = code_spans(line);
            let is_code = |at: usize| spans.iter().any(|span| span.contains(&at));
            for (middle, _) in line.match_indices("](").filter(|(at, _)| !is_code(*at)) {
                let (Some(open), Some(length)) =
                    (opening(&line[..middle]), line[middle + 2..].find(')'))
                else {
                    continue;
                };
                let target = middle + 2..middle + 2 + length;
                links.push(Link {
                    whole: at + open..at + target.end + 1,
                    text: at + open + 1..at + middle,
                    target: at + target.start..at + target.end,
                });
            }
        }
        at += line.len();
    }
    links
}

/// Returns the position of the bracket that is open at the end of `text`.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, letter) in text.char_indices().rev() {
        match letter {
            ']' => depth += 1,
            '[' if depth == 0 => return Some(at),
            '[' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn code_spans(line: &str) -> Vec<Range<usize>> {
    let ticks: Vec<usize> = line.match_indices('`').map(|(at, _)| at).collect();
    ticks.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Returns lines with their ends, and whether each is text: neither in a block of code nor its fence.
fn lines(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut is_fenced = false;
    text.split_inclusive('\n').map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        let is_text = !is_fence && !is_fenced && !line.starts_with("    ");
        (line, is_text)
    })
}

fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let headings = lines(text).filter(|(line, is_text)| *is_text && line.starts_with('#'));
    for (line, _) in headings {
        let anchor = anchor(line.trim_start_matches('#').trim());
        let nr = anchors.iter().filter(|before| **before == anchor).count();
        anchors.push(if nr == 0 {
            anchor
        } else {
            format!("{anchor}-{nr}")
        });
    }
    anchors
}

/// Returns a heading's anchor: letters, digits, `_` and `-` in lower case, a `-` for each blank.
pub(crate) fn anchor(heading: &str) -> String {
    let letters = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    letters.collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn check(files: &[(&str, &str)], wanted: &[&str]) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(faults(root.path()).unwrap(), wanted);
    }

    #[test]
    fn each_document_is_a_chapter_once() {
        let list = "- [A](a.md)\n  - [B](how-to/b.md)\n- [Top](../README.md)\n";
        let files = [
            ("README.md", "# Top\n"),
            ("docs/a.md", "# A\n"),
            ("docs/how-to/b.md", "# B\n"),
        ];
        check(&[&files[..], &[(SUMMARY, list)]].concat(), &[]);
        let twice = [&files[..], &[(SUMMARY, "- [A](a.md)\n- [A](a.md)\n")]].concat();
        let wanted = [
            "docs/SUMMARY.md: names docs/a.md 2 times, not once",
            "docs/SUMMARY.md: names docs/how-to/b.md 0 times, not once",
        ];
        check(&twice, &wanted);
        let no_list = "docs/SUMMARY.md: the book has no list of chapters";
        check(&files[..2], &[no_list]);
    }

    #[test]
    fn links_and_anchors_lead_somewhere() {
        let text = "# A `b` (c/d)\n\n[up](#a-b-cd), [down](#a), [no](../b.md), [web](https://a.b/c)\n\
                    `[code](no.md)`\n\n    [block](no.md)\n\n```text\n[fence](no.md)\n```\n\
                    ![a [picture]](p.svg) [to](../README.md#twice-1) [it](p.svg#a)\n";
        check(
            &[
                ("README.md", "# Twice\n[a](docs/a.md#a-b-cd)\n# Twice\n"),
                ("docs/a.md", text),
                ("docs/p.svg", ""),
                (SUMMARY, "- [A](a.md)\n"),
            ],
            &[
                "docs/a.md:3: `#a`: there is no such heading",
                "docs/a.md:3: the link to `../b.md` leads nowhere",
                "docs/a.md:11: `p.svg#a`: only documents have anchors",
            ],
        );
    }

    #[test]
    fn pages_and_lines_have_a_length() {
        let long = "x".repeat(LINE_CHARS + 1);
        let text = format!("# A\n{long}\n| {long} |\n\n    {long}\n\n```text\n{long}\n```\n");
        let faults = size_faults("docs/a.md", &text);
        assert_eq!(faults, ["docs/a.md:2: over 120 characters"]);
        let lines = |nr: usize| "a\n".repeat(nr);
        let generated = "\n<!-- json -->\n".to_owned() + &lines(400);
        for (path, text, nr_faults) in [
            ("docs/a.md", lines(PAGE_LINES), 0),
            ("docs/a.md", lines(PAGE_LINES + 1), 1),
            ("README.md", lines(121), 1),
            ("README.md", "a".repeat(119).repeat(80), 2),
            ("docs/a.md", generated, 0),
        ] {
            let faults = size_faults(path, &text);
            assert_eq!(faults.len(), nr_faults, "{path}: {faults:?}");
        }
    }

    #[test]
    fn a_link_is_found_in_its_parts() {
        let text = "é ![a [b] c](d.md#e) f";
        let links = links(text);
        assert_eq!(links.len(), 1);
        assert_eq!(&text[links[0].whole.clone()], "[a [b] c](d.md#e)");
        assert_eq!(&text[links[0].text.clone()], "a [b] c");
        assert_eq!(&text[links[0].target.clone()], "d.md#e");
    }
}
