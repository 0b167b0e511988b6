//! The frame of an HTML page, with everything inside and nothing fetched.

use std::fmt::Write;

/// The closing tags of every page.
pub const END: &str = "</main></body></html>\n";

const STYLE: &str = "
:root{color-scheme:light dark;--fg:#1d2127;--dim:#5d6570;--bg:#f5f6f8;--card:#fff;--line:#dfe3e8}
@media(prefers-color-scheme:dark){:root{--fg:#e6e9ee;--dim:#9aa3af;--bg:#0d0f13;--card:#14171c;--line:#2b313a}}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:24px}
h1{font-size:22px;margin:0}h2{font-size:16px;margin:0 0 4px}
p{color:var(--dim);margin:2px 0 12px}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:16px 20px;margin:16px 0}
svg{width:100%;height:auto;display:block}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 24px 3px 0;text-align:right}th:first-child,td:first-child{text-align:left}
th{color:var(--dim);font-weight:500;border-bottom:1px solid var(--line)}";

/// Escapes the characters of `text` that are markup in HTML and SVG.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Control characters are not allowed in XML at all.
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Returns the beginning of a page, with a line under its title.
pub fn begin(title: &str, subtitle: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title} · Isotherm</title><style>{STYLE}</style></head>\n\
         <body><main><h1>{title}</h1><p>{}</p>\n",
        escape(subtitle)
    )
}

/// Formats a picture with its title; the picture carries its own title for sighted readers.
pub fn figure(title: &str, note: &str, svg: &str) -> String {
    let (title, note) = (escape(title), escape(note));
    let note = match note.as_str() {
        "" => String::new(),
        note => format!("<p>{note}</p>"),
    };
    format!("<section aria-label=\"{title}\">{svg}{note}</section>\n")
}

/// Formats a table with its title.
pub fn table(
    title: &str,
    note: &str,
    head: &[&str],
    rows: impl IntoIterator<Item = impl AsRef<[String]>>,
) -> String {
    let [title, note] = [title, note].map(escape);
    let mut html = format!("<section><h2>{title}</h2><p>{note}</p><table><tr>");
    for name in head {
        let _ = write!(html, "<th>{}</th>", escape(name));
    }
    for row in rows {
        html += "</tr>\n<tr>";
        for field in row.as_ref() {
            let _ = write!(html, "<td>{}</td>", escape(field));
        }
    }
    html + "</tr></table></section>\n"
}
