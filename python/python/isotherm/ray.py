"""Ray Tune's searches over replays of a trace: `tune.Tuner(trainable(trace, space), param_space=param_space(space))`.

Ray's own search algorithms and schedulers choose the points, by its interface alone. For all points of a space over
many traces there is `isotherm.sweep`.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

from isotherm._isotherm import Record, Replays, Space
from isotherm._needs import need

__all__ = ["param_space", "trainable"]


# The last trace; a worker that is used again need not read it twice.
_opened: dict[tuple[str, str], Replays] = {}


def _trial(config: dict[str, int], trace: str, space: str, bounds: bool) -> dict[str, Any]:
    replays = _opened.get((trace, space))
    if replays is None:
        _opened.clear()
        replays = _opened[trace, space] = Replays(trace, Space.from_json(space))
    point = replays.space.point([config[name] for name in replays.space.parameters])
    prediction = replays.predict(point, bounds=bounds)
    return {
        "point": point,
        "settings": replays.space.label(point),
        "saved_share": prediction["saved_share"]["value"],
        "slowdown": prediction["slowdown"]["value"],
        "slowdown_high": prediction["slowdown"].get("high"),
        "saved_mean_bytes": prediction["saved_mean_bytes"],
        "resident_mean_bytes": prediction["resident_mean_bytes"],
        "refaults": prediction["refaults"],
        "was_killed": prediction["was_killed"],
    }


def trainable(
    trace: Record | str | os.PathLike[str], space: Space, *, bounds: bool = False
) -> Callable[[dict[str, int]], dict[str, Any]]:
    """A function that Ray Tune trains (`pip install 'isotherm[ray]'`): one replay of the trace, which every machine
    of the cluster must reach under this path.

    It reports `saved_share` and `slowdown` (0 to 1), `slowdown_high` with `bounds`, bytes, `refaults`, and `point` and
    `settings` to find the configuration by (`space.configuration(point)`).
    """
    need("ray.tune", "ray")
    path = os.path.abspath(trace.path if isinstance(trace, Record) else trace)
    return functools.partial(_trial, trace=path, space=space.to_json(), bounds=bounds)


def param_space(space: Space) -> dict[str, Any]:
    """What Ray Tune chooses of: for each parameter the place of a value, from 0."""
    tune = need("ray.tune", "ray")
    return {name: tune.randint(0, len(values)) for name, values in space.parameters.items()}
