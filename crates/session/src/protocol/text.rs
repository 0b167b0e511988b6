//! A daemon's status as text. The input is JSON, as the daemon may be of another version.

use std::borrow::Cow;

use isotherm_engine::units::{format_bytes, format_share, format_time};
use isotherm_engine::{Nanos, PAGE_SIZE};
use isotherm_policy::BoundBy;
use isotherm_record::printable;
use serde::Deserialize as _;
use serde_json::Value;

use crate::acting::bound_words;

const TARGETS_SHOWN: usize = 20;

/// Returns a status as lines for people; a missing value reads `?`.
#[must_use]
pub fn status_text(status: &Value) -> String {
    let mut lines = vec![head(status)];
    let targets = list(&status["targets"]);
    for target in targets.iter().take(TARGETS_SHOWN) {
        lines.push(format!(
            "  {} ({}{}): {} in memory, {}",
            text(&target["name"]),
            target["pid"],
            target["context"]
                .as_str()
                .map_or_else(String::new, |context| format!(", {context}")),
            bytes(&target["rss_bytes"]),
            view(target),
        ));
    }
    if targets.len() > TARGETS_SHOWN {
        lines.push(format!("  and {} more", targets.len() - TARGETS_SHOWN));
    }
    if targets.len() != 1 {
        lines.push(format!(
            "  all {}: {}",
            targets.len(),
            view(&status["total"])
        ));
    }
    let is_dry = status["dry_run"] == true;
    for context in list(&status["contexts"]) {
        let name = context["name"].as_str();
        if let Some(name) = name {
            let paused = context["paused"] == true && status["paused"] != true;
            lines.push(format!("{name}{}:", if paused { ", paused" } else { "" }));
        }
        let indent = if name.is_some() { "  " } else { "" };
        for (i, scheme) in list(&context["schemes"]).iter().enumerate() {
            let of_kernel = context["kdamond"].is_u64();
            lines.push(format!(
                "{indent}{}",
                scheme_line(i, scheme, is_dry, of_kernel)
            ));
            let moved = list(&scheme["stats"]["moved"]).iter();
            lines.extend(moved.map(|way| format!("{indent}{}", moved_line(way))));
        }
        if let Some(bytes) = context["paged_out_bytes"].as_u64() {
            lines.push(format!(
                "{indent}{} went out of memory, by the machine's counters",
                format_bytes(bytes)
            ));
        }
        if let Ok(by) = BoundBy::deserialize(&context["bound_by"]) {
            lines.push(format!("{indent}limited by: {}", bound_words(by)));
        }
        lines.push(format!("{indent}{}", guard_line(context)));
        let budget = budget_line(&context["guard"]["budget"]);
        lines.push(format!("{indent}{budget}"));
    }
    lines.extend(pod_lines(&status["pod_policy"]));
    lines.extend(kernel_line(&status["kernel_migrations"]["machine"]));
    let monitor = &status["monitor"];
    lines.push(format!(
        "watching: {} of a CPU, {} of memory",
        format_share(monitor["cpu_share"].as_f64().unwrap_or(0.0)),
        bytes(&monitor["rss_bytes"]),
    ));
    lines.join("\n")
}

fn head(status: &Value) -> String {
    let uptime = Nanos((status["uptime_s"].as_f64().unwrap_or(0.0) * 1e9) as u64);
    let mut head = format!(
        "isotherm {} (pid {}), running for {}",
        text(&status["version"]),
        status["pid"],
        format_time(uptime),
    );
    for (said, by) in [
        (", by ", &status["config"]),
        (", tuned by ", &status["tuned"]["by"]),
    ] {
        if by.is_string() {
            head.push_str(said);
            head.push_str(&text(by));
        }
    }
    if status["dry_run"] == true {
        head += "; dry run: nothing is acted on";
        if let Some(out) = status["would_be_out_bytes"].as_u64() {
            head.push_str(", ");
            head.push_str(&format_bytes(out));
            head.push_str(" would be out of memory now");
        }
    }
    if status["paused"] == true {
        head += "; paused";
    }
    head
}

fn view(view: &Value) -> String {
    format!(
        "{} watched in {} regions of {}: {} accessed in the last interval, {} not, {} unknown",
        bytes(&view["resident_bytes"]),
        view["regions"],
        bytes(&view["watched_bytes"]),
        bytes(&view["hot_bytes"]),
        bytes(&view["idle_bytes"]),
        bytes(&view["unknown_bytes"]),
    )
}

fn scheme_line(i: usize, scheme: &Value, is_dry: bool, of_kernel: bool) -> String {
    let stats = &scheme["stats"];
    let state = match (&scheme["is_finished"], &scheme["is_active"]) {
        (Value::Bool(true), _) => " (finished)",
        (_, Value::Bool(false)) => " (inactive by its watermarks)",
        _ => "",
    };
    let quota = scheme["quota"]["effective"]
        .as_u64()
        .map_or_else(String::new, |effective| {
            if of_kernel {
                return format!("; a quota of {} a window", format_bytes(effective));
            }
            format!(
                "; {} of {} of its quota used",
                bytes(&scheme["quota"]["charged"]),
                format_bytes(effective)
            )
        });
    let refused: Vec<String> = stats["refused"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(why, amount)| format!("{} {}", bytes(amount), why.replace('_', " ")))
        .collect();
    let done = if is_dry { "would be" } else { "were" };
    let refused = if refused.is_empty() {
        String::new()
    } else {
        format!("; refused: {}", refused.join(", "))
    };
    format!(
        "scheme {i}, {}{}{state}: {} of {} tried {done} acted on{quota}{refused}",
        text(&scheme["action"]),
        pattern(&scheme["pattern"]),
        bytes(&stats["sz_applied"]),
        bytes(&stats["sz_tried"]),
    )
}

/// Describes a scheme's access pattern; conditions that are not set are left out.
fn pattern(pattern: &Value) -> String {
    let mut parts = Vec::new();
    let accesses = &pattern["nr_accesses"];
    let [least, most] = ["min", "max"].map(|bound| {
        let bound = &accesses[bound];
        let number = bound["percent"].as_f64().or(bound["samples"].as_f64());
        let unit = if bound["percent"].is_null() {
            "checks an interval"
        } else {
            "% of checks"
        };
        let is_all =
            number == Some(f64::from(u32::MAX)) || unit.starts_with('%') && number == Some(100.0);
        (number, is_all, unit)
    });
    match (least, most) {
        ((Some(0.0), ..), (Some(0.0), ..)) => parts.push("not accessed".to_owned()),
        ((Some(0.0) | None, ..), (_, true, _)) | ((None, ..), _) | (_, (None, ..)) => {}
        ((Some(least), ..), (_, true, unit)) => {
            parts.push(format!("accessed in at least {least} {unit}"));
        }
        ((Some(least), ..), (Some(most), _, unit)) => {
            parts.push(format!("accessed in {least} to {most} {unit}"));
        }
    }
    let age = |bound: &Value| match (bound["time"].as_u64(), bound["intervals"].as_u64()) {
        (Some(u64::MAX), _) | (None, None | Some(0)) => None,
        (_, Some(nr)) if nr == u64::from(u32::MAX) => None,
        (Some(0), _) => None,
        (Some(time), _) => Some(format_time(Nanos(time))),
        (_, Some(nr)) => Some(format!("{nr} intervals")),
    };
    parts.extend(age(&pattern["age"]["min"]).map(|least| format!("for at least {least}")));
    parts.extend(age(&pattern["age"]["max"]).map(|most| format!("for at most {most}")));
    let size = &pattern["size"];
    let least = size["min"].as_u64().filter(|bytes| *bytes > PAGE_SIZE);
    parts.extend(least.map(|bytes| format!("of at least {}", format_bytes(bytes))));
    let most = size["max"].as_u64().filter(|bytes| *bytes < 1 << 60);
    parts.extend(most.map(|bytes| format!("of at most {}", format_bytes(bytes))));
    if parts.is_empty() {
        return String::new();
    }
    format!(" ({})", parts.join(", "))
}

fn moved_line(way: &Value) -> String {
    format!(
        "  node {} to node {}: {}",
        way["from"],
        way["to"],
        bytes(&way["bytes"])
    )
}

fn pod_lines(policy: &Value) -> Vec<String> {
    if !policy.is_object() {
        return Vec::new();
    }
    let nr = |of: &str| policy["nr_pods"][of].as_u64().unwrap_or(0);
    let mut lines = vec![format!(
        "pods of {}: {} may be reclaimed, {} are only reported on, {} are left alone as what they say is wrong",
        text(&policy["node"]),
        nr("reclaim"),
        nr("report"),
        nr("invalid"),
    )];
    let pods = list(&policy["pods"]);
    lines.extend(pods.iter().take(TARGETS_SHOWN).map(|pod| {
        let more = pod["min_age"].as_u64();
        let more = more.map(|age| format!(", idle for {}", format_time(Nanos(age))));
        let problem = Some(&pod["problem"]).filter(|problem| problem.is_string());
        let more = more.or_else(|| Some(format!(": {}", text(problem?))));
        format!(
            "  {}/{}: {}{}",
            text(&pod["namespace"]),
            text(&pod["pod"]),
            text(&pod["policy"]),
            more.unwrap_or_default()
        )
    }));
    if pods.len() > TARGETS_SHOWN {
        lines.push(format!("  and {} more", pods.len() - TARGETS_SHOWN));
    }
    if policy["error"].is_string() {
        lines.push(format!(
            "  the API server does not answer: {}",
            text(&policy["error"])
        ));
    }
    lines
}

fn kernel_line(counters: &Value) -> Option<String> {
    let counters = counters.as_object()?;
    let pages = counters
        .iter()
        .filter(|(name, _)| name.starts_with("pgdemote_") || *name == "pgpromote_success")
        .map(|(name, pages)| format!("{name} {pages}"));
    let pages: Vec<String> = pages.collect();
    (!pages.is_empty())
        .then(|| format!("the kernel itself, pages since boot: {}", pages.join(", ")))
}

fn guard_line(context: &Value) -> String {
    let guard = &context["guard"];
    let Some(rate) = guard["bytes_per_s"].as_u64() else {
        return "guard: no limits".into();
    };
    let used = match guard["limit_ratio"].as_f64() {
        _ if guard["is_blind"] == true => {
            "a limited signal is unknown, so the rate stays".to_owned()
        }
        Some(limit_ratio) => format!("at {} of its limits", format_share(limit_ratio)),
        None => "its signals are unknown".to_owned(),
    };
    let exceeded = guard["exceeded"]
        .as_str()
        .map_or_else(String::new, |limit| format!(", last by {limit}"));
    let state = match (&guard["is_open"], &guard["is_in_debt"]) {
        (Value::Bool(true), _) => "open",
        (_, Value::Bool(true)) => "closed until what was lost is paid back",
        _ => "closed",
    };
    let of_cache = &guard["page_cache"];
    let cache = of_cache["bytes_per_s"].as_u64().map(|rate| {
        let is_closed = of_cache["is_open"] == false;
        let state = if is_closed { "closed" } else { "open" };
        format!(
            " (page cache: {state}, up to {}/s, {} times)",
            format_bytes(rate),
            of_cache["nr_stops"]
        )
    });
    let cache = cache.unwrap_or_default();
    let backoff = guard["backoff"].as_u64().filter(|factor| *factor > 1);
    let backoff = backoff.map_or_else(String::new, |factor| {
        format!("; back-off: {factor} times the schemes' minimum age, as pages refaulted")
    });
    let seconds = |value: &Value| value.as_f64().unwrap_or(0.0) / 1e9;
    let lost = &guard["recent"];
    format!(
        "guard: {state}, up to {}/s, {used}; stopped {} times{exceeded}{cache}{backoff}; targets lost {:.2} of {:.2} s \
         allowed in the last 10 minutes",
        format_bytes(rate),
        guard["nr_stops"],
        seconds(&lost["lost"]),
        seconds(&lost["allowed"]),
    )
}

fn budget_line(budget: &Value) -> String {
    let seconds = |key: &str| budget[key].as_f64().unwrap_or(0.0) / 1e9;
    let share = budget["share"].as_f64();
    let share = share.map_or_else(
        || "no budget".into(),
        |share| format!("{} of a CPU where none is idle", format_share(share)),
    );
    let idle = budget["idle_cpus"].as_f64();
    let idle = idle.map_or_else(|| "unknown".into(), |cpus| format!("{cpus:.1}"));
    format!(
        "acting: {share}; {:.2} s of CPU so far, {:.2} s of it from busy CPUs; {idle} CPUs idle{}",
        seconds("spent"),
        seconds("charged"),
        if budget["is_exhausted"] == true {
            ", waiting"
        } else {
            ""
        },
    )
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a text of the daemon on one line.
fn text(value: &Value) -> Cow<'_, str> {
    printable(value.as_str().unwrap_or("?"))
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "?".into(), format_bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn names_stay_on_their_line() {
        let status = json!({
            "version": "1", "pid": 7, "config": "a\nb", "tuned": {"by": "c\u{1b}[2J"},
            "targets": [{"pid": 8, "name": "d\ne"}],
            "pod_policy": {"node": "f\ng", "pods": [{"pod": "h\ni"}], "error": "j\nk"},
        });
        let text = super::status_text(&status);
        let shown = [r"a\nb", r"c\u{1b}[2J", r"d\ne", r"f\ng", r"h\ni", r"j\nk"];
        for shown in shown {
            assert!(text.contains(shown), "{shown} is not in {text}");
        }
    }
}
