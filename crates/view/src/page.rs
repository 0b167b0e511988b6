//! The page as one file: scripts, styles and data inside, and a policy that forbids it to fetch anything.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use flate2::Compression;
use flate2::write::GzEncoder;

const FRAME: &str = include_str!("../page/index.html");
const STYLES: [&str; 2] = [
    include_str!("../page/vendor/uplot-1.6.32/uPlot.min.css"),
    include_str!("../page/style.css"),
];
/// A script that defines globals.
const UPLOT: &str = include_str!("../page/vendor/uplot-1.6.32/uPlot.iife.min.js");
/// Modules by name, as they import each other: `isotherm/NAME`.
const MODULES: [(&str, &str); 18] = [
    ("acting.js", include_str!("../page/acting.js")),
    ("app.js", include_str!("../page/app.js")),
    ("blame.js", include_str!("../page/blame.js")),
    ("compare.js", include_str!("../page/compare.js")),
    ("curves.js", include_str!("../page/curves.js")),
    ("data.js", include_str!("../page/data.js")),
    ("detail.js", include_str!("../page/detail.js")),
    ("format.js", include_str!("../page/format.js")),
    ("heat.js", include_str!("../page/heat.js")),
    ("lists.js", include_str!("../page/lists.js")),
    ("machine.js", include_str!("../page/machine.js")),
    ("main.js", include_str!("../page/main.js")),
    ("plot.js", include_str!("../page/plot.js")),
    ("select.js", include_str!("../page/select.js")),
    ("series.js", include_str!("../page/series.js")),
    ("tiers.js", include_str!("../page/tiers.js")),
    ("tiles.js", include_str!("../page/tiles.js")),
    ("what-if.js", include_str!("../page/what-if.js")),
];
/// The script of a worker, which imports nothing.
const WORKER: &str = include_str!("../page/what-if-worker.js");
/// The policy: nothing is fetched, and no text of a record can become a script that fetches. Modules are `data:`
/// addresses.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline' data: 'wasm-unsafe-eval'; style-src 'unsafe-inline'; \
    img-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'";

/// Bytes of the largest trace that a page contains; `isotherm web` serves longer ones.
const TRACE_MAX: u64 = 24 << 20;

/// The source of the page's data.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// All data is inside the page.
    Inside {
        /// The container, from [`crate::Finished::container`].
        container: &'a [u8],
        /// A record of page scans in its file format, for what-if.
        trace: Option<&'a [u8]>,
    },
    /// The page fetches a container, and fetches it again after each event.
    At {
        /// The address, relative to the page.
        data: &'a str,
        /// Address of events (Server-Sent Events) that announce a new container; `None` for fixed data.
        events: Option<&'a str>,
        /// Whether `what-if.wasm` and `trace/0`, `trace/1` and so on are served beside the page.
        has_traces: bool,
        /// Whether parts of heat maps are served beside the page: `detail/RECORD/LAYER/FROM/TO`.
        has_details: bool,
    },
}

/// Returns the simulated machine for browsers (WebAssembly), packed by gzip; `None` where Isotherm was built without
/// it.
pub fn what_if() -> Option<&'static [u8]> {
    let machine = machine();
    (!machine.is_empty()).then_some(machine)
}

/// Returns the module that a release contains (build.rs).
#[cfg(not(what_if_at_run_time))]
fn machine() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/what-if.wasm.gz"))
}

/// Returns the module that a development build reads, from where `scripts/what-if` has put it in the target folder.
#[cfg(what_if_at_run_time)]
fn machine() -> &'static [u8] {
    static MACHINE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    MACHINE.get_or_init(|| fs::read(env!("ISOTHERM_WHAT_IF")).unwrap_or_default())
}

/// Reads a trace for [`Data::Inside`]; returns `None` if it is too long for that.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn trace(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let is_short = fs::metadata(file)?.len() <= TRACE_MAX;
    is_short.then(|| fs::read(file)).transpose()
}

/// Writes the page.
pub fn write(data: Data<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (head, scripts) = (head(data), scripts(data)?);
    let (before, rest) = split(FRAME, "<!--isotherm:head-->");
    let (body, after) = split(rest, "<!--isotherm:scripts-->");
    for part in [before, &head, body, &scripts, after] {
        out.write_all(part.as_bytes())?;
    }
    Ok(())
}

fn split<'a>(text: &'a str, mark: &str) -> (&'a str, &'a str) {
    text.split_once(mark).expect("our frame has its marks")
}

fn head(data: Data<'_>) -> String {
    let may_fetch = match data {
        Data::Inside { .. } => "",
        Data::At { .. } => "; connect-src 'self'",
    };
    format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}{may_fetch}\">\n<style>{}</style>",
        STYLES.join("\n")
    )
}

/// Packs a container in the format that the page unpacks.
///
/// # Errors
/// Only gzip could fail, and it does not when it writes to memory.
pub fn pack(container: &[u8], level: Compression) -> io::Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), level);
    packed.write_all(container)?;
    packed.finish()
}

fn scripts(data: Data<'_>) -> io::Result<String> {
    let data = match data {
        Data::Inside { container, trace } => {
            let mut inside = part("data", &pack(container, Compression::default())?);
            if let Some((machine, trace)) = what_if().zip(trace) {
                inside += &worker();
                inside += &part("what-if-wasm", machine);
                inside += &part("trace", trace);
            }
            inside
        }
        Data::At {
            data,
            events,
            has_traces,
            has_details,
        } => {
            let events = events.map_or_else(String::new, |at| format!(" data-events=\"{at}\""));
            let details = has_details.then_some(" data-details=\"detail\"");
            let details = details.unwrap_or_default();
            let worker = has_traces.then(worker).unwrap_or_default();
            format!(
                "<script id=\"data\" type=\"application/octet-stream\" data-from=\"{data}\"{events}{details}></script>{worker}"
            )
        }
    };
    let imports = MODULES.map(|(name, source)| {
        let source = STANDARD.encode(source);
        format!("\"isotherm/{name}\":\"data:text/javascript;base64,{source}\"")
    });
    Ok(format!(
        "<script type=\"importmap\">{{\"imports\":{{{}}}}}</script>\n<script>{UPLOT}</script>\n\
         {data}\n\
         <script type=\"module\">import \"isotherm/main.js\";</script>",
        imports.join(",")
    ))
}

fn part(id: &str, bytes: &[u8]) -> String {
    let text = STANDARD.encode(bytes);
    format!("<script id=\"{id}\" type=\"application/octet-stream\">{text}</script>\n")
}

fn worker() -> String {
    format!("<script id=\"what-if-worker\" type=\"text/plain\">{WORKER}</script>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_all_that_its_modules_import() {
        for (name, source) in MODULES {
            for import in source.split("from \"isotherm/").skip(1) {
                let wanted = import.split('"').next().unwrap_or_default();
                let known = MODULES.iter().any(|(other, _)| *other == wanted);
                assert!(known, "{name} imports {wanted}");
            }
        }
    }

    #[test]
    fn a_page_without_data_is_small() {
        let mut page = Vec::new();
        let data = Data::Inside {
            container: b"",
            trace: None,
        };
        write(data, &mut page).expect("memory takes everything");
        assert!(page.len() < 300_000, "{} bytes", page.len());
    }
}
