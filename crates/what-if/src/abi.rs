//! The interface for a browser: functions of numbers, and two buffers.
//!
//! The caller requests an input buffer ([`isotherm_input`]), writes there, and calls one of the functions below. Each
//! leaves JSON in the output. It returns 1 if that is an answer, and 0 if it is an error's text. One trace is open at a
//! time, in each instance of the module. While it replays, the module calls `reported` of the import `page`. The project
//! weighed `wasm-bindgen` and rejected it: it needs a program of its own version beside Cargo, and it would write only
//! these six functions.

#![expect(
    unsafe_code,
    reason = "functions that keep their names for another language count as unsafe; no pointer is followed here"
)]

use std::cell::RefCell;

use anyhow::Context as _;
use serde::Serialize;

use crate::{Question, WhatIf};

#[cfg(target_arch = "wasm32")]
mod page {
    #[link(wasm_import_module = "page")]
    unsafe extern "C" {
        pub(super) safe fn reported(share: f64);
    }
}

/// Reports the finished share of a replay to the page, 0 to 1.
fn reported(share: f64) {
    #[cfg(target_arch = "wasm32")]
    page::reported(share);
    #[cfg(not(target_arch = "wasm32"))]
    let _ = share;
}

#[derive(Default)]
struct State {
    input: Vec<u8>,
    output: Vec<u8>,
    open: Option<WhatIf>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Allocates an input buffer of `bytes`; the address is valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn isotherm_input(bytes: usize) -> *mut u8 {
    STATE.with_borrow_mut(|state| {
        state.input.clear();
        state.input.resize(bytes, 0);
        state.input.as_mut_ptr()
    })
}

/// Returns the address of the last call's output, which is valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn isotherm_output() -> *const u8 {
    STATE.with_borrow(|state| state.output.as_ptr())
}

/// Returns the length of the output in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn isotherm_output_bytes() -> usize {
    STATE.with_borrow(|state| state.output.len())
}

/// Opens the record in the input, or one block in `one_in` of it; outputs [`crate::TraceFacts`].
#[unsafe(no_mangle)]
pub extern "C" fn isotherm_open(one_in: u32) -> u32 {
    answer(|state| {
        let record = std::mem::take(&mut state.input);
        let open = state.open.insert(WhatIf::open(&record, one_in, reported)?);
        open.facts()
    })
}

/// Answers the [`Question`] in the input; outputs an [`isotherm_tune::Prediction`].
#[unsafe(no_mangle)]
pub extern "C" fn isotherm_predict() -> u32 {
    ask(WhatIf::predict)
}

/// Returns the ways to run the schemes of the [`Question`] in the input; outputs a [`crate::RunInstructions`].
#[unsafe(no_mangle)]
pub extern "C" fn isotherm_configuration() -> u32 {
    ask(WhatIf::configuration)
}

fn ask<T: Serialize>(of: impl FnOnce(&WhatIf, &Question) -> anyhow::Result<T>) -> u32 {
    answer(|state| {
        let question: Question =
            serde_json::from_slice(&state.input).context("this is no question")?;
        let open = state.open.as_ref().context("no record is open")?;
        of(open, &question)
    })
}

fn answer<T: Serialize>(of: impl FnOnce(&mut State) -> anyhow::Result<T>) -> u32 {
    STATE.with_borrow_mut(|state| {
        let answered = of(state).and_then(|value| Ok(serde_json::to_vec(&value)?));
        let (output, is_good) = match answered {
            Ok(output) => (output, 1),
            Err(error) => (format!("{error:#}").into_bytes(), 0),
        };
        state.output = output;
        is_good
    })
}
