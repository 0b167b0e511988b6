"""Isotherm: which memory of running programs is used, what could be saved, and what that would cost.

- `Record.open` reads a recording (`.isotherm`, Parquet, damo's); its tables go to whatever takes Arrow (pandas, polars,
  pyarrow, DuckDB), its reports are mappings, tables and pictures.
- `simulate` tries a `SessionSpec` on a simulated machine: a scenario, or the replay of a recording.
- `tune` finds the numbers of schemes that suit a recording best; `sweep` predicts many recordings at every point of a
  `Space`, on threads or on a Ray cluster; `isotherm.optuna` and `isotherm.ray` let other searches choose.
- `calibrate` measures what acting costs on this machine.
- `Session` watches this machine, live, with the command's privileges.

Sizes are in bytes and durations in nanoseconds, unless a name ends in another unit; what is not known is None or null,
never 0.
"""

import atexit

from isotherm import results
from isotherm._calibration import calibrate
from isotherm._fleet import FleetAnswer, FleetChoice
from isotherm._isotherm import (
    IsothermError,
    IsothermWarning,
    PrivilegeError,
    Record,
    RecordError,
    Replays,
    Report,
    Scheme,
    Session,
    SessionError,
    SessionSpec,
    SimulationError,
    Snapshot,
    Space,
    SpecError,
    Table,
    Tuned,
    __version__,
    _close_sessions,
    check,
    presets,
    reclaim_curve,
    simulate,
    tune,
)
from isotherm._sweep import SweepResult, sweep

__all__ = [
    "FleetAnswer",
    "FleetChoice",
    "IsothermError",
    "IsothermWarning",
    "PrivilegeError",
    "Record",
    "RecordError",
    "Replays",
    "Report",
    "Scheme",
    "Session",
    "SessionError",
    "SessionSpec",
    "SimulationError",
    "Snapshot",
    "Space",
    "SpecError",
    "SweepResult",
    "Table",
    "Tuned",
    "__version__",
    "calibrate",
    "check",
    "presets",
    "reclaim_curve",
    "results",
    "simulate",
    "sweep",
    "tune",
]

# Restores the machine's settings if a session was not closed.
atexit.register(_close_sessions)


def _open_record(path: str, salvage: bool) -> Record:
    """Unpickles a record."""
    return Record.open(path, salvage=salvage)
