//! A session and what it does, together: begun, stepped and ended in the same way by whoever runs them.

use anyhow::ensure;
use isotherm_config::{ContextSpec, SessionSpec, TargetSpec};
use isotherm_engine::{AddressRange, Nanos};
use isotherm_record::Item;

use crate::acting::Acting;
use crate::session::{Session, Step};

/// Takes the first look, which fails if a target can't be watched, acts on it if `spec` asks for that, and gives up
/// the capabilities that are needed no longer: this thread's.
///
/// # Errors
/// What this machine cannot do, and whoever else acts on the targets.
pub fn begin(
    session: &mut Session,
    spec: &SessionSpec,
    items: &mut Vec<Item>,
) -> anyhow::Result<Option<Acting>> {
    session.step(Nanos(u64::MAX), items)?;
    refuse_empty_ranges(session, spec)?;
    let mut acting = None;
    if spec.acts() {
        let acting = acting.insert(Acting::new(spec, session)?);
        acting.step(session, items)?;
    }
    session.give_up_privileges(acting.is_some())?;
    Ok(acting)
}

/// Sleeps until something is due, at most until `ends_at`, and does it; what there is to tell is appended.
///
/// # Errors
/// What this machine refuses.
pub fn step(
    session: &mut Session,
    acting: Option<&mut Acting>,
    ends_at: Nanos,
    items: &mut Vec<Item>,
) -> anyhow::Result<Step> {
    let now = session.now();
    let wake_at = acting.as_ref().and_then(|acting| acting.wake_at(now));
    let until = wake_at.map_or(ends_at, |wake_at| wake_at.min(ends_at));
    let step = session.step(until, items)?;
    if let Some(acting) = acting {
        acting.step(session, items)?;
    }
    Ok(step)
}

/// Appends the session's last words.
pub fn finish(session: &mut Session, acting: Option<&mut Acting>, items: &mut Vec<Item>) {
    session.finish(items);
    if let Some(acting) = acting {
        acting.finish(session, items);
    }
}

/// Fails where none of the processes given maps anything within the ranges given. A command may do so
/// later.
fn refuse_empty_ranges(session: &Session, spec: &SessionSpec) -> anyhow::Result<()> {
    let [
        ContextSpec {
            targets, ranges, ..
        },
    ] = &spec.contexts[..]
    else {
        return Ok(());
    };
    let live = session.live();
    let is_by_name = matches!(targets, TargetSpec::Processes { .. });
    if ranges.is_empty() || !is_by_name || live.is_empty() {
        return Ok(());
    }
    let maps_any = live.iter().any(|(_, process)| {
        let areas = process.mappings().unwrap_or_default();
        let within = |area: AddressRange| ranges.iter().any(|r| r.intersection(area).is_some());
        areas.iter().any(|area| within(area.range))
    });
    ensure!(
        maps_any,
        "the targets map nothing within --range; /proc/PID/maps has their addresses"
    );
    Ok(())
}
