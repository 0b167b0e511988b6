"""The types of reports, as `Report.to_dict()` gives them. Written by python/results.py from docs/schema.

Sizes are in bytes and durations in nanoseconds, unless a key ends in another unit.
"""

from typing import Literal, NotRequired, TypedDict

Nanos = int


class Percentile(TypedDict):
    """A percentile of a distribution."""

    # The share, 0 to 100.
    percent: float
    # The value.
    value: int


class Point(TypedDict):
    """One step of a series over time."""

    # Highest value in the step.
    max: int
    # Mean over time.
    mean: int
    # Lowest value in the step.
    min: int
    # Start of the step, since the beginning of the record.
    time_ns: Nanos


TargetId = int


class Truncated(TypedDict):
    """The part of an unfinished record that was read."""

    # Bytes of an unfinished message behind them.
    bytes_lost: int
    # Bytes that were read.
    bytes_read: int


class WorkingSet(TypedDict):
    """The working set of a target, or of all targets."""

    # The target's context, in a record of several contexts.
    context: NotRequired[str | None]
    # Working set, mean over time.
    mean_bytes: int
    # Bytes of all monitored addresses, with or without memory behind them, mean over time.
    monitored_mean_bytes: int
    # Command name, where the record has it.
    name: NotRequired[str | None]
    # The working set was at most `value` bytes for `percent` of the time.
    percentiles: list[Percentile]
    # Process id; 0 for physical memory, `null` where the record lacks it.
    pid: NotRequired[int | None]
    # Resident bytes, mean over time; `null` where the record's source cannot tell.
    resident_mean_bytes: NotRequired[int | None]
    # Largest error of a percentile, which may be too low by this number of bytes.
    resolution_bytes: int
    # Mean RSS, where the record has it.
    rss_mean_bytes: NotRequired[int | None]
    # The working set over time.
    series: list[Point]
    # Number of snapshots.
    snapshots: int
    # Swapped-out bytes, mean over time; `null` where the record's source cannot tell.
    swapped_mean_bytes: NotRequired[int | None]
    # Number of the target in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    # Bytes of unknown state, mean over time.
    unknown_mean_bytes: int


class RecordInfo(TypedDict):
    """The record that a report is based on; repeated in each result."""

    # The recorded command.
    command: list[str]
    # Description and place of the damage.
    damaged: NotRequired[str | None]
    # Name of the machine.
    host: str
    # Kernel release of the machine.
    kernel: str
    # `vaddr` or `paddr`.
    operations: str
    # Start of the record since the Unix epoch, as text in JSON. All other times count from here.
    started_ns: str
    # The part of an unfinished record: its recorder was killed, or still runs.
    truncated: NotRequired[Truncated | None]


class Wss(TypedDict):
    """The result."""

    # The lowest access rate that counts; `null` means any access.
    min_rate: NotRequired[float | None]
    # The record that the report is based on.
    record: RecordInfo
    # `wss`.
    report: str
    # The working set of each target.
    targets: list[WorkingSet]
    # The sum, if there is more than one target.
    total: NotRequired[WorkingSet | None]
    # Version of this JSON format.
    version: int


class IdleBytes(TypedDict):
    """Bytes with a minimum idle time."""

    # The minimum idle time.
    at_least_ns: Nanos
    # The bytes; `null` if the target was watched for less than this time.
    bytes: NotRequired[int | None]


class IdleMemory(TypedDict):
    """The idle memory of a target, or of all targets."""

    # Resident bytes that were accessed in the last interval.
    accessed_bytes: int
    # The target's context, in a record of several contexts.
    context: NotRequired[str | None]
    # Idle bytes by minimum idle time.
    idle: list[IdleBytes]
    # All monitored addresses, with or without memory behind them.
    monitored_bytes: int
    # Command name, where the record has it.
    name: NotRequired[str | None]
    # `percent` of the known bytes have been idle for at most `value` nanoseconds.
    percentiles: list[Percentile]
    # Process id; 0 for physical memory, `null` where the record lacks it.
    pid: NotRequired[int | None]
    # Resident bytes of these addresses; `null` where the record's source cannot tell.
    resident_bytes: NotRequired[int | None]
    # RSS at about that time, where the record has it.
    rss_bytes: NotRequired[int | None]
    # Swapped-out bytes of these addresses; `null` where the record's source cannot tell.
    swapped_bytes: NotRequired[int | None]
    # Number of the target in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    time_ns: Nanos
    # Resident bytes of unknown state.
    unknown_bytes: int
    # Time for which the target had been watched by then.
    watched_ns: Nanos


class Idle(TypedDict):
    """The result."""

    # Number of targets that had ended before.
    ended_targets: int
    # The record that the report is based on.
    record: RecordInfo
    # `idle`.
    report: str
    # The idle memory of each target that existed at the time.
    targets: list[IdleMemory]
    # The sum, if there is more than one target. Memory that several targets map counts once where the record has samples of frames; in percentiles it counts for each target.
    total: NotRequired[IdleMemory | None]
    # Version of this JSON format.
    version: int


Address = int | str


HotRate = float


class MappingLabel(TypedDict):
    """The name of the mapping in a range."""

    # Name of the mapping, or of all mappings with that name, that overlap most.
    name: str
    # Number of other names that overlap.
    others: int


class MappingTotals(TypedDict):
    """Totals of the admitted regions of all mappings with one name."""

    # Touched bytes in regions that were accessed less often.
    cold_bytes: int
    # Touched bytes in regions that were accessed at the hot rate or more often.
    hot_bytes: int
    # Bytes that were not touched in the interval.
    idle_bytes: int
    # The name; `null` where no mapping is known.
    mapping: NotRequired[str | None]
    # Bytes of all monitored addresses, with or without memory behind them.
    monitored_bytes: int
    # Number of regions.
    regions: int
    # Resident bytes; `null` where the record's source cannot tell.
    resident_bytes: NotRequired[int | None]
    # Swapped-out bytes; `null` where the record's source cannot tell.
    swapped_bytes: NotRequired[int | None]
    # Bytes of unknown state.
    unknown_bytes: int


class RegionMemory(TypedDict):
    """Memory at a region's addresses, in bytes. Only resident memory is hot, cold or idle: holes and swapped-out pages are neither."""

    # Resident at the end of the interval, as `VmRSS` counts it.
    resident: int
    # Swapped out; not resident.
    swapped: int
    # Resident bytes that were touched at least once in the interval.
    touched: int
    # Resident bytes with an unknown access state.
    unknown: int


class AccessRow(TypedDict):
    """One region."""

    # Share of checks that found an access, 0 to 1; `null` if unknown.
    access_rate: NotRequired[float | None]
    # Age in aggregation intervals.
    age_intervals: int
    # Time since the region's access rate last changed much.
    age_ns: Nanos
    # One past the last.
    end: Address
    # Name of the mapping at the region; `null` where no mapping is known.
    mapping: NotRequired[MappingLabel | None]
    # Memory at the addresses, as `resident`, `touched`, `unknown` and `swapped` bytes; `null` where the record's source cannot tell.
    memory: NotRequired[RegionMemory | None]
    # Size of the region.
    size_bytes: int
    # First address.
    start: Address


class Totals(TypedDict):
    """Bytes of memory by temperature. The first four add up to `resident_bytes`, or to `monitored_bytes` where the record's source knows of addresses only."""

    # Touched bytes in regions that were accessed less often.
    cold_bytes: int
    # Touched bytes in regions that were accessed at the hot rate or more often.
    hot_bytes: int
    # Bytes that were not touched in the interval.
    idle_bytes: int
    # Bytes of all monitored addresses, with or without memory behind them.
    monitored_bytes: int
    # Resident bytes; `null` where the record's source cannot tell.
    resident_bytes: NotRequired[int | None]
    # Swapped-out bytes; `null` where the record's source cannot tell.
    swapped_bytes: NotRequired[int | None]
    # Bytes of unknown state.
    unknown_bytes: int


class AccessTable(TypedDict):
    """The regions of one snapshot."""

    # The target's context, in a record of several contexts.
    context: NotRequired[str | None]
    # End of the snapshot's interval.
    end_ns: Nanos
    # The access rate from which bytes are hot.
    hot_rate: HotRate
    # Totals by mapping, the one with the most memory first. A region that lies in several mappings counts for the one that holds most of it.
    mappings: list[MappingTotals]
    # Command name, where the record has it.
    name: NotRequired[str | None]
    # Number of checks of each region.
    nr_samples: int
    # Process id; 0 for physical memory, `null` where the record lacks it.
    pid: NotRequired[int | None]
    # The regions, filtered, sorted and limited.
    regions: list[AccessRow]
    # Number of regions that the filters admit.
    regions_admitted: int
    # Number of regions of the snapshot.
    regions_total: int
    # Number of the snapshot, counting the target's from 0.
    snapshot: int
    # Start of the snapshot's interval.
    start_ns: Nanos
    # Number of the target in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    # Bytes by temperature of the admitted regions.
    totals: Totals


class Access(TypedDict):
    """The requested snapshots together; `isotherm report access` writes them one by one."""

    # The record that the report is based on.
    record: RecordInfo
    # `access`.
    report: str
    # The requested snapshots.
    snapshots: list[AccessTable]
    # Version of this JSON format.
    version: int


class CellArrays(TypedDict):
    access_rate: list[float | None]
    age_ns: list[int]
    column: list[int]
    row: list[int]


class HeatmapRow(TypedDict):
    """The addresses of a row."""

    # Bytes on the axis.
    bytes: int
    # First address behind the range.
    end: Address
    # The last known mapping at these addresses.
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
    # Number of rows.
    rows: int
    # Bytes on the axis: the addresses without the gaps that were cut out unmarked.
    shown_bytes: int
    # First byte.
    start: int


class TargetHeatmap(TypedDict):
    """The heatmap of one target. In JSON, `cells` holds parallel arrays, with an entry for every cell that was monitored: `row`, `column`, `access_rate` (`null`: unknown) and `age_ns`. Cells that are not listed are unmapped."""

    # Cells row by row, each row from the earliest time on.
    cells: CellArrays
    # The target's context, in a record of several contexts.
    context: NotRequired[str | None]
    # Command name, where the record has it.
    name: NotRequired[str | None]
    # Process id; 0 for physical memory, `null` where the record lacks it.
    pid: NotRequired[int | None]
    # Rows, from the lowest address up.
    rows: list[HeatmapRow]
    # Neighbouring rows between gaps, from the lowest address up.
    segments: list[Segment]
    # Number of the target in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]


class Heatmap(TypedDict):
    """The result."""

    # Time per column.
    column_ns: float
    # Number of columns.
    columns: int
    # The record that the report is based on.
    record: RecordInfo
    # `heatmap`.
    report: str
    # Start of the first column.
    start_ns: Nanos
    # The targets, the largest first.
    targets: list[TargetHeatmap]
    # Number of smaller targets that were left out.
    targets_left_out: int
    # Version of this JSON format.
    version: int


class ChargedMemory(TypedDict):
    """A control group's charge."""

    # Anonymous memory.
    anonymous: NotRequired[int | None]
    # The same of files.
    file_refaults: NotRequired[int | None]
    # Directory of the group.
    group: str
    # Memory of the kernel: slab, page tables, stacks, sockets, and others.
    kernel: NotRequired[int | None]
    # Part of it that the kernel frees when memory is short: slab of files and directories (version 2).
    kernel_reclaimable: NotRequired[int | None]
    # Part of the page cache and of shared memory that processes map, of whichever group.
    mapped: NotRequired[int | None]
    # Page cache, mapped or not; without shared memory.
    page_cache: NotRequired[int | None]
    # Greatest `total` since the group began, or since this was reset (`memory.peak`).
    peak: NotRequired[int | None]
    # Shared memory: tmpfs, memfd, System V.
    shared: NotRequired[int | None]
    # Swapped-out memory.
    swap: NotRequired[int | None]
    # Pages of 4 KiB of anonymous and shared memory that were read back so far, after they had been reclaimed.
    swap_refaults: NotRequired[int | None]
    # All memory, without swap.
    total: NotRequired[int | None]


class NeededMemory(TypedDict):
    """The memory that the targets need at an allowed loss, with swap for the rest; from page scans."""

    # The estimate.
    bytes: int
    # Upper bound.
    high_bytes: int
    # Lower bound.
    low_bytes: int
    # The allowed loss, as a share of the program's time.
    max_slowdown: float
    # All memory at its peak.
    peak_bytes: int


class Reclaim(TypedDict):
    """The memory that the preset `prcl` would page out at the end of the record."""

    # The largest amount of bytes; `null` if nothing was watched for the idle time.
    bytes: NotRequired[int | None]
    # The minimum idle time.
    idle_for_ns: Nanos
    # The bytes as a share of the resident bytes, 0 to 1.
    share: NotRequired[float | None]
    # Bytes with this idle time that cannot be paged out: locked, mapped several times or by several processes, or a device's.
    unreclaimable_bytes: int


class MappingOverview(TypedDict):
    """All mappings of a target with one name."""

    # The target's context, in a record of several contexts.
    context: NotRequired[str | None]
    # Resident bytes that were idle for `IDLE` or longer.
    idle_bytes: int
    # The name.
    mapping: str
    # Command name, where the record has it.
    name: NotRequired[str | None]
    # Process id; 0 for physical memory, `null` where the record lacks it.
    pid: NotRequired[int | None]
    # Resident bytes; `null` where the monitor cannot tell: then idle bytes are bytes of addresses.
    resident_bytes: NotRequired[int | None]
    # Number of the target in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    # Idle bytes in unreclaimable mappings.
    unreclaimable_bytes: int


class TargetOverview(TypedDict):
    """A target, or the sum of all."""

    # The target's context, in a record of several contexts.
    context: NotRequired[str | None]
    # Bytes by minimum idle time.
    idle: list[IdleBytes]
    # Whether bytes of memory are known; otherwise idle and unknown bytes are bytes of addresses.
    is_exact: bool
    # Bytes of watched addresses, with or without memory behind them.
    monitored_bytes: int
    # Command name, where the record has it.
    name: NotRequired[str | None]
    # Process id; 0 for physical memory, `null` where the record lacks it.
    pid: NotRequired[int | None]
    # Resident bytes; RSS where the monitor cannot tell, `null` where the record has neither.
    resident_bytes: NotRequired[int | None]
    # Swapped-out bytes, from the same sources.
    swapped_bytes: NotRequired[int | None]
    # Number of the target in the record; `null` for the sum of all targets.
    target: NotRequired[TargetId | None]
    # Bytes of unknown state.
    unknown_bytes: int
    # Bytes idle for `IDLE` or longer in unreclaimable mappings; for all targets together, also those that several targets map.
    unreclaimable_bytes: int
    # Time for which the target was watched.
    watched_ns: Nanos
    # Mean working set, at most the resident bytes; `null` where every interval is unknown.
    working_set_bytes: NotRequired[int | None]


class Summary(TypedDict):
    """The result."""

    # Charge of the control group that was watched.
    charged: NotRequired[ChargedMemory | None]
    # Whether the record has samples of frames, so that memory that several targets map counts once.
    counts_pages_once: bool
    # Time from the beginning to the last snapshot.
    duration_ns: Nanos
    # Number of targets that had ended before.
    ended_targets: int
    # Mappings, the most idle bytes first.
    mappings: list[MappingOverview]
    # CPU time of the monitor, as a share of one CPU.
    monitor_cpu_share: NotRequired[float | None]
    # The memory that the targets need; `null` without page scans.
    needed: NotRequired[NeededMemory | None]
    # The suggested next command.
    next: str
    # The savings of paging out.
    reclaim: Reclaim
    # The record that the overview is based on.
    record: RecordInfo
    # `summary`.
    report: str
    # The targets, the largest first.
    targets: list[TargetOverview]
    # The sum of all targets. Memory that several targets map counts once if `Self::counts_pages_once`, else for each target.
    total: TargetOverview
    # The record's result in a sentence.
    verdict: str
    # Version of this JSON format.
    version: int


class Metric(TypedDict):
    """One quantity over time."""

    # Highest value.
    max_bytes: int
    # Mean over time.
    mean_bytes: int
    # Lowest value.
    min_bytes: int
    # Name of the quantity. A process has `rss`, `swap`, `resident` (as the monitor sees it, where it does), `working_set` and `unknown` (monitored, but of unknown state). The machine has `system_used` (total less free) and `system_unavailable` (total less available). The monitor has `monitor_rss`.
    name: str
    # The values over time.
    series: list[Point]


class Footprint(TypedDict):
    """The result."""

    # The quantities in the record; quantities that it lacks are absent.
    metrics: list[Metric]
    # The record that the report is based on.
    record: RecordInfo
    # `footprint`.
    report: str
    # The machine's memory, where the record has it.
    system_total_bytes: NotRequired[int | None]
    # The target, if only one was requested; otherwise sums are over all targets.
    target: NotRequired[TargetId | None]
    # Version of this JSON format.
    version: int


class ReclaimPoint(TypedDict):
    """The result of one threshold."""

    # Idle periods of at least the threshold, in pages.
    idle_pages: int
    # Pages read back per second.
    refaults_per_s: float
    # Saved memory in bytes times seconds.
    saved_byte_seconds: float
    # Saved memory, mean over time.
    saved_mean_bytes: int
    # Mean saved memory as a share of the mean resident memory.
    saved_share: float
    # Share of its time that the program would have lost by reading pages back.
    slowdown: float
    # `saved_share` without the first `threshold_ns` of the record, in which no page can reach the threshold. `null` if that is more than half of the record.
    steady_share: NotRequired[float | None]
    # Memory is reclaimed after being idle for this long.
    threshold_ns: Nanos


class ReclaimCurve(TypedDict):
    """The result."""

    # The second curve at some thresholds: a page waits longer, by the square of one plus the number of its idle times that ended.
    backoff_points: list[ReclaimPoint]
    # The smallest threshold within the limit; `null` without such a threshold or without a limit.
    chosen: NotRequired[ReclaimPoint | None]
    # Time from the first scan to the last.
    duration_ns: Nanos
    # The requested slowdown limit.
    max_slowdown: NotRequired[float | None]
    # One point for each length of idle time that occurred, from the shortest. The curve has no corner between two points. No point is shorter than a scan interval.
    points: list[ReclaimPoint]
    # The record that the report is based on.
    record: RecordInfo
    # Time that the program loses by a refault.
    refault_cost_ns: Nanos
    # The source of the refault cost.
    refault_cost_source: Literal["given", "measured", "default"]
    # `reclaim_curve`.
    report: str
    # Resident memory, mean over time.
    resident_mean_bytes: int
    # Mean interval of the scans, and the shortest idle time that they can show.
    scan_interval_ns: Nanos
    # Memory of unknown state, which is never reclaimed; mean over time.
    unknown_mean_bytes: int
    # Memory in unreclaimable mappings, which is never reclaimed; mean over time.
    unreclaimable_mean_bytes: int
    # Version of this JSON format.
    version: int


class Growth(TypedDict):
    """Growth of memory."""

    # Median growth in bytes an hour; negative if memory shrinks.
    bytes_per_hour: float
    # Upper end of the 95 % interval.
    high_bytes_per_hour: float
    # Lower end of the 95 % interval.
    low_bytes_per_hour: float


class ProgramSetting(TypedDict):
    """A program's own bound on its memory."""

    # The value to set, and the reason.
    advice: str
    # The present value, as the program was given it; `null` where nothing was found.
    now: NotRequired[str | None]
    # Process id.
    pid: int
    # The program, or what runs it.
    program: str
    # Name of the setting.
    setting: str


class RefaultCosts(TypedDict):
    """Time that the program loses by a refault, the page-out of another page included."""

    # A page of a file.
    file_ns: Nanos
    # Upper bound of the same.
    high_swap_ns: Nanos
    # Whether the time for swap was measured with the record.
    is_measured: bool
    # Lower bound of the same.
    low_swap_ns: Nanos
    # A page of anonymous or shared memory, from swap.
    swap_ns: Nanos


class SizeEstimate(TypedDict):
    """A number of bytes with bounds."""

    # The estimate.
    bytes: int
    # Upper bound.
    high_bytes: int
    # Lower bound.
    low_bytes: int


class SizePoint(TypedDict):
    """Loss at one limit, with swap."""

    # Limit of mapped memory.
    limit_bytes: int
    # Pages read back per second.
    refaults_per_s: float
    # Share of its time that the program would lose.
    slowdown: float


class SizeToday(TypedDict):
    """Present limits of the control group; `null` where there is no limit."""

    # `memory.high`.
    high_bytes: NotRequired[int | None]
    # `memory.max`, or version 1's `memory.limit_in_bytes`.
    limit_bytes: NotRequired[int | None]
    # `memory.swap.max`.
    swap_bytes: NotRequired[int | None]


class SizedMemory(TypedDict):
    """Memory by kind, at its peak."""

    # Mapped memory of files.
    file_peak_bytes: int
    # Mapped memory that other control groups are charged for, such as libraries that another program read first. Limits of this group do not count it; `null` where that is not known.
    foreign_bytes: NotRequired[int | None]
    # Kernel memory of the control group; `null` where no group was watched.
    kernel_peak_bytes: NotRequired[int | None]
    # Part of it that the kernel frees when memory is short, when it was largest; `null` where that is not known.
    kernel_reclaimable_bytes: NotRequired[int | None]
    # Mapped memory, mean over time.
    mapped_mean_bytes: int
    # Mapped memory at its peak.
    mapped_peak_bytes: int
    # All memory at its peak: the control group's charge, or what processes map.
    peak_bytes: int
    # Mapped memory that only swap can hold: anonymous and shared memory.
    swap_backed_peak_bytes: int
    # Swapped-out memory at its peak. It counts as not needed.
    swapped_peak_bytes: int
    # Mapped memory whose use is unknown, mean over time. It counts as needed.
    unknown_mean_bytes: int
    # The part of it that is needed; `null` where its ages are not known.
    unmapped_needed: NotRequired[SizeEstimate | None]
    # Page cache that is charged to the control group and not mapped, at its peak.
    unmapped_peak_bytes: NotRequired[int | None]
    # Anonymous memory of the control group that no scan saw, at its peak: of processes that end before. It counts as needed while it is there; `null` where no whole group was watched.
    unseen_peak_bytes: NotRequired[int | None]


class TriedLimit(TypedDict):
    """A limit that was tried."""

    # Whether the limit is enough: it was reached, the loss stayed within the allowed share, and the group did enough to show it.
    fits: bool
    # The limit of the control group.
    limit_bytes: int
    # Major faults per second.
    major_faults_per_s: float
    # Mean number of threads that ran at once.
    nr_running: float
    # Time over which this was measured, in seconds.
    seconds: float
    # Share of its time that the group lost.
    slowdown: float
    # Memory in use at the end of the trial.
    used_bytes: int


class Verified(TypedDict):
    """Limits that were tried on the running group."""

    # Limit that was left in place; `null`: what was set before was set again.
    applied_bytes: NotRequired[int | None]
    # The reason why they ended.
    end: Literal["found", "never_fits", "stopped", "ended", "idle", "enough"]
    # The least limit that fits; `null` if none does.
    least_bytes: NotRequired[int | None]
    # The trials, in their order.
    trials: list[TriedLimit]


class SizeAdvice(TypedDict):
    """The numbers to set."""

    # `memory.high`: above it, the kernel reclaims, and the program waits for that.
    high: SizeEstimate
    # `memory.max`, the limit of a container: above it, the kernel kills.
    limit: SizeEstimate
    # Memory that the program needs at the allowed loss: the request of a container.
    request: SizeEstimate
    # Swap that holds the rest.
    swap: SizeEstimate


class Size(TypedDict):
    """The result."""

    # Cost of refaults.
    costs: RefaultCosts
    # Time from the first scan to the last.
    duration_ns: Nanos
    # Memory that appeared during the record, and was not used in its last quarter.
    grown_idle_bytes: int
    # Trend of mapped memory; `null` if the record is too short.
    growth: NotRequired[Growth | None]
    # Whether most of the memory appeared during the record.
    has_seen_start: bool
    # Size of the machine's swap; `null` where the record does not say it.
    machine_swap_bytes: NotRequired[int | None]
    # The loss that the user allows, as a share of the program's time.
    max_slowdown: float
    # Memory by kind.
    memory: SizedMemory
    # Names of the targets, each once.
    names: list[str]
    # Mean number of threads that ran at once. A refault delays one of them.
    nr_running: float
    # Time after the beginning at which mapped memory was at its peak.
    peak_at_ns: Nanos
    # Loss by limit, from the least limit.
    points: list[SizePoint]
    # The share of its time that the program lost while it was watched, by reading back what had been reclaimed. The kernel counts such reads by control group; `null` without one.
    present_slowdown: NotRequired[float | None]
    # Bounds that programs have themselves, of what runs now.
    programs: list[ProgramSetting]
    # The record that the report is based on.
    record: RecordInfo
    # `size`.
    report: str
    # Price of what `request` is below the peak, for a month; `null` without a price.
    saved_per_month: NotRequired[float | None]
    # Mean interval of scans.
    scan_interval_ns: Nanos
    # Present limits, if a control group was watched.
    today: NotRequired[SizeToday | None]
    # Watch for at least this long: if all idle memory is then read back once, the loss is what is allowed.
    trusted_after_ns: Nanos
    # Limits that were tried; `null` if none was asked for.
    verified: NotRequired[Verified | None]
    # Version of this JSON format.
    version: int
    # The numbers to set where swap takes what does not fit.
    with_swap: SizeAdvice
    # The numbers to set without swap: only memory of files can be reclaimed.
    without_swap: SizeAdvice


class Finding(TypedDict):
    """An error or a warning about a configuration."""

    column: NotRequired[int | None]
    line: NotRequired[int | None]
    path: str
    problem: str
    severity: str


class Check(TypedDict):
    """A result with its version."""

    contexts: int
    findings: list[Finding]
    # Parts that this machine cannot run; the configuration cannot be run here.
    not_here: list[str]
    schemes: int
    version: int
    # Obstacles on this machine that do not prevent a run: no swap, a missing control group.
    warnings: list[str]


class Coarse(TypedDict):
    """A search on a sample of the blocks, whose best settings are then replayed in full."""

    # Number of points replayed on the sample.
    nr_tried: int
    # One block in this many was replayed.
    one_in: int


class Estimate(TypedDict):
    """A number and the bounds between which it is taken to lie; without bounds where its uncertainty was not determined."""

    # Upper bound; `null`: not known.
    high: NotRequired[float | None]
    # Lower bound; `null`: not known.
    low: NotRequired[float | None]
    # Predicted value.
    value: float


class LiveRun(TypedDict):
    """Measurements of a live run."""

    # CPU time of acting; `None` without schemes.
    acting_cpu_seconds: NotRequired[float | None]
    # Number of times that the guard stopped the schemes.
    guard_stops: NotRequired[int | None]
    # Mean resident memory, bytes.
    resident_mean_bytes: float
    # Seconds that were measured.
    seconds: float
    # Seconds for a unit of the program's work: for all of it, unless the program reports its throughput.
    seconds_of_work: float
    # `Settings::key`(crate::Settings::key); `None` without schemes.
    settings: NotRequired[str | None]


class MemoryLimit(TypedDict):
    """Maximum resident memory on average."""

    bytes: NotRequired[int]
    share: NotRequired[float]


class Prediction(TypedDict):
    """Prediction of a program under schemes, from a replay. Means are over the program's running time."""

    # CPU time of acting, seconds.
    acting_cpu_seconds: Estimate
    # Mean memory on nodes beyond the first, bytes.
    far_mean_bytes: float
    # Number of times that the guard stopped the schemes.
    guard_stops: int
    # Mean memory in huge pages, bytes.
    huge_mean_bytes: float
    # CPU time of watching, seconds.
    monitor_cpu_seconds: float
    # Record length that `steady_share` needs, if the replayed record is too short.
    needed_ns: NotRequired[Nanos | None]
    # Mean memory that compressed swap takes, bytes.
    pool_mean_bytes: float
    # Number of pages that were accessed while they were paged out.
    refaults: int
    # Resident memory over time, bytes: means of equal parts of the program's time.
    resident_bytes: list[int]
    # Mean resident memory on the first node, bytes; a machine with one node has all memory there.
    resident_mean_bytes: float
    # Mean memory saved, bytes: resident without schemes, less `resident_mean_bytes`; negative if more is resident.
    saved_mean_bytes: float
    # `saved_mean_bytes` as a share of the memory resident without schemes.
    saved_share: Estimate
    # Seconds from the program's start to its end, without its own first faults.
    seconds: float
    # Additional running time against the program without Isotherm, as a share of that time.
    slowdown: Estimate
    # `saved_share` without the beginning, in which no memory could be idle for the schemes' minimum age; `null` if that is more than half of the time, or not known.
    steady_share: NotRequired[float | None]
    # Mean memory that is paged out, bytes, before compression.
    swapped_mean_bytes: float
    # `true` if the program was killed because memory ran out.
    was_killed: bool


class Prices(TypedDict):
    """Prices of a month, in any one currency. A price that is not given is 0."""

    # Price of a CPU: the time of acting and watching, and the additional running time of the program.
    cpu: float
    # Price of a GiB on other nodes.
    cxl: float
    # Price of a GiB on the first node: resident memory there, and the pool of compressed swap.
    dram: float


class Setting(TypedDict):
    """Value of one knob."""

    # Knob that is set.
    parameter: Literal["age", "size", "rate", "quota", "density", "waste", "hot-rate"]
    # Value as text.
    text: str
    unit: Literal["ns", "bytes", "permille"]
    value: Nanos | int


Settings = list[Setting]


class Trial(TypedDict):
    """A setting that was tried."""

    # Cost per month, if prices were given.
    cost_per_month: NotRequired[float | None]
    # DAMOOS' score of the prediction.
    damoos_score: float
    # Predicted results.
    prediction: Prediction
    # Values of the knobs.
    settings: Settings


class Tried(TypedDict):
    """A setting that was tried, in short."""

    # Memory saved, a share of what is resident without schemes.
    saved_share: Estimate
    # Values of the knobs, as text.
    settings: str
    # Additional running time against the program without Isotherm, as a share of that time.
    slowdown: Estimate


class Value(TypedDict):
    """A value of a knob."""

    unit: Literal["ns", "bytes", "permille"]
    value: Nanos | int


class Compared(TypedDict):
    """A run under schemes beside the replay's prediction."""

    # Memory saved as the replay predicted it, a share.
    predicted_saved_share: Estimate
    # Slowdown as the replay predicted it.
    predicted_slowdown: Estimate
    # The run.
    run: LiveRun
    # Memory saved against the runs without schemes before and after it: a share of their memory.
    saved_share: float
    # Values of the knobs.
    settings: Settings
    # Additional time for the same work against these runs, a share.
    slowdown: float


class Live(TypedDict):
    """Results of live runs, which correct the predictions of `super::Tuned`."""

    # Mean resident memory in these, bytes.
    base_resident_mean_bytes: float
    # Mean seconds for a unit of work in these.
    base_seconds_of_work: float
    # The runs under schemes, in the order in which they were made.
    compared: list[Compared]
    # The reason why there are no more runs.
    end: Literal["enough", "all_made", "stopped"]
    # Variation of a single run's memory, a share.
    noise_of_memory: float
    # Variation of a single run's time, a share.
    noise_of_time: float
    # Number of runs without schemes.
    nr_bases: int


class Objective(TypedDict):
    """Aim of a search, with its limits."""

    max_memory: NotRequired[MemoryLimit]
    max_slowdown: NotRequired[float]
    prices: NotRequired[Prices]
    seeks: Literal["memory", "slowdown", "damoos", "cost", "huge"]


class Parameter(TypedDict):
    """A knob and the values that are tried."""

    # Knob that is tuned.
    knob: Literal["age", "size", "rate", "quota", "density", "waste", "hot-rate"]
    # Values, from the least to the most; at least one.
    ladder: list[Value]


class Tune(TypedDict):
    """A result with its version."""

    # Prediction without schemes, watched as under them.
    base: Prediction
    # The search on a sample of the blocks that came first; `null` if there was none.
    coarse: NotRequired[Coarse | None]
    # The settings that no other beats in memory and time, from the least slowdown to the most.
    front: list[Trial]
    # The schemes as they were given; `null` if they are not in the space.
    given: NotRequired[Trial | None]
    # Whether the replays ran under the guard, as `isotherm run` does.
    is_guarded: bool
    # Results of live runs, by which all predictions above are corrected; `null` if there were none.
    live: NotRequired[Live | None]
    # The best setting beyond the limit, if none is within.
    nearest: NotRequired[Trial | None]
    # Maximum number of points replayed in full.
    nr_most: int
    # Number of points in the space.
    nr_points: int
    # Number of points replayed in full.
    nr_tried: int
    # Objective of the search.
    objective: Objective
    # Knobs that were tuned, and the values of each.
    parameters: list[Parameter]
    # Name of the program.
    program: str
    # The best setting within the limit; `null`: there is none.
    recommended: NotRequired[Trial | None]
    # Kind of this report: `tune`.
    report: str
    # Mean time between two scans.
    scan_interval_ns: Nanos
    # The objective in words.
    sought: str
    # Time from the first scan of the trace to the last.
    trace_duration_ns: Nanos
    # All settings that were tried, in the order of the space.
    tried: list[Tried]
    version: int
    # `true` if the search was stopped before its end.
    was_stopped: bool
    # Reason for the recommendation, in a sentence or two.
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

    # Time to clear the accessed bit of each page of the range.
    clear_page_ns: NotRequired[Measured | None]
    # Fixed time to clear the accessed bits of a range while the program runs, without its pages.
    clear_range_ns: NotRequired[Measured | None]
    # Time to collapse 2 MiB into a huge page.
    collapse_ns: NotRequired[Measured | None]
    # Bytes that compressed swap holds for each byte that it takes.
    compression_ratio: NotRequired[float | None]
    # Number of the program's pages that were paged out; 0: made-up content.
    content_pages: NotRequired[int]
    # CPUs of the machine.
    cpus: NotRequired[int]
    # Time of the first fault of a huge page.
    huge_fault_ns: NotRequired[Measured | None]
    # Kernel of the machine.
    kernel: NotRequired[str]
    # Time of a page's first fault.
    minor_fault_ns: NotRequired[Measured | None]
    # CPU time of acting per page, if pages are paged out one by one and the program sleeps.
    page_out_alone_ns: NotRequired[Measured | None]
    # The part of that time that the thread loses, 0 to 1.
    page_out_running_lost: NotRequired[Measured | None]
    # CPU time of acting per page, if pages are paged out one by one and a thread of the program runs.
    page_out_running_ns: NotRequired[Measured | None]
    # Part of that time that a running thread of the same program loses, 0 to 1.
    page_out_whole_lost: NotRequired[Measured | None]
    # CPU time of acting per page, if blocks of 2 MiB are paged out whole.
    page_out_whole_ns: NotRequired[Measured | None]
    # Time of the program to read one page back; in random order, so that caches help little.
    refault_ns: NotRequired[Measured | None]
    # Additional time of a page's next access after its accessed bit was cleared; in random order.
    set_again_ns: NotRequired[Measured | None]
    # Swap device that pages were paged out to (`zram (lz4)`); `None` if there was no swap.
    swap: NotRequired[str | None]
    # Seconds that the measurements took.
    took_seconds: NotRequired[float]
    version: int
