//! Golden tests of the messages for wrong configurations, from `errors.txt`.
//!
//! Cases are separated by lines of `=`. Each has the text, a line `---->`, and every message in order. To accept new
//! messages, run with `ISOTHERM_BLESS=1` and read the difference.

use isotherm_config::{ConfigFormat, check};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/errors.txt");
const SEPARATOR: &str = "====\n";
const ARROW: &str = "---->\n";

#[test]
#[expect(clippy::disallowed_methods, reason = "a test reads its file")]
fn messages_are_as_agreed() {
    let golden = std::fs::read_to_string(FILE).expect("tests/errors.txt is there");
    let mut cases = golden.split(SEPARATOR);
    let mut now = cases.next().unwrap_or_default().to_owned();
    for case in cases {
        let (text, _) = case.split_once(ARROW).unwrap_or((case, ""));
        now.push_str(SEPARATOR);
        now.push_str(text);
        now.push_str(ARROW);
        for problem in check(text, ConfigFormat::Detect) {
            now.push_str(&problem.to_string());
            now.push('\n');
        }
    }
    if std::env::var_os("ISOTHERM_BLESS").is_some() {
        std::fs::write(FILE, &now).expect("the source tree can be written");
    }
    assert_eq!(
        golden, now,
        "see this file's head for how to accept the new messages"
    );
}
