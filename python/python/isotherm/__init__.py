"""Isotherm: which memory of running programs is used, what could be saved, and what that would cost.

- `Record.open` reads a recording (`.isotherm`, Parquet, damo's); its tables go to whatever takes Arrow (pandas, polars,
  pyarrow, DuckDB), its reports are mappings, tables and pictures.
- `simulate` tries a `SessionSpec` on a simulated machine: a scenario, or the replay of a recording.
- `Session` watches this machine, live, with the command's privileges.

Sizes are in bytes and durations in nanoseconds, unless a name ends in another unit; what is not known is None or null,
never 0.
"""

import atexit

from isotherm import results
from isotherm._isotherm import (
    IsothermError,
    IsothermWarning,
    PrivilegeError,
    Record,
    RecordError,
    Report,
    Scheme,
    Session,
    SessionError,
    SessionSpec,
    SimulationError,
    Snapshot,
    SpecError,
    Table,
    __version__,
    _close_sessions,
    check,
    presets,
    reclaim_curve,
    simulate,
)

__all__ = [
    "IsothermError",
    "IsothermWarning",
    "PrivilegeError",
    "Record",
    "RecordError",
    "Report",
    "Scheme",
    "Session",
    "SessionError",
    "SessionSpec",
    "SimulationError",
    "Snapshot",
    "SpecError",
    "Table",
    "__version__",
    "check",
    "presets",
    "reclaim_curve",
    "results",
    "simulate",
]

# What a session has set on the machine is put back although nobody has closed it.
atexit.register(_close_sessions)


def _open_record(path: str, salvage: bool) -> Record:
    """Unpickles a record."""
    return Record.open(path, salvage=salvage)
