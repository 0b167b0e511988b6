//! Says on the terminal how far a long reading is.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Reading that takes longer than this shows how far it is.
const PATIENCE: Duration = Duration::from_millis(500);

/// Input that shows on the terminal how far it has been read, if that takes long.
pub(crate) struct Watched {
    input: Box<dyn Read>,
    length: Option<u64>,
    read: u64,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Watched {
    /// `length`, where it is known, is how much there will be.
    pub(crate) fn new(input: Box<dyn Read>, length: Option<u64>) -> Self {
        Self {
            input,
            length: length.filter(|_| crate::out::draws_on(&io::stderr())),
            read: 0,
            started: Instant::now(),
            bar: None,
        }
    }

    fn show(&mut self, length: u64) {
        if self.bar.is_none() && self.started.elapsed() >= PATIENCE {
            let style = ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            self.bar = Some(ProgressBar::new(length).with_style(style));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.read);
        }
    }
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        self.read += n as u64;
        if let Some(length) = self.length {
            self.show(length);
        }
        if n == 0
            && let Some(bar) = self.bar.take()
        {
            bar.finish_and_clear();
        }
        Ok(n)
    }
}
