//! Values of damo's parameters that are small languages of their own: regions, filters, goals.

use serde_json::{Value, json};

use super::{DamoError, Values};

pub(super) fn regions(ranges: Option<&Values>) -> Result<Vec<Value>, DamoError> {
    let ranges = ranges
        .into_iter()
        .flatten()
        .flat_map(|text| text.split_whitespace());
    let region = |range: &str| {
        let (start, end) = range.split_once('-').ok_or_else(|| DamoError::Values {
            option: "--regions".to_owned(),
            wanted: "ranges: 'START-END ...'".to_owned(),
        })?;
        Ok(json!({ "start": start, "end": end }))
    };
    ranges.map(region).collect()
}

/// Reads `allow|reject [none] TYPE [DETAIL ...]`: the flags, the type, and the rest.
fn allowed<'w>(
    option: &str,
    words: &'w [String],
) -> Result<(bool, bool, &'w str, &'w [String]), DamoError> {
    let wrong = || DamoError::Values {
        option: option.to_owned(),
        wanted: "allow|reject [none] TYPE [DETAIL ...]".to_owned(),
    };
    let [first, rest @ ..] = words else {
        return Err(wrong());
    };
    if !["allow", "reject", "deny", "block"].contains(&first.as_str()) {
        return Err(wrong());
    }
    let is_negated = rest
        .first()
        .is_some_and(|word| ["non", "none"].contains(&word.as_str()));
    let [kind, details @ ..] = &rest[usize::from(is_negated)..] else {
        return Err(wrong());
    };
    Ok((first == "allow", !is_negated, kind, details))
}

pub(super) fn filter(words: &[String]) -> Result<Value, DamoError> {
    let is_word = |word: &String, of: &[&str]| of.contains(&word.as_str());
    // The older form: TYPE matching|nomatching [DETAIL ...] [allow|reject].
    let older = words
        .get(1)
        .is_some_and(|word| is_word(word, &["matching", "nomatching"]));
    let newer: Vec<String>;
    let words = if older {
        let verdicts = ["allow", "pass", "reject", "deny", "block"];
        let last = words
            .last()
            .filter(|word| words.len() > 2 && is_word(word, &verdicts));
        let details = &words[2..words.len() - usize::from(last.is_some())];
        let is_allowed = last.is_some_and(|word| is_word(word, &["allow", "pass"]));
        let mut all = vec![if is_allowed { "allow" } else { "reject" }.to_owned()];
        all.extend((words[1] == "nomatching").then(|| "none".to_owned()));
        all.push(words[0].clone());
        all.extend_from_slice(details);
        newer = all;
        &newer[..]
    } else {
        words
    };
    let (allow, matching, kind, details) = allowed("--damos_filter", words)?;
    let mut filter = json!({ "filter_type": kind, "matching": matching, "allow": allow });
    let two = || json!(details.iter().take(2).collect::<Vec<_>>());
    match (kind, details) {
        ("memcg", [path, ..]) => filter["memcg_path"] = path.as_str().into(),
        ("addr", [start, end, ..]) => {
            filter["address_range"] = json!({ "start": start, "end": end });
        }
        ("target", [index, ..]) => filter["damon_target_idx"] = index.as_str().into(),
        ("hugepage_size", _) => filter["hugepage_size"] = two(),
        ("probe_hits_wsum", _) => filter["probe_hits_wsum_range"] = two(),
        _ => {}
    }
    Ok(filter)
}

pub(super) fn probe_filter(words: &[String]) -> Result<Value, DamoError> {
    let (allow, matching, kind, details) = allowed("--probe_filter", words)?;
    let mut filter = json!({ "filter_type": kind, "matching": matching, "allow": allow });
    match (kind, details) {
        ("memcg", [path, ..]) => filter["path"] = path.as_str().into(),
        ("hugepage_size", [min, max, ..]) => {
            filter["range_min"] = min.as_str().into();
            filter["range_max"] = max.as_str().into();
        }
        _ => {}
    }
    Ok(filter)
}

/// Reads `METRIC TARGET [complement] [VALUE | NODE [PATH]]`.
pub(super) fn quota_goal(words: &[String]) -> Result<Value, DamoError> {
    let [metric, target, rest @ ..] = words else {
        return Err(DamoError::Values {
            option: "--damos_quota_goal".to_owned(),
            wanted: "METRIC TARGET [complement] [VALUE | NODE [PATH]]".to_owned(),
        });
    };
    let is_complement = rest.first().is_some_and(|word| word == "complement");
    let rest = &rest[usize::from(is_complement)..];
    let is_of_user = metric == "user_input";
    let current = rest
        .first()
        .filter(|_| is_of_user)
        .map_or("0", String::as_str);
    let mut goal = json!({
        "metric": metric, "target_value": target, "complement": is_complement, "current_value": current,
    });
    if let Some(node) = rest.first().filter(|_| !is_of_user) {
        goal["nid"] = node.as_str().into();
    }
    if let Some(path) = rest.get(1) {
        goal["memcg_path"] = path.as_str().into();
    }
    Ok(goal)
}
