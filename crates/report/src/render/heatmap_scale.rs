//! The characters of a text heat map, and their access rates.
//!
//! Problem: where accessed pages are scattered, nearly all rates are low, and a fixed scale shows them as one
//! character.
//!
//! Approach: rates are counted in classes, each up to 2.5 times as high as the one before. Each class that occurs gets
//! a character of its own: the one of a fixed scale, or the next free one. While there are more classes than
//! characters, the two neighbours with the fewest cells are joined.

use std::collections::BTreeMap;

use isotherm_render::colour::position;

/// Characters of accessed memory, from the lowest rate up.
const RAMP: [char; 8] = [':', '-', '=', '+', '*', '#', '%', '@'];
/// Memory without an access. It is not a blank, because a blank means that no memory is there.
const IDLE: char = '.';
pub(super) const UNKNOWN: char = '?';
/// Upper ends of the classes; the lowest has all rates above zero.
const ENDS: [f32; 14] = [
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0,
];

/// Highest rates and their characters, from the lowest up.
pub(super) struct Scale(Vec<(f32, char)>);

impl Scale {
    pub(super) fn of(rates: impl Iterator<Item = f32>) -> Self {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for rate in rates.filter(|rate| *rate > 0.0) {
            let class = ENDS.partition_point(|end| *end < rate).min(ENDS.len() - 1);
            *counts.entry(class).or_default() += 1;
        }
        let mut classes: Vec<(usize, usize)> = counts.into_iter().collect();
        while classes.len() > RAMP.len() {
            let cells = |at: &usize| classes[*at].1 + classes[at + 1].1;
            let Some(fewest) = (0..classes.len() - 1).min_by_key(cells) else {
                break;
            };
            let (_, joined) = classes.remove(fewest);
            classes[fewest].1 += joined;
        }
        let mut free = 0;
        let mut above = classes.len();
        let step = |(class, _): (usize, usize)| {
            let end = ENDS[class];
            let fixed = ((position(end) * RAMP.len() as f32).ceil() as usize).max(1) - 1;
            let place = fixed.max(free).min(RAMP.len() - above);
            (free, above) = (place + 1, above - 1);
            (end, RAMP[place])
        };
        Self(classes.into_iter().map(step).collect())
    }

    pub(super) fn character(&self, rate: Option<f32>) -> char {
        match rate {
            None => UNKNOWN,
            Some(rate) if rate <= 0.0 => IDLE,
            Some(rate) => {
                let step = self.0.iter().find(|(end, _)| rate <= *end);
                step.or(self.0.last()).map_or(IDLE, |(_, c)| *c)
            }
        }
    }

    /// Iterates over the characters and the highest rate of each.
    pub(super) fn steps(&self) -> impl Iterator<Item = (Option<f32>, char)> {
        let accessed = self.0.iter().map(|(end, c)| (Some(*end), *c));
        std::iter::once((Some(0.0), IDLE)).chain(accessed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rates: &[f32], expected: &str) {
        let scale = Scale::of(rates.iter().copied());
        let shown: String = rates.iter().map(|r| scale.character(Some(*r))).collect();
        assert_eq!(shown, expected, "{rates:?}");
    }

    #[test]
    fn low_rates_are_told_apart_and_high_ones_look_hot() {
        check(&[0.0, 0.0005, 0.003, 0.01, 0.04], ".:-=+");
        check(&[0.0, 0.25, 1.0], ".*@");
        check(&[0.001], ":");
        assert_eq!(Scale::of([].into_iter()).character(None), '?');
    }

    #[test]
    fn classes_beyond_the_characters_are_joined_where_cells_are_few() {
        let mut rates = ENDS.to_vec();
        check(&rates, "::--==++**##%@");
        // Many cells at low rates: the others are joined.
        rates.extend([0.0002, 0.0005, 0.001, 0.002].repeat(50));
        let scale = Scale::of(rates.iter().copied());
        let low = ENDS[..4].iter().map(|r| scale.character(Some(*r)));
        assert_eq!(low.collect::<String>(), ":-=+");
        assert_eq!(scale.character(Some(1.0)), '@');
    }
}
