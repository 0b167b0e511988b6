//! One-line schemes, as in DAMON's first patches and damo's `.damos` files:
//!
//! ```text
//! # <min/max size> <min/max frequency (0-100)> <min/max age> <action>
//! 4K      max     0       0       5s      max     pageout
//! ```
//!
//! `min` and `max` (in the oldest texts `null`) are the ends. A frequency is in per cent, with or without `%`. The node
//! to move to follows `migrate_cold` and `migrate_hot` (published as DEMOTE and PROMOTE). It is `1`, or several nodes
//! with their weights, `1:3,2:1`. This is Isotherm's extension: the first patches had no such actions, and HMSDK's
//! found the node by its distance.
//!
//! A quota may follow the action, as in DAMON_RECLAIM's first patches: `<time> <size> <reset interval>`. Then priority
//! weights `<size> <frequency> <age>` may follow, and then watermarks `<metric> <interval> <high> <middle> <low>` in
//! thousandths. The quota's time may be omitted, as in damo's lines of 9, 12 and 17 words. An age other than 0 needs a
//! unit: over time, a bare number has meant microseconds and aggregation intervals.

use isotherm_engine::Nanos;
use isotherm_engine::units::{MICROSECOND, MILLISECOND, is_unit};
use isotherm_policy::scheme::{
    AccessPattern, Action, Age, Bounds, Destination, Frequency, Quota, Scheme, WatermarkMetric,
    Watermarks, Weights,
};

use crate::cursor::Log;
use crate::kdamonds::SCHEMES_MAX;
use crate::model::ContextConfig;
use crate::problem::{Place, Problem, Severity, nearest, quoted};
use crate::scheme::unknown_action;
use crate::unit::{self, Read, misread};
use crate::validate;

/// Names of the words, for messages.
const WORDS: [&str; 7] = [
    "min-size", "max-size", "min-freq", "max-freq", "min-age", "max-age", "action",
];
/// Limit of the nodes, Linux's on x86-64 (`MAX_NUMNODES`).
const NODES_MAX: u32 = 1024;
const DESTINATION: &str =
    "a node to move to, such as 1, or several with their weights, such as 1:3,2:1";

/// Reads one scheme from a line such as `4K max 0 0 5s max pageout`; `#` begins a comment.
///
/// # Errors
/// Fails at the first fault of the line.
pub fn scheme_line(text: &str) -> Result<Scheme, Problem> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !is_empty(line));
    let Some((index, line)) = lines.next() else {
        return Err(Problem::error("no scheme", shape()));
    };
    if let Some((index, _)) = lines.next() {
        return Err(Problem::error("a second line", "one scheme").at(place(index, 1)));
    }
    let scheme = parse(line, index)?;
    match validated(&scheme, index).find(|p| p.severity == Severity::Error) {
        Some(problem) => Err(problem),
        None => Ok(scheme),
    }
}

/// Reads a `.damos` file: a scheme on each line.
pub(crate) fn read_file(text: &str, log: &Log) -> Option<Vec<ContextConfig>> {
    let mut context = ContextConfig::default();
    let mut indexes = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !is_empty(line));
    for (index, line) in lines {
        if indexes.len() == SCHEMES_MAX {
            let expected = format!("at most {SCHEMES_MAX}");
            log.add(Problem::error("more schemes", expected).at(place(index, 1)));
            break;
        }
        if log.is_full() {
            break;
        }
        match parse(line, index) {
            Ok(scheme) => {
                validated(&scheme, index).for_each(|problem| log.add(problem));
                context.schemes.push(scheme);
                indexes.push(index);
            }
            Err(problem) => log.add(problem),
        }
    }
    for conflict in validate::conflicts(&context) {
        let place = place(indexes[conflict.second], 1);
        log.add(conflict.problem(conflict.first).at(place));
    }
    if text.lines().all(is_empty) {
        log.add(Problem::error("no scheme", shape()));
        return None;
    }
    Some(vec![context])
}

fn shape() -> String {
    format!("{}, such as `4K max 0 0 5s max pageout`", WORDS.join(" "))
}

fn is_empty(line: &str) -> bool {
    without_comment(line).trim().is_empty()
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or(line)
}

fn validated(scheme: &Scheme, index: usize) -> impl Iterator<Item = Problem> + use<> {
    let faults = validate::faults(scheme).into_iter();
    faults.map(move |(path, problem)| {
        let place = whole_line(index);
        problem.at(Place { path, ..place })
    })
}

fn place(index: usize, column: usize) -> Place {
    Place::at(index as u32 + 1, Some(column as u32))
}

fn whole_line(index: usize) -> Place {
    Place::at(index as u32 + 1, None)
}

/// Words of a line with their columns.
struct Words {
    all: Vec<(String, usize)>,
    next: usize,
    line: usize,
}

impl Words {
    fn of(line: &str, index: usize) -> Self {
        let mut words: Vec<(String, usize)> = Vec::new();
        let text = without_comment(line);
        let mut column = 0;
        for word in text.split(|c: char| c.is_whitespace()) {
            let begin = column + 1;
            column += word.chars().count() + 1;
            match words.last_mut() {
                _ if word.is_empty() => {}
                // `0 %` and `5 s` are one word each.
                Some((before, _)) if is_unit(word) && before.ends_with(is_digit) => {
                    before.push_str(word);
                }
                _ => words.push((word.to_owned(), begin)),
            }
        }
        Self {
            all: words,
            next: 0,
            line: index,
        }
    }

    fn read<T>(&mut self, read: impl FnOnce(&str) -> Read<T>) -> Result<T, Problem> {
        let Some((word, column)) = self.all.get(self.next) else {
            let problem = Problem::error(format!("{} words", self.all.len()), shape());
            return Err(problem.at(whole_line(self.line)));
        };
        self.next += 1;
        read(word).map_err(|misread| misread.at(place(self.line, *column)))
    }

    fn bounds<T: Copy>(
        &mut self,
        ends: (T, T),
        read: impl Fn(&str) -> Read<T>,
    ) -> Result<Bounds<T>, Problem> {
        let end = |word: &str, end| match word {
            "min" => Ok(ends.0),
            "max" => Ok(ends.1),
            "null" => Ok(end),
            _ => read(word),
        };
        Ok(Bounds::new(
            self.read(|word| end(word, ends.0))?,
            self.read(|word| end(word, ends.1))?,
        ))
    }

    fn left(&self) -> usize {
        self.all.len() - self.next
    }
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

fn parse(line: &str, index: usize) -> Result<Scheme, Problem> {
    let mut words = Words::of(line, index);
    let size = words.bounds((0, u64::MAX), unit::size)?;
    let rates = (Frequency::Percent(0.0), Frequency::Percent(100.0));
    let nr_accesses = words.bounds(rates, unit::frequency)?;
    let ages = (Age::Time(Nanos(0)), Age::Time(Nanos(u64::MAX)));
    let age = words.bounds(ages, age_with_unit)?;
    let action = read_action(&mut words)?;
    let pattern = AccessPattern {
        size,
        nr_accesses,
        age,
    };
    let mut scheme = Scheme::new(pattern, action);
    if action.migrates() {
        scheme.destinations = read_destinations(&mut words, action)?;
    }
    match words.left() {
        0 => return Ok(scheme),
        2 | 3 | 5 | 6 | 10 | 11 => {}
        left => {
            let (word, column) = &words.all[words.next];
            let found = format!("{left} words from {} on", quoted(word));
            let expected = "nothing after the action, or a quota (time, size, reset interval; or size, \
                            reset interval), or that and three weights, or that and five words of watermarks";
            return Err(Problem::error(found, expected).at(place(index, *column)));
        }
    }
    let has_time = !matches!(words.left(), 2 | 5 | 10);
    scheme.quota = Quota {
        time: if has_time {
            words.read(|word| unit::time(word, MILLISECOND))?
        } else {
            Nanos(0)
        },
        bytes: words.read(unit::size)?,
        reset_interval: words.read(|word| unit::time(word, MILLISECOND))?,
        ..Quota::default()
    };
    if words.left() > 0 {
        scheme.quota.weights = Weights {
            size_permil: words.read(permil)?,
            nr_accesses_permil: words.read(permil)?,
            age_permil: words.read(permil)?,
        };
    }
    if words.left() > 0 {
        scheme.watermarks = read_watermarks(&mut words)?;
    }
    Ok(scheme)
}

fn read_action(words: &mut Words) -> Result<Action, Problem> {
    let column = words.all.get(words.next).map_or(1, |(_, column)| *column);
    let word = words.read(|word| Ok(word.to_owned()))?;
    word.parse()
        .map_err(|()| unknown_action(&word).at(place(words.line, column)))
}

fn read_destinations(words: &mut Words, action: Action) -> Result<Vec<Destination>, Problem> {
    if words.left() == 0 {
        let found = format!("`{action}` without a node to move to");
        let expected = format!(
            "the node behind it, such as `{action} 1`, or several with their weights, such as `{action} 1:3,2:1`"
        );
        return Err(Problem::error(found, expected).at(whole_line(words.line)));
    }
    words.read(destinations)
}

/// Reads `1`, or `1:3,2:1`; the default weight is 1.
fn destinations(word: &str) -> Read<Vec<Destination>> {
    let wrong = |found: String| Problem {
        found,
        ..misread(word, DESTINATION)
    };
    let mut all: Vec<Destination> = Vec::new();
    for part in word.split(',') {
        let (node, weight) = part.split_once(':').unwrap_or((part, "1"));
        let number = |text: &str| {
            let is_plain = !text.is_empty() && text.chars().all(is_digit);
            is_plain.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (Some(node), Some(weight)) = (number(node), number(weight)) else {
            return Err(misread(word, DESTINATION));
        };
        if node >= NODES_MAX {
            return Err(wrong(format!("node {node}, which no Linux has")));
        }
        if all.iter().any(|before| before.node == node) {
            return Err(wrong(format!("node {node} twice in {}", quoted(word))));
        }
        all.push(Destination { node, weight });
    }
    Ok(all)
}

fn read_watermarks(words: &mut Words) -> Result<Option<Watermarks>, Problem> {
    let is_on = words.read(|word| match word.to_ascii_lowercase().as_str() {
        "none" => Ok(false),
        "free_mem_rate" => Ok(true),
        _ => Err(Problem {
            suggestion: nearest(word, &["none", "free_mem_rate"]),
            ..misread(word, "none or free_mem_rate")
        }),
    })?;
    let watermarks = Watermarks {
        metric: WatermarkMetric::FreeMemRate,
        interval: words.read(|word| unit::time(word, MICROSECOND))?,
        high_permil: words.read(permil)?,
        mid_permil: words.read(permil)?,
        low_permil: words.read(permil)?,
    };
    Ok(is_on.then_some(watermarks))
}

fn permil(word: &str) -> Read<u32> {
    let (parts, _) = unit::parts(word, 1000)?;
    u32::try_from(parts).map_err(|_| misread(word, "a number of thousandths"))
}

fn age_with_unit(word: &str) -> Read<Age> {
    let age = unit::age(word)?;
    if age != Age::Time(Nanos(0)) && word.ends_with(is_digit) {
        return Err(Problem {
            suggestion: Some(format!("{word}s")),
            ..misread(word, "a time with its unit")
        });
    }
    Ok(age)
}
