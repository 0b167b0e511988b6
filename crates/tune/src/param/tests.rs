//! Tests of the syntax of `--param`, and of values that survive a round trip.

use proptest::prelude::*;

use super::*;
use crate::tests::contexts;

const TIMES: TraceTimes = TraceTimes {
    duration: Nanos(120_000_000_000),
    interval: Nanos(1_000_000_000),
};

fn parsed(text: &str) -> Result<String, String> {
    let parameter = Parameter::parse(text, &Knob::ALL, TIMES).map_err(|error| error.to_string())?;
    let values: Vec<String> = parameter.ladder.iter().map(ToString::to_string).collect();
    Ok(values.join(" | "))
}

#[test]
fn ranges_lists_and_names_are_read() {
    let check =
        |text: &str, wanted: &str| assert_eq!(parsed(text).as_deref(), Ok(wanted), "{text}");
    check("age=5s", "5 s");
    check("age=10s, 5s,10s", "5 s | 10 s");
    let even = "8.1 s | 8.5 s | 9 s | 10 s | 11 s | 12 s | 12.5 s";
    check("age=8.1s..12.5s", even);
    check("age = 1s..2min:4", "1 s | 5 s | 25 s | 2 min");
    check("size=4K..20K", "4 KiB | 8 KiB | 16 KiB | 20 KiB");
    check("size=5000", "8 KiB");
    check("rate=0%..0.3%", "0 % | 0.1 % | 0.2 % | 0.3 %");
    check("quota=512G..max", "512 GiB | 1 TiB | max");
    check("density=98%..", "98 % | 100 %");
    let all = parsed("age").expect("a name alone");
    assert!(all.starts_with("2 s | 2.2 s") && all.ends_with("1 min"));
}

#[test]
fn what_cannot_be_tuned_is_said_with_what_can() {
    for (text, said) in [
        ("colour=1", "no 'colour' to tune here"),
        ("", "no '' to tune"),
        ("age=", "names no value"),
        ("age=,", "names no value"),
        ("age=10s..5s", "above the most"),
        ("age=5", "5"),
        ("age=1s..2s:1", "number of steps"),
        ("age=1s..2s:x", "number of steps"),
        ("rate=200%", "200%"),
    ] {
        let error = parsed(text).expect_err(text);
        assert!(error.contains(said), "{text}: {error}");
    }
    let error = parsed("colour=1").expect_err("none");
    let is_named = |knob: &Knob| error.contains(knob.name());
    assert!(Knob::ALL.iter().all(is_named), "{error}");
}

#[test]
fn knobs_are_those_of_the_schemes() {
    let check = |preset, all: &[&str], usual: &[&str]| {
        let names = |knobs: Vec<Knob>| knobs.iter().map(|k| k.name()).collect::<Vec<_>>();
        assert_eq!(names(Knob::of(&contexts(preset))), all);
        assert_eq!(names(Knob::usual_of(&contexts(preset))), usual);
    };
    check("prcl", &["age", "size", "rate", "quota"], &["age", "size"]);
    let all = ["age", "size", "rate", "quota", "density", "waste"];
    check("ethp", &all, &["age", "density", "waste"]);
}

#[test]
fn a_value_is_set_where_it_is_read() {
    for name in ["prcl", "ethp", "damon_reclaim", "lru_sort"] {
        for knob in Knob::of(&contexts(name)) {
            let parameter = Parameter::default_of(knob, TIMES);
            for value in parameter.ladder {
                let mut contexts = contexts(name);
                knob.apply(value, &mut contexts);
                let read = knob.value_in(&contexts);
                assert_eq!(read, Some(value), "{name} {}", knob.name());
            }
        }
    }
}

proptest! {
    /// Any text gives a ladder of at least one value in order, or an error that repeats the text.
    #[test]
    fn any_text_is_a_ladder_or_an_error(text in "(age|size|rate|quota|waste)?=?[0-9a-zA-Z%.,: =-]{0,24}") {
        match Parameter::parse(&text, &Knob::ALL, TIMES) {
            Ok(parameter) => {
                prop_assert!(!parameter.ladder.is_empty() && parameter.ladder.len() < 20_000);
                prop_assert!(parameter.ladder.windows(2).all(|w| w[0] < w[1]));
            }
            Err(error) => prop_assert!(error.to_string().contains(&text)),
        }
    }

    /// Settings that differ have different keys, even if they are printed alike.
    #[test]
    fn ladders_are_even_and_their_values_are_told_apart(low in 1_u64..1 << 40, factor in 1_u64..1000) {
        let low = low.max(100);
        let all = ladder(Value::Time(Nanos(low)), Value::Time(Nanos(low * factor)));
        for (at, pair) in all.windows(2).enumerate() {
            let (Value::Time(a), Value::Time(b)) = (pair[0], pair[1]) else { unreachable!() };
            let is_end = at == 0 || at + 2 == all.len();
            prop_assert!(is_end || (1.04..1.16).contains(&(b.0 as f64 / a.0 as f64)), "{pair:?}");
        }
    }
}
