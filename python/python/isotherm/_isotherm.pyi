# Docstrings are the module's own: `help(isotherm.Record)`.

from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from datetime import timedelta
from os import PathLike
from pathlib import Path
from types import GenericAlias
from typing import Any, Final, Generic, Literal, Self, TypeAlias, TypeVar, final

from typing_extensions import disjoint_base

from isotherm import results

# A size: bytes, or text such as "2 MiB".
_Size: TypeAlias = int | str
# A duration: datetime.timedelta, or text such as "5s".
_Time: TypeAlias = timedelta | str
# A share: 0 to 1, or text such as "5%".
_Share: TypeAlias = float | str
# A process: its id, or its command name.
_Process: TypeAlias = int | str
_Path: TypeAlias = str | PathLike[str]
_T = TypeVar("_T")
# What a report comes to: a TypedDict of isotherm.results.
_R = TypeVar("_R")

__all__ = [
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
    "Table",
    "Tuned",
    "_Stop",
    "__version__",
    "_be_calibration_subject",
    "_calibrate",
    "_close_sessions",
    "_sweep_task",
    "check",
    "presets",
    "reclaim_curve",
    "simulate",
    "tune",
]

__version__: Final[str]

class IsothermError(Exception): ...
class RecordError(IsothermError): ...
class SpecError(IsothermError): ...
class SessionError(IsothermError): ...
class PrivilegeError(SessionError): ...
class SimulationError(IsothermError): ...
class IsothermWarning(UserWarning): ...

@final
class Table:
    @property
    def columns(self) -> list[str]: ...
    @property
    def incomplete(self) -> str | None: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

@disjoint_base
class Report(Generic[_R]):
    @property
    def kind(self) -> str: ...
    def to_dict(self) -> _R: ...
    def to_json(self) -> str: ...
    def text(self, *, width: int = 100, over_time: bool = False) -> str: ...
    def to_csv(self) -> str: ...
    def to_svg(self) -> str: ...
    def to_html(self) -> str: ...
    def keys(self) -> KeysView[str]: ...
    def values(self) -> ValuesView[Any]: ...
    def items(self) -> ItemsView[str, Any]: ...
    def get(self, key: str, default: _T | None = None) -> Any | _T | None: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __class_getitem__(cls, key: Any) -> GenericAlias: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def _repr_html_(self) -> str: ...

@final
class Record:
    @classmethod
    def open(cls, path: _Path, *, salvage: bool = False) -> Self: ...
    @property
    def path(self) -> Path: ...
    @property
    def header(self) -> dict[str, Any]: ...
    @property
    def is_by_page(self) -> bool: ...
    def snapshots(self) -> Table: ...
    def regions(self) -> Table: ...
    def pages(self) -> Table: ...
    def items(self) -> Table: ...
    def wss(
        self,
        *,
        target: int | None = None,
        start: _Time | None = None,
        stop: _Time | None = None,
        min_rate: _Share | None = None,
        percentiles: Sequence[float] | None = None,
    ) -> Report[results.Wss]: ...
    def idle(
        self,
        *,
        target: int | None = None,
        start: _Time | None = None,
        stop: _Time | None = None,
        at: _Time | None = None,
        at_least: Sequence[_Time] | None = None,
        percentiles: Sequence[float] | None = None,
    ) -> Report[results.Idle]: ...
    def access(
        self,
        *,
        target: int | None = None,
        start: _Time | None = None,
        stop: _Time | None = None,
        snapshot: int | Literal["last", "all"] | None = None,
        at: _Time | None = None,
        sort: Literal["address", "size", "rate", "age", "mapping"] = "address",
        reverse: bool = False,
        min_size: _Size | None = None,
        max_size: _Size | None = None,
        min_rate: _Share | None = None,
        max_rate: _Share | None = None,
        min_age: _Time | None = None,
        max_age: _Time | None = None,
        mapping: str | None = None,
        limit: int | None = None,
        hot: _Share | None = None,
    ) -> Report[results.Access]: ...
    def heatmap(
        self,
        *,
        target: int | None = None,
        start: _Time | None = None,
        stop: _Time | None = None,
        columns: int = 320,
        rows: int = 160,
    ) -> Report[results.Heatmap]: ...
    def page(
        self,
        *,
        target: int | None = None,
        start: _Time | None = None,
        stop: _Time | None = None,
    ) -> str: ...
    def reclaim_curve(
        self,
        *,
        target: int | None = None,
        start: _Time | None = None,
        stop: _Time | None = None,
        max_slowdown: _Share | None = None,
        refault_cost: _Time | None = None,
    ) -> Report[results.ReclaimCurve]: ...
    def size(
        self,
        *,
        target: int | None = None,
        start: _Time | None = None,
        stop: _Time | None = None,
        max_slowdown: _Share | None = None,
        refault_cost: _Time | None = None,
        file_refault_cost: _Time | None = None,
        dram_price: float | None = None,
    ) -> Report[results.Size]: ...
    def summary(
        self, *, target: int | None = None, start: _Time | None = None, stop: _Time | None = None
    ) -> Report[results.Summary]: ...
    def footprint(
        self,
        *,
        target: int | None = None,
        start: _Time | None = None,
        stop: _Time | None = None,
        min_rate: _Share | None = None,
    ) -> Report[results.Footprint]: ...
    def _repr_html_(self) -> str: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Scheme:
    def __new__(cls, line: str) -> Self: ...
    @staticmethod
    def preset(name: str) -> list[Scheme]: ...
    @staticmethod
    def from_dict(keys: dict[str, Any]) -> Scheme: ...
    def to_dict(self) -> dict[str, Any]: ...
    def replace(
        self,
        *,
        min_size: _Size | None = None,
        max_size: _Size | None = None,
        min_rate: _Share | None = None,
        max_rate: _Share | None = None,
        min_age: _Time | None = None,
        max_age: _Time | None = None,
    ) -> Scheme: ...
    @property
    def action(self) -> str: ...
    @property
    def size(self) -> tuple[int, int]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class SessionSpec:
    def __new__(
        cls,
        *,
        pids: Sequence[_Process] | None = None,
        cgroup: _Path | None = None,
        all: bool = False,
        physical: bool = False,
        node: int | None = None,
        simulated: bool = False,
        exclude: Sequence[_Process] | None = None,
        ranges: Sequence[tuple[int, int]] | None = None,
        children: bool = False,
        config: str | None = None,
        schemes: Sequence[Scheme | str] | None = None,
        presets: Sequence[str] | None = None,
        dry_run: bool = False,
        save: _Size | None = None,
        keep_free: _Share | None = None,
        max_waste: _Share | None = None,
        guard: bool = True,
        max_slowdown: _Share | None = None,
        slowdown_over: _Time | None = None,
        max_refaults_per_s: float | None = None,
        max_psi: _Share | None = None,
        max_refault_wait: _Time | None = None,
        act_budget: _Share | None = None,
        progress_cmd: str | None = None,
        cpu_budget: _Share | None = None,
        faithful: bool = False,
        pages: bool = False,
        sample_interval: _Time | None = None,
        aggregation_interval: _Time | None = None,
        update_interval: _Time | None = None,
        regions: tuple[int, int] | None = None,
        seed: int = 1,
        world: Literal["linux", "kernel"] = "linux",
    ) -> Self: ...
    @staticmethod
    def from_json(text: str) -> SessionSpec: ...
    def to_json(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...
    @property
    def schemes(self) -> list[Scheme]: ...
    @property
    def acts(self) -> bool: ...
    def with_schemes(self, schemes: Sequence[Scheme | str]) -> SessionSpec: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Space:
    def __new__(
        cls,
        *,
        presets: Sequence[str] | None = None,
        schemes: Sequence[Scheme | str] | None = None,
        config: str | None = None,
        params: Sequence[str] | None = None,
        max_slowdown: _Share | None = None,
        guard: bool = True,
        faithful: bool = False,
        far: str | None = None,
        memory_bound: _Share | None = None,
        seed: int = 1,
    ) -> Self: ...
    @staticmethod
    def from_json(text: str) -> Space: ...
    def to_json(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def parameters(self) -> dict[str, list[str]]: ...
    def point(self, places: Sequence[int]) -> int: ...
    def settings(self, point: int) -> dict[str, str]: ...
    def label(self, point: int) -> str: ...
    def configuration(self, point: int, *, format: Literal["yaml", "json"] = "yaml") -> str: ...
    def spec(self, point: int, **targets: Any) -> SessionSpec: ...
    def __len__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Replays:
    def __new__(cls, trace: Record | _Path, space: Space) -> Self: ...
    @property
    def space(self) -> Space: ...
    @property
    def program(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def base(self) -> results.Prediction: ...
    def predict(self, point: int, *, bounds: bool = False) -> results.Prediction: ...

@final
class Tuned(Report[results.Tune]):
    def configuration(self, *, format: Literal["yaml", "json"] = "yaml") -> str: ...
    def spec(self, **targets: Any) -> SessionSpec: ...

@final
class _Stop:
    def __new__(cls) -> Self: ...
    def set(self) -> None: ...

@final
class Snapshot:
    @property
    def target(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def name(self) -> str | None: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def nr_samples(self) -> int: ...
    @property
    def resident_bytes(self) -> int | None: ...
    @property
    def touched_bytes(self) -> int: ...
    @property
    def unknown_bytes(self) -> int: ...
    @property
    def swapped_bytes(self) -> int | None: ...
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...
    def __arrow_c_schema__(self) -> object: ...

@final
class Session:
    def __new__(cls, spec: SessionSpec, *, duration: _Time | None = None) -> Self: ...
    @property
    def header(self) -> dict[str, Any]: ...
    @property
    def lost(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Snapshot: ...

def check(text: str) -> Report[results.Check]: ...
def presets() -> dict[str, str]: ...
def simulate(
    source: Record | dict[str, Any] | _Path,
    spec: SessionSpec | None = None,
    *,
    duration: _Time | None = None,
    output: _Path | None = None,
    against: Record | None = None,
    far: str | None = None,
    memory_bound: _Share | None = None,
) -> Report[dict[str, Any]]: ...
def reclaim_curve(
    record: Record | _Path,
    *,
    target: int | None = None,
    start: _Time | None = None,
    stop: _Time | None = None,
    max_slowdown: _Share | None = None,
    refault_cost: _Time | None = None,
) -> Report[results.ReclaimCurve]: ...
def tune(
    trace: Record | _Path,
    *,
    presets: Sequence[str] | None = None,
    schemes: Sequence[Scheme | str] | None = None,
    config: str | None = None,
    params: Sequence[str] | None = None,
    objective: Literal["memory", "slowdown", "damoos", "cost", "huge"] | None = None,
    max_slowdown: _Share | None = None,
    max_memory: _Size | None = None,
    prices: dict[str, float] | str | None = None,
    budget: int | None = None,
    seed: int = 1,
    jobs: int | None = None,
    guard: bool = True,
    faithful: bool = False,
    far: str | None = None,
    memory_bound: _Share | None = None,
    method: Literal["search", "damoos-grid", "damoos-polyfit", "swarm"] = "search",
    resume: _Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Tuned: ...
def _sweep_task(path: _Path, space: Space, points: tuple[int, int], bounds: bool, stop: _Stop) -> str | None: ...
def _calibrate(subject: tuple[_Path, Sequence[_Path]], pid: int | None) -> str: ...
def _be_calibration_subject() -> None: ...
def _close_sessions() -> None: ...
