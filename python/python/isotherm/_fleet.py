"""What one configuration for many programs saves, and what one for each would."""

from dataclasses import dataclass, field
from typing import Any, Final

from isotherm._isotherm import Space
from isotherm._needs import need

# Columns of a sweep that the answer is chosen by.
COLUMNS: Final = [
    "trace",
    "point",
    "base_resident_mean_bytes",
    "saved_mean_bytes",
    "saved_share",
    "slowdown",
    "slowdown_high",
    "was_killed",
    "error",
]


@dataclass(frozen=True)
class FleetChoice:
    """One point for all traces. Savings are means over each trace's time, added up over the traces that it slows by
    no more than may be; the others count as if nothing acted on them."""

    point: int
    """Its number in the space."""
    settings: str
    """What the parameters are, in a line."""
    configuration: str
    """As `isotherm run -c`, damo and HMSDK read it (YAML)."""
    within_share: float
    """Share of the traces, 0 to 1, that it slows by no more than may be."""
    saved_bytes: float
    """Bytes."""
    saved_share: float
    """The same of what is resident without schemes, in all traces: 0 to 1."""
    slowdown_max: float
    """The greatest slowdown of any trace, those beyond the limit among them."""


@dataclass(frozen=True)
class FleetAnswer:
    """One configuration for a fleet beside one for each of its services."""

    max_slowdown: float
    """What a program may lose, a share of its time."""
    share: float
    """Of so many traces, 0 to 1."""
    nr_traces: int
    """Traces that could be replayed."""
    nr_failed: int
    """Traces that could not, which do not count."""
    resident_bytes: float
    """What is resident in all of them without schemes: bytes, means over each trace's time."""
    best: FleetChoice | None
    """The one that saves most; None if none is within the limit for so many."""
    nearest: FleetChoice | None
    """Where there is none: the one that is within it for most."""
    tuned_saved_bytes: float
    """What the best point of each trace within the limit saves, added up: bytes."""
    tuned_saved_share: float
    """The same of `resident_bytes`, 0 to 1."""
    gain_bytes: float | None
    """By how much that is more than what `best` saves, in bytes."""
    per_trace: Any = field(repr=False)
    """A pyarrow.Table with a row for each trace: its own best (`point`, `settings`, `saved_mean_bytes`, `saved_share`,
    `slowdown`; null where nothing within the limit saves anything) beside the one (`one_...`, with `one_is_within`)."""

    def text(self) -> str:
        """For people."""
        limit, share = f"{100 * self.max_slowdown:g} %", f"{100 * self.share:g} %"
        lines = [
            f"{self.nr_traces} traces ({self.nr_failed} more have failed), {_size(self.resident_bytes)} resident "
            f"without schemes; at most {limit} slower in {share} of them"
        ]
        one = self.best or self.nearest
        if one is not None:
            what = "one for all" if self.best else "none is within that; the nearest"
            lines.append(
                f"{what}: {one.settings}: saves {_size(one.saved_bytes)} ({100 * one.saved_share:.1f} %), within "
                f"the limit in {100 * one.within_share:.1f} % of the traces, {100 * one.slowdown_max:.2f} % at worst"
            )
        lines.append(f"one for each: saves {_size(self.tuned_saved_bytes)} ({100 * self.tuned_saved_share:.1f} %)")
        if self.gain_bytes is not None:
            lines.append(f"tuning by service gains {_size(self.gain_bytes)}")
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.text()


def _size(size: float) -> str:
    """Bytes for people."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    at = max(0, min(len(units) - 1, (int(abs(size)).bit_length() - 1) // 10))
    return f"{size / (1 << 10 * at):.{0 if at == 0 else 2}f} {units[at]}"


def answer(rows: Any, space: Space, max_slowdown: float, share: float) -> FleetAnswer:
    """Of a sweep's rows."""
    if not (max_slowdown >= 0 and 0 < share <= 1):
        raise ValueError("max_slowdown is a share of time from 0 on, share a share of the traces above 0 and up to 1")
    pc = need("pyarrow.compute", "sweep")
    nr_named = pc.count_distinct(rows["trace"]).as_py()
    failed = pc.unique(rows.filter(pc.is_valid(rows["error"]))["trace"])
    rows = rows.filter(pc.invert(pc.is_in(rows["trace"], value_set=failed)))
    most = pc.coalesce(rows["slowdown_high"], rows["slowdown"])
    # The slack is that of binary fractions.
    within = pc.and_(pc.less_equal(most, max_slowdown + 1e-12), pc.invert(rows["was_killed"]))
    rows = rows.append_column("most", most).append_column("within", within)
    rows = rows.append_column("saved", pc.if_else(within, rows["saved_mean_bytes"], 0.0))
    base = rows.group_by("trace", use_threads=False).aggregate([("base_resident_mean_bytes", "max")])
    resident = pc.sum(base["base_resident_mean_bytes_max"]).as_py() or 0.0
    points = _points(rows)
    enough = [row for row in points if row["within_sum"] + 1e-9 >= share * base.num_rows]
    best, nearest = None, None
    if enough:
        best = max(enough, key=lambda row: (row["saved_sum"], -row["most_max"], -row["point"]))
    elif points:
        nearest = max(points, key=lambda row: (row["within_sum"], row["saved_sum"], -row["point"]))
    one = best or nearest
    per_trace = _per_trace(rows, base, space, one["point"] if one else None)
    tuned = pc.sum(per_trace["saved_mean_bytes"]).as_py() or 0.0

    def choice(row: dict[str, Any] | None) -> FleetChoice | None:
        if row is None:
            return None
        return FleetChoice(
            point=row["point"],
            settings=space.label(row["point"]),
            configuration=space.configuration(row["point"]),
            within_share=row["within_sum"] / base.num_rows,
            saved_bytes=row["saved_sum"],
            saved_share=row["saved_sum"] / max(resident, 1.0),
            slowdown_max=row["most_max"],
        )

    return FleetAnswer(
        max_slowdown=max_slowdown,
        share=share,
        nr_traces=base.num_rows,
        nr_failed=nr_named - base.num_rows,
        resident_bytes=resident,
        best=choice(best),
        nearest=choice(nearest),
        tuned_saved_bytes=tuned,
        tuned_saved_share=tuned / max(resident, 1.0),
        gain_bytes=tuned - best["saved_sum"] if best else None,
        per_trace=per_trace,
    )


def _points(rows: Any) -> list[dict[str, Any]]:
    """What each point comes to over all traces. Sums are in the order of rows, so that they are the same each time."""
    wanted = [("within", "sum"), ("saved", "sum"), ("most", "max")]
    found: list[dict[str, Any]] = rows.group_by("point", use_threads=False).aggregate(wanted).to_pylist()
    return found


def _per_trace(rows: Any, base: Any, space: Space, one: int | None) -> Any:
    """The best point of each trace, beside the one for all."""
    pc = need("pyarrow.compute", "sweep")
    own = rows.filter(pc.and_(rows["within"], pc.greater(rows["saved_mean_bytes"], 0.0)))
    own = own.sort_by([("saved_mean_bytes", "descending"), ("slowdown", "ascending"), ("point", "ascending")])
    names = ["point", "saved_mean_bytes", "saved_share", "slowdown"]
    own = own.group_by("trace", use_threads=False).aggregate([(name, "first") for name in names])
    own = own.rename_columns(["trace", *names])
    labels = [space.label(point) for point in own["point"].to_pylist()]
    arrow = need("pyarrow", "sweep")
    own = own.add_column(2, "settings", arrow.array(labels, arrow.string()))
    ones = rows.filter(pc.equal(rows["point"], -1 if one is None else one))
    beside = ["saved_mean_bytes", "saved_share", "slowdown", "within"]
    ones = ones.select(["trace", *beside])
    ones = ones.rename_columns(["trace", *(f"one_{name}" for name in beside[:-1]), "one_is_within"])
    joined = base.select(["trace"]).append_column("order", arrow.array(range(base.num_rows), arrow.int64()))
    joined = joined.join(own, "trace", use_threads=False).join(ones, "trace", use_threads=False)
    return joined.sort_by("order").drop_columns(["order"])
