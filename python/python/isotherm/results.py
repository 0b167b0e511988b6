"""The types of reports, as `Report.to_dict()` gives them. Written by python/results.py from docs/schema.

Sizes are in bytes and durations in nanoseconds, unless a key ends in another unit.
"""

from typing import Literal, NotRequired, TypedDict

Nanos = int


class Percentile(TypedDict):
    """A value below which a share of the distribution lies."""

    # The share, 0 to 100.
    percent: float
    # The value.
    value: int


class Point(TypedDict):
    """One step of a `Series`."""

    # Greatest value seen in it.
    max: int
    # Mean over time.
    mean: int
    # Least value seen in it.
    min: int
    # When the step begins, since the beginning of the record.
    time_ns: Nanos


TargetId = int


class Truncated(TypedDict):
    """What there is of a record that was not finished."""

    # Bytes of an unfinished message behind them.
    bytes_lost: int
    # Bytes that were read.
    bytes_read: int


class WorkingSet(TypedDict):
    """The working set of a target, or of all."""

    # The context that it belongs to, where the record is of several.
    context: NotRequired[str | None]
    # Mean over time of the working set.
    mean_bytes: int
    # Mean over time of all monitored addresses, whatever they hold.
    monitored_mean_bytes: int
    # Its command name, where the record says.
    name: NotRequired[str | None]
    # The working set was at most `value` bytes for `percent` of the time.
    percentiles: list[Percentile]
    # Its process id; 0 for physical memory, `null` where the record does not say.
    pid: NotRequired[int | None]
    # Mean over time of those that hold memory; `null` where the record's source cannot tell.
    resident_mean_bytes: NotRequired[int | None]
    # By how many bytes a percentile may be too low.
    resolution_bytes: int
    # Mean resident size, where the record has it.
    rss_mean_bytes: NotRequired[int | None]
    # The working set over time.
    series: list[Point]
    # How many snapshots were counted.
    snapshots: int
    # Mean over time of those that are swapped out; likewise.
    swapped_mean_bytes: NotRequired[int | None]
    # Its number in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    # Mean over time of the bytes about which nothing is known.
    unknown_mean_bytes: int


class RecordInfo(TypedDict):
    """Where a report's facts come from; repeated in each result."""

    # What was recorded.
    command: list[str]
    # What is damaged, and where.
    damaged: NotRequired[str | None]
    # The machine.
    host: str
    # Its kernel release.
    kernel: str
    # `vaddr` or `paddr`.
    operations: str
    # When the record began, since the Unix epoch, as text in JSON. All other times count from here.
    started_ns: str
    # It was not finished: its recorder was killed, or still runs.
    truncated: NotRequired[Truncated | None]


class Wss(TypedDict):
    """The result."""

    # The least access rate that counts; `null`: any access.
    min_rate: NotRequired[float | None]
    # Where the facts come from.
    record: RecordInfo
    # `wss`.
    report: str
    # For each target.
    targets: list[WorkingSet]
    # The sum, if there is more than one target.
    total: NotRequired[WorkingSet | None]
    # The version of this JSON.
    version: int


class IdleBytes(TypedDict):
    """How many bytes have been idle for at least so long."""

    # So long.
    at_least_ns: Nanos
    # So many bytes; `null` if the target has not been watched for so long.
    bytes: NotRequired[int | None]


class IdleMemory(TypedDict):
    """The idle memory of a target, or of all."""

    # Of the resident bytes, accessed in the last interval.
    accessed_bytes: int
    # The context that it belongs to, where the record is of several.
    context: NotRequired[str | None]
    # Idle bytes by least idle time.
    idle: list[IdleBytes]
    # All monitored addresses, whatever they hold.
    monitored_bytes: int
    # Its command name, where the record says.
    name: NotRequired[str | None]
    # `percent` of the known bytes have been idle for at most `value` nanoseconds.
    percentiles: list[Percentile]
    # Its process id; 0 for physical memory, `null` where the record does not say.
    pid: NotRequired[int | None]
    # Of these, in memory; `null` where the record's source cannot tell.
    resident_bytes: NotRequired[int | None]
    # Resident bytes at about that time, where the record has it.
    rss_bytes: NotRequired[int | None]
    # Of these, swapped out; likewise.
    swapped_bytes: NotRequired[int | None]
    # Its number in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    time_ns: Nanos
    # Of the resident bytes, unknown.
    unknown_bytes: int
    # For how long the target had been watched then.
    watched_ns: Nanos


class Idle(TypedDict):
    """The result."""

    # Targets that had ended before.
    ended_targets: int
    # Where the facts come from.
    record: RecordInfo
    # `idle`.
    report: str
    # For each target that was there at the time.
    targets: list[IdleMemory]
    # The sum, if there is more than one. Memory that several targets map counts once where the record has samples of frames; in percentiles it counts for each.
    total: NotRequired[IdleMemory | None]
    # The version of this JSON.
    version: int


Address = int | str


HotRate = float


class MappingLabel(TypedDict):
    """The name of what lies in a range."""

    # Name of the mapping, or of all mappings with that name, that overlap most.
    name: str
    # How many other names overlap.
    others: int


class MappingTotals(TypedDict):
    """What the admitted regions of one mapping's name come to."""

    # Touched in regions that were accessed less often.
    cold_bytes: int
    # Touched in regions that were accessed at the hot rate or more often.
    hot_bytes: int
    # Not touched in the interval.
    idle_bytes: int
    # The name; `null` where nothing is known to be mapped.
    mapping: NotRequired[str | None]
    # All addresses, whatever they hold.
    monitored_bytes: int
    # How many regions.
    regions: int
    # In memory; `null` where the record's source cannot tell.
    resident_bytes: NotRequired[int | None]
    # Swapped out; likewise.
    swapped_bytes: NotRequired[int | None]
    # Nothing is known.
    unknown_bytes: int


class RegionMemory(TypedDict):
    """What a region's addresses hold, in bytes. Only resident memory is hot, cold or idle: holes and swapped-out pages are neither."""

    # In memory at the end of the interval, as `VmRSS` counts it.
    resident: int
    # Swapped out; not resident.
    swapped: int
    # Of the resident bytes, those touched at least once in the interval.
    touched: int
    # Of the resident bytes, those of which it cannot be known whether they were touched.
    unknown: int


class AccessRow(TypedDict):
    """One region."""

    # Share of checks that found an access, 0 to 1; `null` if unknown.
    access_rate: NotRequired[float | None]
    # The same in aggregation intervals.
    age_intervals: int
    # For how long the region has been accessed about that often.
    age_ns: Nanos
    # One past the last.
    end: Address
    # What lies there, by name; `null` where nothing is known to be mapped.
    mapping: NotRequired[MappingLabel | None]
    # What the addresses hold, as `resident`, `touched`, `unknown` and `swapped` bytes; `null` where the record's source cannot tell.
    memory: NotRequired[RegionMemory | None]
    # Size of the region.
    size_bytes: int
    # First address.
    start: Address


class Totals(TypedDict):
    """Bytes of memory by temperature. The first four add up to `resident_bytes`, or to `monitored_bytes` where the record's source knows of addresses only."""

    # Touched in regions that were accessed less often.
    cold_bytes: int
    # Touched in regions that were accessed at the hot rate or more often.
    hot_bytes: int
    # Not touched in the interval.
    idle_bytes: int
    # All addresses, whatever they hold.
    monitored_bytes: int
    # In memory; `null` where the record's source cannot tell.
    resident_bytes: NotRequired[int | None]
    # Swapped out; likewise.
    swapped_bytes: NotRequired[int | None]
    # Nothing is known.
    unknown_bytes: int


class AccessTable(TypedDict):
    """The regions of one snapshot."""

    # The context that it belongs to, where the record is of several.
    context: NotRequired[str | None]
    # When it ended.
    end_ns: Nanos
    # From which access rate on bytes are hot.
    hot_rate: HotRate
    # The same by mapping, the one with the most memory first. A region that lies in several counts for the one that it has most of.
    mappings: list[MappingTotals]
    # Its command name, where the record says.
    name: NotRequired[str | None]
    # How many times each region was checked.
    nr_samples: int
    # Its process id; 0 for physical memory, `null` where the record does not say.
    pid: NotRequired[int | None]
    # The regions: filtered, sorted, limited.
    regions: list[AccessRow]
    # How many of them the filters admit.
    regions_admitted: int
    # How many regions the snapshot has.
    regions_total: int
    # Number of the snapshot, counting the target's from 0.
    snapshot: int
    # When its interval began.
    start_ns: Nanos
    # Its number in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    # Bytes by temperature, of those that the filters admit.
    totals: Totals


class Access(TypedDict):
    """The snapshots asked for, together; `isotherm report access` writes them one by one."""

    # Where the facts come from.
    record: RecordInfo
    # `access`.
    report: str
    # The snapshots asked for.
    snapshots: list[AccessTable]
    # The version of this JSON.
    version: int


class CellArrays(TypedDict):
    access_rate: list[float | None]
    age_ns: list[int]
    column: list[int]
    row: list[int]


class HeatmapRow(TypedDict):
    """Addresses that a row stands for."""

    # Bytes on the axis.
    bytes: int
    # First address behind it.
    end: Address
    # What was last known to lie there.
    mapping: NotRequired[MappingLabel | None]
    # First address.
    start: Address


class Segment(TypedDict):
    """Neighbouring rows without a marked gap between them."""

    # One past the last byte.
    end: int
    # First row.
    first_row: int
    # Unmapped bytes cut out between the segment before and this one.
    gap_before_bytes: int
    # How many rows.
    rows: int
    # Bytes on the axis: its addresses less what was cut out silently.
    shown_bytes: int
    # First byte.
    start: int


class TargetHeatmap(TypedDict):
    """The heatmap of one target. In JSON, `cells` holds parallel arrays, with an entry for every cell that was monitored: `row`, `column`, `access_rate` (`null`: unknown) and `age_ns`. Cells that are not listed are unmapped."""

    # Row by row, each from the earliest time on.
    cells: CellArrays
    # The context that it belongs to, where the record is of several.
    context: NotRequired[str | None]
    # Its command name, where the record says.
    name: NotRequired[str | None]
    # Its process id; 0 for physical memory, `null` where the record does not say.
    pid: NotRequired[int | None]
    # Rows, from the lowest address up.
    rows: list[HeatmapRow]
    # Neighbouring rows, from the lowest address up, between gaps.
    segments: list[Segment]
    # Its number in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]


class Heatmap(TypedDict):
    """The result."""

    # How much time a column stands for.
    column_ns: float
    # How many columns.
    columns: int
    # Where the facts come from.
    record: RecordInfo
    # `heatmap`.
    report: str
    # When the first column begins.
    start_ns: Nanos
    # The targets, the largest first.
    targets: list[TargetHeatmap]
    # How many smaller targets were left out.
    targets_left_out: int
    # The version of this JSON.
    version: int


class ChargedMemory(TypedDict):
    """A control group's charge."""

    # Anonymous memory.
    anonymous: NotRequired[int | None]
    # Directory of the group.
    group: str
    # Memory of the kernel: slab, page tables, stacks, sockets, and others.
    kernel: NotRequired[int | None]
    # Files' pages in the page cache, mapped or not; without shared memory.
    page_cache: NotRequired[int | None]
    # Shared memory: tmpfs, memfd, System V.
    shared: NotRequired[int | None]
    # Swapped-out memory.
    swap: NotRequired[int | None]
    # All memory, without swap.
    total: NotRequired[int | None]


class Reclaim(TypedDict):
    """What the preset `prcl` would page out at the end of the record."""

    # So many bytes at most; `null` if nothing was watched for so long.
    bytes: NotRequired[int | None]
    # Memory idle for so long.
    idle_for_ns: Nanos
    # The same as a share of the resident bytes, 0 to 1.
    share: NotRequired[float | None]
    # Bytes that were idle as long and cannot be paged out: locked, mapped several times or by several processes, or a device's.
    unreclaimable_bytes: int


class MappingOverview(TypedDict):
    """All that a target maps by one name."""

    # The context that it belongs to, where the record is of several.
    context: NotRequired[str | None]
    # Of these, idle for `IDLE` or longer.
    idle_bytes: int
    # The name.
    mapping: str
    # Its command name, where the record says.
    name: NotRequired[str | None]
    # Its process id; 0 for physical memory, `null` where the record does not say.
    pid: NotRequired[int | None]
    # In memory; `null` where the monitor cannot tell: then idle bytes are of addresses.
    resident_bytes: NotRequired[int | None]
    # Its number in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    # Idle bytes in unreclaimable mappings.
    unreclaimable_bytes: int


class TargetOverview(TypedDict):
    """A target, or the sum of all."""

    # The context that it belongs to, where the record is of several.
    context: NotRequired[str | None]
    # Bytes by least idle time.
    idle: list[IdleBytes]
    # Bytes of memory are known; else idle and unknown bytes are of addresses.
    is_exact: bool
    # Addresses watched, whatever they hold.
    monitored_bytes: int
    # Its command name, where the record says.
    name: NotRequired[str | None]
    # Its process id; 0 for physical memory, `null` where the record does not say.
    pid: NotRequired[int | None]
    # In memory; RSS where the monitor cannot tell, `null` where the record has neither.
    resident_bytes: NotRequired[int | None]
    # Swapped out, likewise.
    swapped_bytes: NotRequired[int | None]
    # Its number in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    # Of these bytes nothing is known.
    unknown_bytes: int
    # Bytes idle for `IDLE` or longer in unreclaimable mappings; of all targets, also those that several map.
    unreclaimable_bytes: int
    # For how long it was watched.
    watched_ns: Nanos
    # Mean working set, at most the resident bytes; `null` where nothing was known in any interval.
    working_set_bytes: NotRequired[int | None]


class Summary(TypedDict):
    """The result."""

    # Charge of the control group that was watched.
    charged: NotRequired[ChargedMemory | None]
    # Whether the record has samples of frames, so that memory that several targets map counts once.
    counts_pages_once: bool
    # From the beginning to the last snapshot.
    duration_ns: Nanos
    # Targets that had ended before.
    ended_targets: int
    # The one with most idle bytes first.
    mappings: list[MappingOverview]
    # CPU time of the monitor, as a share of one CPU.
    monitor_cpu_share: NotRequired[float | None]
    # A command that leads on from here.
    next: str
    # What paging out would save.
    reclaim: Reclaim
    # Where the facts come from.
    record: RecordInfo
    # `summary`.
    report: str
    # The largest first.
    targets: list[TargetOverview]
    # All of them. Memory that several map counts once where `Self::counts_pages_once`, else for each.
    total: TargetOverview
    # What the record says in a sentence.
    verdict: str
    # The version of this JSON.
    version: int


class Metric(TypedDict):
    """One quantity over time."""

    # Greatest value.
    max_bytes: int
    # Mean over time.
    mean_bytes: int
    # Least value.
    min_bytes: int
    # `rss`, `swap`, `resident` (as the monitor sees it, where it does), `working_set`, `unknown` (monitored, but nothing is known), `system_used` (total less free), `system_unavailable` (total less available) or `monitor_rss`.
    name: str
    # Over time.
    series: list[Point]


class Footprint(TypedDict):
    """The result."""

    # What the record has of each quantity; those it lacks are absent.
    metrics: list[Metric]
    # Where the facts come from.
    record: RecordInfo
    # `footprint`.
    report: str
    # The machine's memory, where the record has it.
    system_total_bytes: NotRequired[int | None]
    # The target, if only one was asked for; else sums are over all targets.
    target: NotRequired[TargetId | None]
    # The version of this JSON.
    version: int


class ReclaimPoint(TypedDict):
    """What one threshold comes to."""

    # Stretches of idleness that lasted so long, in pages.
    idle_pages: int
    # Pages read back per second.
    refaults_per_s: float
    # Bytes times seconds that it would not have been in memory.
    saved_byte_seconds: float
    # Mean over time.
    saved_mean_bytes: int
    # The same as a share of the mean resident memory.
    saved_share: float
    # Share of its time that the program would have lost by reading back.
    slowdown: float
    # `saved_share` without the first `threshold_ns` of the record, in which no page can reach the threshold; `null` if that is more than half of the record.
    steady_share: NotRequired[float | None]
    # Memory is reclaimed after being idle for this long.
    threshold_ns: Nanos


class ReclaimCurve(TypedDict):
    """The result."""

    # The least threshold within it; `null` if none is, or none was asked for.
    chosen: NotRequired[ReclaimPoint | None]
    # From the first scan to the last.
    duration_ns: Nanos
    # The limit that was asked for.
    max_slowdown: NotRequired[float | None]
    # The same at some thresholds, where a page that came back waits four times as long, then sixteen and sixty-four times.
    patient_points: list[ReclaimPoint]
    # One point for each length of idleness that there was, from the shortest: between two the curve has no corner. None is shorter than a scan interval.
    points: list[ReclaimPoint]
    # Where the facts come from.
    record: RecordInfo
    # Time that the program loses by a refault.
    refault_cost_ns: Nanos
    # Where that comes from.
    refault_cost_source: Literal["given", "measured", "default"]
    # `reclaim_curve`.
    report: str
    # Mean over time of the memory that was there.
    resident_mean_bytes: int
    # Mean time that a scan speaks of: of shorter idleness nothing can be said.
    scan_interval_ns: Nanos
    # Mean over time of the memory about which nothing is known, which is never taken.
    unknown_mean_bytes: int
    # Mean over time of the memory in unreclaimable mappings, which is never taken.
    unreclaimable_mean_bytes: int
    # The version of this JSON.
    version: int


class Finding(TypedDict):
    """Something that is wrong with a configuration, or doubtful."""

    column: NotRequired[int | None]
    line: NotRequired[int | None]
    path: str
    problem: str
    severity: str


class Check(TypedDict):
    """A result with its version."""

    contexts: int
    findings: list[Finding]
    # What this machine cannot do of it: it cannot be run.
    not_here: list[str]
    schemes: int
    version: int
    # What is in its way here, though it can be run: no swap, a control group that is not there.
    warnings: list[str]


class Coarse(TypedDict):
    """A search on a sample of the blocks, whose best settings are then replayed in full."""

    # Number of points replayed on the sample.
    nr_tried: int
    # One block of this many was replayed.
    one_in: int


class Estimate(TypedDict):
    """A number, and between which bounds it is taken to lie; without bounds where nobody has said how sure it is."""

    # The most that it may come to; `null`: not known.
    high: NotRequired[float | None]
    # The least that it may come to; `null`: not known.
    low: NotRequired[float | None]
    # What is foretold.
    value: float


class LiveRun(TypedDict):
    """What a live run came to."""

    # CPU time of acting; `None` without schemes.
    acting_cpu_seconds: NotRequired[float | None]
    # How often the guard stopped the schemes.
    guard_stops: NotRequired[int | None]
    # Mean resident memory, bytes.
    resident_mean_bytes: float
    # Seconds that were measured.
    seconds: float
    # Seconds for a unit of the program's work: for all of it, unless it tells what it does in a second.
    seconds_of_work: float
    # `Settings::key`; `None` without schemes.
    settings: NotRequired[str | None]


class MemoryLimit(TypedDict):
    """How much memory may be resident on average."""

    bytes: NotRequired[int]
    share: NotRequired[float]


class Prediction(TypedDict):
    """A program under schemes, as a replay foretells it. Means are over the time that it ran."""

    # CPU time of acting.
    acting_cpu_seconds: Estimate
    # Mean memory on nodes beyond the first, bytes.
    far_mean_bytes: float
    # How often the guard stopped the schemes.
    guard_stops: int
    # Mean memory in huge pages, bytes.
    huge_mean_bytes: float
    # CPU time of watching.
    monitor_cpu_seconds: float
    # Record length that `steady_share` needs, where the replayed record is too short.
    needed_ns: NotRequired[Nanos | None]
    # Mean memory that compressed swap takes, bytes.
    pool_mean_bytes: float
    # Pages that were accessed while they were out of memory.
    refaults: int
    # Resident memory over time, bytes: means of as many equal parts of the program's time.
    resident_bytes: list[int]
    # Mean resident memory on the first node, bytes: on all that there are, where a machine has one.
    resident_mean_bytes: float
    # What less of it is resident than without schemes, bytes; below zero where it is more.
    saved_mean_bytes: float
    # The same as a share of what is resident without schemes.
    saved_share: Estimate
    # Seconds from the program's start to its end, without its own first faults.
    seconds: float
    # How much longer the program takes than by itself, a share of that time.
    slowdown: Estimate
    # `saved_share` without the beginning, in which no memory could be idle for the schemes' minimum age; `null` if that is more than half of the time, or not known.
    steady_share: NotRequired[float | None]
    # Mean memory that is paged out, bytes, before compression.
    swapped_mean_bytes: float
    # It was killed for want of memory.
    was_killed: bool


class Prices(TypedDict):
    """What a month of something costs, in any one currency. What is not named costs nothing."""

    # A CPU: what acting and watching take, and what the program works longer.
    cpu: float
    # A GiB on other nodes.
    cxl: float
    # A GiB on the first node: resident memory there, and what compressed swap takes.
    dram: float


class Setting(TypedDict):
    """What one knob is set to."""

    # Which knob.
    parameter: Literal["age", "size", "rate", "quota", "density", "waste", "hot-rate"]
    # Its value, as text.
    text: str
    unit: Literal["ns", "bytes", "permille"]
    value: Nanos | int


Settings = list[Setting]


class Trial(TypedDict):
    """A setting that was tried."""

    # What a month of it costs, where there are prices.
    cost_per_month: NotRequired[float | None]
    # DAMOOS' score of that.
    damoos_score: float
    # What is foretold.
    prediction: Prediction
    # What the knobs are set to.
    settings: Settings


class Tried(TypedDict):
    """A setting that was tried, in short."""

    # Saved, a share of what is resident without schemes.
    saved_share: Estimate
    # What the knobs are set to, as text.
    settings: str
    # How much longer the program takes, a share of that time.
    slowdown: Estimate


class Value(TypedDict):
    """A value of a knob."""

    unit: Literal["ns", "bytes", "permille"]
    value: Nanos | int


class Compared(TypedDict):
    """A run under schemes beside what was foretold."""

    # What the replay foretold of it.
    foretold_saved_share: Estimate
    # What the replay foretold of it.
    foretold_slowdown: Estimate
    # The run.
    run: LiveRun
    # Saved against the runs without schemes before and after it: a share of their memory.
    saved_share: float
    # What the knobs were set to.
    settings: Settings
    # How much longer the same work took than in these, a share.
    slowdown: float


class Live(TypedDict):
    """What live runs came to. The predictions of `super::Tuned` are corrected by it."""

    # Mean resident memory in these, bytes.
    base_resident_mean_bytes: float
    # Mean seconds for a unit of work in these.
    base_seconds_of_work: float
    # The runs under schemes, in the order in which they were made.
    compared: list[Compared]
    # Why there are no more.
    end: Literal["enough", "all_made", "stopped"]
    # And its memory.
    noise_of_memory: float
    # By how much the time of a single run varies, a share.
    noise_of_time: float
    # Runs without schemes.
    nr_bases: int


class Objective(TypedDict):
    """What is sought."""

    max_memory: NotRequired[MemoryLimit]
    max_slowdown: NotRequired[float]
    prices: NotRequired[Prices]
    seeks: Literal["memory", "slowdown", "damoos", "cost", "huge"]


class Parameter(TypedDict):
    """A knob, and the values that are tried of it."""

    # What is tuned.
    knob: Literal["age", "size", "rate", "quota", "density", "waste", "hot-rate"]
    # Its values, from the least to the most; at least one.
    ladder: list[Value]


class Tune(TypedDict):
    """A result with its version."""

    # The program without schemes: watched, as under them.
    base: Prediction
    # The search on a sample of the blocks that came first; `null` where there was none.
    coarse: NotRequired[Coarse | None]
    # The settings that no other beats in memory and time, from the least slowdown to the most.
    front: list[Trial]
    # The schemes as they were given; `null` where that is not in the space.
    given: NotRequired[Trial | None]
    # Whether the guard stood over the replays, as it does over `isotherm run`.
    is_guarded: bool
    # What live runs came to, by which all predictions above are corrected; `null` where there were none.
    live: NotRequired[Live | None]
    # The best of those beyond it, where none is within.
    nearest: NotRequired[Trial | None]
    # Limit of that number.
    nr_most: int
    # How many points the space has.
    nr_points: int
    # Number of points replayed in full.
    nr_tried: int
    # What was sought.
    objective: Objective
    # What was tuned, and over which values.
    parameters: list[Parameter]
    # The program's name.
    program: str
    # The best setting within the limit; `null`: there is none.
    recommended: NotRequired[Trial | None]
    # `tune`.
    report: str
    # Mean time between two scans.
    scan_interval_ns: Nanos
    # The same in words.
    sought: str
    # From the first scan of the trace to the last.
    trace_duration_ns: Nanos
    # Everything that was tried, in the order of the space.
    tried: list[Tried]
    version: int
    # The search was broken off.
    was_stopped: bool
    # Why, in a sentence or two.
    why: str


class Measured(TypedDict):
    """A cost that was measured several times, in nanoseconds."""

    # The most.
    max: float
    # The median.
    median: float
    # The least.
    min: float


class Calibration(TypedDict):
    """A result with its version."""

    # And for each of its pages.
    clear_page_ns: NotRequired[Measured | None]
    # A range's accessed bits are cleared while the program runs: what it takes besides its pages.
    clear_range_ns: NotRequired[Measured | None]
    # 2 MiB are made a huge page.
    collapse_ns: NotRequired[Measured | None]
    # Bytes that compressed swap holds for each that it takes.
    compression_ratio: NotRequired[float | None]
    # How many pages of the program in question were what was paged out; 0: made-up content.
    content_pages: NotRequired[int]
    # CPUs of the machine.
    cpus: NotRequired[int]
    # The first fault of a huge page.
    huge_fault_ns: NotRequired[Measured | None]
    # Its kernel.
    kernel: NotRequired[str]
    # A page's first fault.
    minor_fault_ns: NotRequired[Measured | None]
    # CPU time of acting a page, where pages go one by one and the program sleeps.
    page_out_alone_ns: NotRequired[Measured | None]
    # The part of that time that the thread loses, 0 to 1.
    page_out_running_lost: NotRequired[Measured | None]
    # The same, where a thread of the program works meanwhile.
    page_out_running_ns: NotRequired[Measured | None]
    # The part of that time that a thread loses which works on the same memory's program meanwhile, 0 to 1.
    page_out_whole_lost: NotRequired[Measured | None]
    # CPU time of acting a page, where blocks of 2 MiB go whole.
    page_out_whole_ns: NotRequired[Measured | None]
    # What a page takes that comes back, in the program's own time; in random order, so that caches help little.
    refault_ns: NotRequired[Measured | None]
    # A page's next access takes longer once its accessed bit was cleared; in random order.
    set_again_ns: NotRequired[Measured | None]
    # Where pages were paged out to (`zram (lz4)`); nothing if there was no swap.
    swap: NotRequired[str | None]
    # What measuring took.
    took_seconds: NotRequired[float]
    version: int
