//! The settings that no other setting beats in both memory and time.

use super::predict::Prediction;

/// Returns the indices of those `predictions` that no other beats, from the least slowdown to the most. One prediction
/// beats another if it has less memory resident and no more slowdown, or less slowdown and no more memory resident. Of
/// equal predictions the first is taken. Those whose program was killed are left out.
pub fn front(predictions: &[&Prediction]) -> Vec<usize> {
    let alive = |at: &usize| !predictions[*at].was_killed;
    let mut order: Vec<usize> = (0..predictions.len()).filter(alive).collect();
    let loss = |at: usize| predictions[at].slowdown.value;
    let memory = |at: usize| predictions[at].resident_mean_bytes;
    order.sort_by(|a, b| {
        let by_loss = loss(*a).total_cmp(&loss(*b));
        by_loss
            .then(memory(*a).total_cmp(&memory(*b)))
            .then(a.cmp(b))
    });
    let mut least = f64::INFINITY;
    order.retain(|at| {
        let is_better = memory(*at) < least;
        least = least.min(memory(*at));
        is_better
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;

    fn check(points: &[(f64, f64)], wanted: &[usize]) {
        let prediction = |(slowdown, resident): &(f64, f64)| Prediction {
            slowdown: Estimate::new(*slowdown),
            resident_mean_bytes: *resident,
            ..Prediction::default()
        };
        let predictions: Vec<Prediction> = points.iter().map(prediction).collect();
        let all: Vec<&Prediction> = predictions.iter().collect();
        assert_eq!(front(&all), wanted, "{points:?}");
    }

    #[test]
    fn what_is_beaten_in_both_is_left_out() {
        check(&[], &[]);
        check(&[(0.1, 5.0)], &[0]);
        let some = [(0.2, 5.0), (0.1, 9.0), (0.3, 6.0), (0.4, 1.0)];
        check(&some, &[1, 0, 3]);
        // Equal slowdown with more memory, and two equal predictions.
        check(&[(0.1, 5.0), (0.1, 6.0), (0.1, 5.0)], &[0]);
        check(&[(0.1, 5.0), (0.2, 5.0)], &[0]);
    }

    #[test]
    fn nothing_is_left_out_that_is_not_beaten() {
        // A fixed sequence of points, checked by brute force.
        let at = |n: u64| ((n * 7919) % 97) as f64;
        let points: Vec<(f64, f64)> = (0..60).map(|n| (at(n), at(n * n + 3))).collect();
        let beats = |a: &(f64, f64), b: &(f64, f64)| a.0 <= b.0 && a.1 <= b.1 && a != b;
        let mut wanted: Vec<usize> = (0..points.len())
            .filter(|i| !points.iter().any(|p| beats(p, &points[*i])))
            .filter(|i| !points[..*i].contains(&points[*i]))
            .collect();
        wanted.sort_by(|a, b| points[*a].0.total_cmp(&points[*b].0));
        check(&points, &wanted);
    }

    #[test]
    fn who_was_killed_is_on_no_front() {
        let killed = Prediction {
            was_killed: true,
            ..Prediction::default()
        };
        assert!(front(&[&killed]).is_empty());
    }
}
