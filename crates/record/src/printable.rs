//! Names in a form that is safe to print.
//!
//! The problem: any user can choose the names of their processes and files, and other users see them. An escape
//! sequence in a name reaches the terminal of the user who prints it, perhaps root's. It can rewrite the screen, or do
//! worse.

use std::borrow::Cow;

/// Replaces the characters of `text` that a terminal would execute, or that would change its reading, by their escapes:
/// `\u{1b}` for ESC.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unprintable(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown.into()
}

/// Does the same as [`printable`] for several lines.
pub fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

fn is_unprintable(character: char) -> bool {
    character.is_control()
        // These marks change the direction of the text after them, or separate lines.
        || matches!(character, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        let check = |text, wanted| assert_eq!(printable(text), wanted);
        check("redis-server", "redis-server");
        check("Größe 大 ✓", "Größe 大 ✓");
        let title = "\u{1b}]0;root\u{7}\u{1b}[2J";
        check(title, "\\u{1b}]0;root\\u{7}\\u{1b}[2J");
        check("a\nb\r\tc\u{7f}", "a\\nb\\r\\tc\\u{7f}");
        // C1: some terminals take these for ESC [ and the like.
        check("\u{9b}31m", "\\u{9b}31m");
        check("gpj\u{202e}exe", "gpj\\u{202e}exe");
        assert_eq!(printable_lines("a\u{1b}\nb"), "a\\u{1b}\nb");
    }
}
