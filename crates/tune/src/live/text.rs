//! Live runs as text.

use std::fmt::Write as _;

use isotherm_engine::units::{format_bytes, format_share};
use isotherm_render::table::Table;

use super::{Compared, Live, LiveEnd};
use crate::format::{percent, signed};
use crate::result::bounds;

impl LiveEnd {
    /// Returns the reason why there are no more runs, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Enough => "no other setting promises enough for another run",
            Self::AllMade => "as many as were allowed",
            Self::Stopped => "then stopped",
        }
    }
}

impl Live {
    /// Returns a table of the runs under schemes, and the noise of those without.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let [time, memory] = [self.noise_of_time, self.noise_of_memory].map(percent);
        let (nr, end, nr_bases) = (self.compared.len(), self.end.words(), self.nr_bases);
        let resident = format_bytes(self.base_resident_mean_bytes as u64);
        let _ = writeln!(
            text,
            "live: {nr} runs with schemes ({end}), {nr_bases} without: {resident} resident; a run's time varies by {time}, its memory by {memory}"
        );
        if self.compared.is_empty() {
            return text;
        }
        let rows = (1..).zip(&self.compared);
        let rows = rows.map(|(number, one)| row(number, one));
        let heads = "|LIVE|SAVED>|OF IT>|PREDICTED>|BETWEEN>|SLOWER>|PREDICTED>|BETWEEN>|ACTING>";
        let table = Table::of(heads, rows);
        text + &table.text() + "what follows is corrected by these\n"
    }
}

fn row(number: usize, one: &Compared) -> Vec<String> {
    let saved = one.saved_share * one.run.resident_mean_bytes / (1.0 - one.saved_share).max(1e-9);
    vec![
        number.to_string(),
        one.settings.to_string(),
        signed(saved, |bytes| format_bytes(bytes as u64)),
        signed(one.saved_share, format_share),
        signed(one.predicted_saved_share.value, format_share),
        bounds(&one.predicted_saved_share),
        percent(one.slowdown),
        percent(one.predicted_slowdown.value),
        bounds(&one.predicted_slowdown),
        (one.run.acting_cpu_seconds).map_or_else(|| "?".to_owned(), |cpu| format!("{cpu:.2} s")),
    ]
}
