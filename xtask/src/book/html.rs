//! Checks the links of the book's pages, which mdBook itself does not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::files;

struct Page {
    links: Vec<String>,
    ids: BTreeSet<String>,
}

/// Returns the number of pages below `folder`, and their broken links.
pub(super) fn faults(folder: &Path) -> anyhow::Result<(usize, Vec<String>)> {
    let mut pages = BTreeMap::new();
    let paths = files::below(folder, "html", &[]);
    for path in paths.context("has mdbook made the pages?")? {
        let text = files::read(&path)?;
        let links = [values(&text, " href=\""), values(&text, " src=\"")].concat();
        let ids = values(&text, " id=\"").into_iter().collect();
        pages.insert(path, Page { links, ids });
    }
    let mut faults = Vec::new();
    for (path, page) in &pages {
        // print.html shows all chapters with links that are valid at their own places; the links of 404.html are valid
        // at the top.
        if path.ends_with("print.html") || path.ends_with("404.html") {
            continue;
        }
        for link in &page.links {
            if let Some((to, anchor)) = crate::docs::resolve(path, link)
                && !is_there(&pages, &to, anchor)
            {
                faults.push(format!("{}: {link}", path.display()));
            }
        }
    }
    Ok((pages.len(), faults))
}

fn is_there(pages: &BTreeMap<PathBuf, Page>, path: &Path, anchor: Option<&str>) -> bool {
    match (pages.get(path), anchor) {
        (Some(page), Some(anchor)) => anchor.is_empty() || page.ids.contains(anchor),
        (Some(_), None) => true,
        (None, _) => path.exists(),
    }
}

fn values(text: &str, attribute: &str) -> Vec<String> {
    let parts = text.split(attribute).skip(1);
    let values = parts.filter_map(|part| part.split_once('"'));
    values
        .map(|(value, _)| value.replace("&amp;", "&"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn dead_links_and_anchors_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        write("p.png", "");
        let index = "<h1 id=\"top\"><a href=\"a/b.html#c\">x</a><img src=\"p.png\">";
        write("index.html", index);
        let links = "<a href=\"../index.html#top\"><a href=\"#c\"><a href=\"c.html\"><a href=\"https://d\">";
        write("a/b.html", links);
        let (nr_pages, faults) = faults(folder.path()).unwrap();
        let names = faults.iter().filter_map(|fault| fault.rsplit('/').next());
        let names: Vec<&str> = names.collect();
        assert_eq!(nr_pages, 2);
        assert_eq!(names, ["b.html: #c", "b.html: c.html", "b.html#c"]);
    }
}
