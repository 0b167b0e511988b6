//! Swap, and commands that bring memory there as a whole or back.

pub(crate) mod advise;
pub(crate) mod park;
pub(crate) mod restore;
pub(crate) mod swap;

use isotherm_linux::swap::SwapArea;

/// Returns a line about all swap, in the order in which it is used.
fn order_text(areas: &[SwapArea]) -> String {
    let one = |area: &SwapArea| format!("{} (priority {})", area.path.display(), area.priority);
    match areas {
        [] => "there is no swap now\n".to_owned(),
        [only] => format!("it is the only swap: {}\n", one(only)),
        [first, others @ ..] => {
            let others: Vec<String> = others.iter().map(one).collect();
            format!("used first: {}; then {}\n", one(first), others.join(", "))
        }
    }
}
