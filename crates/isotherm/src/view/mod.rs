//! The live view of `isotherm top`: the state that items change, its picture, and the loop around both. Several targets
//! are a list, from which the map of each is opened.

mod bar;
mod blame;
mod draw;
mod field;
mod gauges;
mod keys;
mod lists;
mod page_cache;
mod source;
mod state;
mod style;
mod targets;
#[cfg(test)]
mod tests;
mod text;

use std::time::{Duration, Instant};

use anyhow::Context;
use isotherm_engine::Nanos;
use isotherm_linux::clock::process_cpu;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::blame::LiveBlame;
use keys::Keys;
pub(crate) use source::{ItemSource, ReplaySource};
use state::State;

/// Period of the attribution of idle memory to functions.
const BLAME_EVERY: Nanos = Nanos(5_000_000_000);
const FRAME: Duration = Duration::from_millis(100);
const PAGE: isize = 10;

/// Shows what `source` yields until the user quits, a signal comes, or the terminal is closed. The terminal is restored
/// on the way out, also when something panics (ratatui's hook).
pub(crate) fn run(source: &mut dyn ItemSource, title: &str) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("cannot take the terminal over")?;
    let outcome = watch(&mut terminal, source, title);
    ratatui::restore();
    outcome
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    source: &mut dyn ItemSource,
    title: &str,
) -> anyhow::Result<()> {
    let mut state = State::new(title, style::palette_of_terminal());
    let began = Instant::now();
    let mut blame = LiveBlame::new(source.header(), field::IDLE, BLAME_EVERY);
    let mut items = Vec::new();
    let keys = Keys::read()?;
    while !source.stopped() && !keys::terminal_is_gone() {
        if !state.ended {
            state.ended = !source.next(FRAME, &mut items)?;
        }
        // Drawing is not monitoring: the monitor's budget must not pay for it.
        let cpu_before = process_cpu();
        for item in items.drain(..) {
            state.update(&item);
            if let Some(blame) = &mut blame {
                blame.push(&item);
            }
        }
        state.now = source.now();
        // For a record that is played back, this is the viewer's clock.
        let now = state.now.unwrap_or_else(|| Nanos::from(began.elapsed()));
        if let Some(status) = blame.as_mut().and_then(|blame| blame.take(now)) {
            state.blame = Some(status);
        }
        terminal
            .draw(|frame| draw::draw(frame, &state))
            .context("cannot draw on the terminal")?;
        source.exclude_cpu(process_cpu().since(cpu_before));
        let mut wait = if state.ended { FRAME } else { Duration::ZERO };
        while let Some(key) = keys.next(wait)? {
            if !press(&mut state, key) {
                return Ok(());
            }
            wait = Duration::ZERO;
        }
    }
    Ok(())
}

/// Acts on a key; `false` to quit.
fn press(state: &mut State, key: KeyEvent) -> bool {
    let help = std::mem::take(&mut state.help);
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        // Any key closes the help, and these keys do nothing else.
        KeyCode::Char('q' | '?' | 'h') | KeyCode::Esc if help => {}
        KeyCode::Char('q') => return false,
        KeyCode::Esc => return state.back(),
        KeyCode::Char('o') | KeyCode::Backspace => {
            state.back();
        }
        KeyCode::Enter => state.open(),
        KeyCode::Char('p' | ' ') => state.paused = !state.paused,
        KeyCode::Char('s') | KeyCode::Right => state.sort(true),
        KeyCode::Left => state.sort(false),
        KeyCode::Char('t') | KeyCode::Tab => state.next_target(),
        KeyCode::Char('?' | 'h') => state.help = true,
        KeyCode::Down | KeyCode::Char('j') => state.move_by(1),
        KeyCode::Up | KeyCode::Char('k') => state.move_by(-1),
        KeyCode::PageDown => state.move_by(PAGE),
        KeyCode::PageUp => state.move_by(-PAGE),
        KeyCode::Home => state.move_by(isize::MIN),
        KeyCode::End => state.move_by(isize::MAX),
        _ => {}
    }
    true
}
