//! A session together with its actions: all callers begin, step and end it in the same way.

use anyhow::ensure;
use isotherm_config::{ContextSpec, SessionSpec, TargetSpec};
use isotherm_engine::{AddressRange, Nanos};
use isotherm_record::Item;

use crate::acting::{Acting, new_acting};
use crate::session::{Session, Step};

/// Makes the first step, which fails if a target cannot be watched, and acts on it if `spec` has schemes. Then it drops
/// the capabilities of this thread that are no longer needed.
///
/// # Errors
/// Fails if this machine cannot do it, or if another program acts on the targets.
pub fn begin(
    session: &mut Session,
    spec: &SessionSpec,
    items: &mut Vec<Item>,
) -> anyhow::Result<Option<Acting>> {
    session.step(Nanos(u64::MAX), items)?;
    refuse_empty_ranges(session, spec)?;
    let mut acting = None;
    if spec.acts() {
        let acting = acting.insert(new_acting(spec)?);
        acting.step(session, items)?;
    }
    session.give_up_privileges(acting.is_some())?;
    Ok(acting)
}

/// Sleeps until the next work is due, at most until `ends_at`, does the work, and appends the new items.
///
/// # Errors
/// Fails if this machine refuses something.
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

/// Appends the last items of the session.
pub fn finish(session: &mut Session, acting: Option<&mut Acting>, items: &mut Vec<Item>) {
    session.finish(items);
    if let Some(acting) = acting {
        acting.finish(session, items);
    }
}

/// Checks that the processes map memory within the given ranges. A command may map it later.
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
