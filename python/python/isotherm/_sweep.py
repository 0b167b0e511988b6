"""Many traces under all points of a space: on threads of this machine, or on a Ray cluster, with the same result.

A task is one trace and a chunk of the space. It depends on nothing else, so what it comes to is the same bytes wherever
and however often it is computed, and a task whose worker was killed is done again. In a folder each task is one Parquet
file, written under another name first: what is there is whole.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from isotherm import _files
from isotherm._fleet import COLUMNS, FleetAnswer, answer
from isotherm._isotherm import Record, Space, SpecError, __version__, _Stop, _sweep_task
from isotherm._needs import need

# Columns besides the trace, the point and the error: type, and path within a prediction.
_NUMBERS: Final = {
    "resident_mean_bytes": ("float64", ("resident_mean_bytes",)),
    "saved_mean_bytes": ("float64", ("saved_mean_bytes",)),
    "saved_share": ("float64", ("saved_share", "value")),
    "saved_share_low": ("float64", ("saved_share", "low")),
    "saved_share_high": ("float64", ("saved_share", "high")),
    "slowdown": ("float64", ("slowdown", "value")),
    "slowdown_low": ("float64", ("slowdown", "low")),
    "slowdown_high": ("float64", ("slowdown", "high")),
    "seconds": ("float64", ("seconds",)),
    "acting_cpu_seconds": ("float64", ("acting_cpu_seconds", "value")),
    "monitor_cpu_seconds": ("float64", ("monitor_cpu_seconds",)),
    "refaults": ("int64", ("refaults",)),
    "swapped_mean_bytes": ("float64", ("swapped_mean_bytes",)),
    "pool_mean_bytes": ("float64", ("pool_mean_bytes",)),
    "far_mean_bytes": ("float64", ("far_mean_bytes",)),
    "huge_mean_bytes": ("float64", ("huge_mean_bytes",)),
    "guard_stops": ("int64", ("guard_stops",)),
    "was_killed": ("bool_", ("was_killed",)),
}
_SPACE_FILE: Final = "_sweep.json"
_ERRORS: Final = b"isotherm.errors"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Task:
    """One trace, and `count` points of the space from `first` on."""

    trace: str
    first: int
    count: int

    @property
    def file(self) -> str:
        """The name of its file, by the trace's name and the first point."""
        of_trace = hashlib.sha256(self.trace.encode()).hexdigest()[:24]
        return f"{of_trace}-{self.first:08}.parquet"


def schema(errors: int = 0) -> Any:
    """The columns of a sweep; `errors`: how many rows of the table have failed."""
    arrow = need("pyarrow", "sweep")
    text = arrow.string()
    first = [("trace", text), ("digest", text), ("program", text), ("point", arrow.int32()), ("settings", text)]
    numbers = [(name, getattr(arrow, kind)()) for name, (kind, _) in _NUMBERS.items()]
    fields = [*first, ("base_resident_mean_bytes", arrow.float64()), *numbers, ("error", text)]
    return arrow.schema(fields, metadata={_ERRORS: str(errors).encode()})


def work(task: Task, space: Space, bounds: bool, stop: _Stop) -> Any:
    """The table of a task, a row for each point; None where it was asked to stop."""
    done: dict[str, Any] = {}
    error = None
    try:
        with _files.local(task.trace) as path:
            try:
                text = _sweep_task(path, space, (task.first, task.count), bounds, stop)
            except Exception as failed:
                # The path of a temporary copy differs each time; leave it out.
                raise RuntimeError(str(failed).replace(str(path), task.trace)) from failed
        if text is None:
            return None
        done = json.loads(text)
    except Exception as failed:
        error = str(failed) or type(failed).__name__
    except BaseException as failed:
        # A fault of ours is this trace's, too; ctrl-C is not.
        if type(failed).__name__ != "PanicException":
            raise
        error = f"it makes Isotherm itself fail: {failed}"
    return _table(task, space, done, error)


def failed(task: Task, space: Space, error: str) -> Any:
    """The table of a task that could not be done."""
    return _table(task, space, {}, error)


def _table(task: Task, space: Space, done: dict[str, Any], error: str | None) -> Any:
    rows = []
    for at in range(task.count):
        point = task.first + at
        outcome = done["points"][at] if done else {"error": error}
        row = {
            "trace": task.trace,
            "digest": done.get("digest"),
            "program": done.get("program"),
            "point": point,
            "settings": space.label(point),
            "base_resident_mean_bytes": done["base"]["resident_mean_bytes"] if done else None,
            "error": outcome.get("error"),
        }
        prediction = outcome.get("prediction")
        for name, (_, keys) in _NUMBERS.items():
            value: Any = prediction
            for key in keys if prediction else ():
                value = value[key]
            row[name] = value
        rows.append(row)
    errors = sum(row["error"] is not None for row in rows)
    return need("pyarrow", "sweep").Table.from_pylist(rows, schema=schema(errors))


# Tasks as they are done, each with its table.
Computed = Generator[tuple[Task, Any], None, None]


class Folder:
    """Where results are kept: a file for each task, and one that says what they are of."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.files, self.path = _files.filesystem(place)

    def open(self, wanted: dict[str, Any]) -> set[str]:
        """Begins it, or finds which tasks are done. One of something else is refused."""
        self.files.create_dir(self.path, recursive=True)
        there = self.read()
        if there is None:
            self._write(_SPACE_FILE, (json.dumps(wanted, indent=1, sort_keys=True) + "\n").encode())
            return set()
        other = sorted(key for key in {*wanted, *there} if wanted.get(key) != there.get(key))
        if other:
            words = ", ".join(other)
            raise SpecError(f"{self.place} holds another sweep ({words} differ); name another folder, or remove it")
        return {name for name in self.names() if self._is_done(name)}

    def read(self) -> dict[str, Any] | None:
        """What it is of; None if there is nothing."""
        name = f"{self.path}/{_SPACE_FILE}"
        if self.files.get_file_info(name).size is None:
            return None
        with self.files.open_input_stream(name) as file:
            found: dict[str, Any] = json.loads(file.read())
        return found

    def names(self) -> list[str]:
        """The files of tasks, in order."""
        selector = need("pyarrow.fs", "sweep").FileSelector(self.path)
        found = [info.base_name for info in self.files.get_file_info(selector)]
        return sorted(name for name in found if name.endswith(".parquet") and name[0] not in "._")

    def _is_done(self, name: str) -> bool:
        # A failure may be temporary, so it is tried again.
        with self.files.open_input_file(f"{self.path}/{name}") as file:
            metadata = need("pyarrow.parquet", "sweep").read_schema(file).metadata or {}
        return bool(metadata.get(_ERRORS) == b"0")

    def put(self, name: str, table: Any) -> None:
        """Keeps the table of a task."""
        arrow = need("pyarrow", "sweep")
        sink = arrow.BufferOutputStream()
        need("pyarrow.parquet", "sweep").write_table(table, sink, compression="zstd")
        self._write(name, sink.getvalue())

    def _write(self, name: str, content: Any) -> None:
        path = f"{self.path}/{name}"
        is_local = self.files.type_name == "local"
        # An object is there whole or not at all; a file is once it has its name.
        under = f"{self.path}/.{name}.{os.getpid()}" if is_local else path
        with self.files.open_output_stream(under, compression=None) as file:
            file.write(content)
        if is_local:
            self.files.move(under, path)

    def get(self, name: str, columns: list[str] | None = None) -> Any:
        """The table of a task."""
        with self.files.open_input_file(f"{self.path}/{name}") as file:
            return need("pyarrow.parquet", "sweep").read_table(file, columns=columns)


class SweepResult:
    """Predictions for every (trace, point) of a sweep, in memory or in a folder: a table of Arrow's for whatever
    takes one."""

    def __init__(self, space: Space, tasks: list[str], tables: dict[str, Any] | Folder) -> None:
        self._space, self._tasks, self._tables = space, tasks, tables

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "SweepResult":
        """What a sweep has left in a folder (path or URL), as far as it came."""
        kept = Folder(os.fspath(folder))
        of = kept.read()
        if of is None:
            raise SpecError(f"{kept.place} holds no sweep")
        return cls(Space.from_json(of["space"]), kept.names(), kept)

    @property
    def space(self) -> Space:
        """The space that points are of."""
        return self._space

    def to_arrow(self, columns: list[str] | None = None) -> Any:
        """All rows as a pyarrow.Table, by trace (in the order in which they were named) and point; or some columns of
        it.

        `trace`, `digest` (of its accesses), `program`; `point`, `settings`; bytes, seconds and shares of 0 to 1 as in
        `results.Prediction`, with `base_resident_mean_bytes` without schemes; `error`, with which all that is
        predicted is null. Bounds (`..._low`, `..._high`) are null unless the sweep was asked for them.
        """
        arrow = need("pyarrow", "sweep")
        if isinstance(self._tables, Folder):
            tables = [self._tables.get(name, columns) for name in self._tasks]
        else:
            tables = [self._tables[name] for name in self._tasks]
            tables = [table.select(columns) for table in tables] if columns else tables
        wanted = schema().remove_metadata()
        if columns:
            wanted = arrow.schema([wanted.field(name) for name in columns])
        return arrow.concat_tables([wanted.empty_table(), *(table.cast(wanted) for table in tables)])

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's PyCapsule interface: all rows."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def errors(self) -> dict[str, str]:
        """Why traces have failed, each by its first error."""
        rows = self.to_arrow(["trace", "error"])
        first: dict[str, str] = {}
        for row in rows.filter(need("pyarrow.compute", "sweep").is_valid(rows["error"])).to_pylist():
            first.setdefault(row["trace"], row["error"])
        return first

    def best_for(self, *, max_slowdown: float = 0.01, share: float = 0.95) -> FleetAnswer:
        """The one point that saves most where `share` of the traces are slowed by `max_slowdown` at most (both 0 to 1),
        what it saves, and what tuning each trace by itself would.

        A trace that a point slows by more, or whose program it kills, counts as if nothing acted on it: it saves
        nothing. With bounds the upper one is held against the limit. Traces that have failed do not count.
        """
        return answer(self.to_arrow(COLUMNS), self._space, max_slowdown, share)

    def __len__(self) -> int:
        """How many rows."""
        return int(self.to_arrow(["point"]).num_rows)

    def __repr__(self) -> str:
        return f"<isotherm.SweepResult, {len(self)} predictions of {self._space!r}>"


def _bar(done: int, total: int) -> None:
    """A line on standard error."""
    width = 40 * done // max(total, 1)
    end = "\n" if done == total else ""
    print(f"\r[{'#' * width}{'.' * (40 - width)}] {done}/{total} predictions", end=end, file=sys.stderr, flush=True)


def on_threads(tasks: list[Task], space: Space, bounds: bool, jobs: int | None) -> Computed:
    """Does tasks on threads of this process, and yields each with its table as it is done."""
    stop = _Stop()
    pool = ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0)), thread_name_prefix="isotherm-sweep")
    try:
        futures = {pool.submit(work, task, space, bounds, stop): task for task in tasks}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def sweep(
    traces: str | os.PathLike[str] | Record | Iterable[str | os.PathLike[str] | Record],
    space: Space,
    *,
    output: str | os.PathLike[str] | None = None,
    address: str | None = None,
    jobs: int | None = None,
    chunk: int = 64,
    bounds: bool = False,
    progress: Progress | bool = False,
) -> SweepResult:
    """Predicts what comes of each trace's program at each point of a space. Needs pyarrow (`isotherm[sweep]`).

    `traces`: records of page scans (`isotherm record --pages`; `.isotherm` or Parquet), as paths or as URLs of what
    pyarrow or fsspec read (`s3://...`). What is wrong with a trace is in its rows, as `error`.

    `address`: None for `jobs` threads of this process (one for each CPU unless said); of a Ray cluster
    (`isotherm[ray]`, "auto", "local" or what `ray.init` takes; the one that this program is connected to, if it is)
    whose machines have this version of isotherm and reach the traces. `chunk`: points of a task. None of these
    changes a byte of the result; a task whose worker dies is done again.

    `output`: a folder (path or URL) that keeps the result of each task as a Parquet file. What is there is not computed
    again, unless it had failed. A trace is known by its name: where its content changes, begin another folder.

    `bounds`: how sure each prediction is, by four replays more. `progress`: True for a bar on standard error, or
    called with how many predictions there are, and with how many there will be.
    """
    need("pyarrow", "sweep")
    if chunk < 1 or (jobs is not None and jobs < 1):
        raise ValueError("chunk and jobs are at least 1")
    one = [traces] if isinstance(traces, (str, os.PathLike, Record)) else traces
    names = [os.fspath(trace.path if isinstance(trace, Record) else trace) for trace in one]
    twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
    if twice:
        raise ValueError(f"traces are named twice: {', '.join(sorted(twice))}")
    points = len(space)
    tasks = [Task(name, at, min(chunk, points - at)) for name in names for at in range(0, points, chunk)]
    kept = Folder(os.fspath(output)) if output is not None else None
    wanted = {"isotherm": __version__, "space": space.to_json(), "bounds": bounds, "chunk": chunk, "points": points}
    done = kept.open(wanted) if kept else set()
    left = [task for task in tasks if task.file not in done]
    tell = progress if callable(progress) else _bar if progress else None
    nr_done, nr_all = points * len(names) - sum(task.count for task in left), points * len(names)
    if tell:
        tell(nr_done, nr_all)
    tables: dict[str, Any] = {}
    # Closed at once where this fails: what still runs is stopped.
    with closing(_computed(left, space, bounds, jobs, address)) as computed:
        for task, table in computed:
            if kept:
                kept.put(task.file, table)
            else:
                tables[task.file] = table
            nr_done += task.count
            if tell:
                tell(nr_done, nr_all)
    return SweepResult(space, [task.file for task in tasks], kept or tables)


def _computed(tasks: list[Task], space: Space, bounds: bool, jobs: int | None, address: str | None) -> Computed:
    if not tasks:
        return
    if address is None:
        yield from on_threads(tasks, space, bounds, jobs)
        return
    from isotherm import _cluster  # noqa: PLC0415

    yield from _cluster.on_ray(tasks, space, bounds, jobs, address)
