"""Optuna's studies over replays of a trace: `optuna.create_study(...).optimize(objective(trace, space))`.

Optuna's own samplers choose the points, by its interface alone; nothing of Isotherm's search is used.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from isotherm._isotherm import Record, Replays, Space
from isotherm._needs import need

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

__all__ = ["DIRECTIONS", "Objective", "constraints", "objective"]

DIRECTIONS: Final = ("maximize", "minimize")
"""Of a study of an objective without a limit: saved memory, and slowdown."""

_CONSTRAINTS: Final = "isotherm_constraints"


class Objective:
    """Objective of a study. It can be pickled; unpickling opens the trace again."""

    def __init__(self, trace: str | os.PathLike[str], space: Space, max_slowdown: float | None, bounds: bool) -> None:
        self._asked = (os.fspath(trace), space, max_slowdown, bounds)
        self._replays: Replays | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (Objective, self._asked)

    def __call__(self, trial: "Trial") -> float | tuple[float, float]:
        """Replays the trace at the point that the trial chooses: the saved share (0 to 1) and the slowdown; with a
        limit the first alone. The trial's `user_attrs` keep `point`, `settings` and what was predicted."""
        trace, space, max_slowdown, bounds = self._asked
        if self._replays is None:
            self._replays = Replays(trace, space)
        # Places on the values, which are even by ratio: neighbours are alike.
        places = [trial.suggest_int(name, 0, len(values) - 1) for name, values in space.parameters.items()]
        point = space.point(places)
        prediction = self._replays.predict(point, bounds=bounds)
        trial.set_user_attr("point", point)
        trial.set_user_attr("settings", space.label(point))
        for name in ("saved_mean_bytes", "resident_mean_bytes", "refaults", "was_killed"):
            trial.set_user_attr(name, prediction[name])
        saved, slowdown = prediction["saved_share"]["value"], prediction["slowdown"]
        if max_slowdown is None:
            return saved, slowdown["value"]
        high = slowdown.get("high")
        beyond = (slowdown["value"] if high is None else high) - max_slowdown
        trial.set_user_attr(_CONSTRAINTS, [max(beyond, 1.0) if prediction["was_killed"] else beyond])
        return saved


def objective(
    trace: Record | str | os.PathLike[str], space: Space, *, max_slowdown: float | None = None, bounds: bool = False
) -> Objective:
    """An objective for a study (`pip install 'isotherm[optuna]'`).

    Without `max_slowdown` it has two values, in the directions `DIRECTIONS`. With one (a share of 0 to 1) its value
    is the saved share, to be maximised; a sampler learns of the limit by
    `constraints_func=isotherm.optuna.constraints`. `bounds`: by four replays more the upper bound of the slowdown is
    held against the limit.
    """
    need("optuna", "optuna")
    return Objective(trace.path if isinstance(trace, Record) else trace, space, max_slowdown, bounds)


def constraints(trial: "FrozenTrial") -> Sequence[float]:
    """How far beyond the limit a trial is, for a sampler's `constraints_func`; 0 and less is within."""
    found: Sequence[float] = trial.user_attrs.get(_CONSTRAINTS, [0.0])
    return found
