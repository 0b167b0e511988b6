//! Writes the trace for tests of the page: `trace FILE`.

mod drawn;

use std::path::Path;

fn main() {
    let path = std::env::args_os().nth(1).expect("trace FILE");
    drawn::trace(Path::new(&path), 40);
}
