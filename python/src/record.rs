//! Records: their tables, and reports about them.

use std::fs::File;
use std::path::PathBuf;

use isotherm_engine::{Nanos, TargetId};
use isotherm_record::convert::Format;
use isotherm_record::input::RecordFile;
use isotherm_record::{Header, Item, printable, table};
use isotherm_render::page as html;
use isotherm_report::access::{HotRate, OptionalBounds, SortBy, Which};
use isotherm_report::read::{self, ReadExtent};
use isotherm_report::{
    Access, AccessOptions, Accumulate, Footprint, Heatmap, HeatmapOptions, Idle, IdleOptions,
    ReclaimCurve, ReclaimCurveOptions, Scope, Wss, WssOptions,
};
use isotherm_size::{Size, SizeOptions, SizedSummary};
use isotherm_view::page::{self, Data};
use isotherm_view::{Document, Finished};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::errors::{Doing, raise, warn};
use crate::interrupt::Interrupt;
use crate::quantity::{Bytes, Share, Time};
use crate::report::{Report, Whole, parsed};
use crate::table::{Table, reader};

/// An open record: one of Isotherm's, a Parquet file made of one, or a recording of damo.
#[pyclass(frozen, module = "isotherm")]
pub(crate) struct Record {
    /// The path that was opened.
    #[pyo3(get)]
    path: PathBuf,
    pub(crate) file: RecordFile,
    salvages: bool,
}

impl Record {
    /// Passes every item to `take`, without the interpreter's lock. Unless `by_page`, page scans are passed as regions.
    /// Warns if the record is damaged or cut.
    fn each(
        &self,
        py: Python<'_>,
        scope: Scope,
        by_page: bool,
        mut take: impl FnMut(&Item) + Send,
    ) -> PyResult<ReadExtent> {
        let mut reader = reader(&self.file, false)?;
        if !by_page {
            reader = reader.replay_pages();
        }
        let extent = py.detach(|| {
            let mut interrupt = Interrupt::new();
            let extent = read::each(&mut reader, scope, |item| {
                take(item);
                interrupt.check().map_err(anyhow::Error::from)
            });
            extent.map(|extent| (extent, reader.truncated()))
        });
        let (extent, truncated) = extent.map_err(|error| self.failed(error))?;
        let name = self.file.name();
        let damage = extent.record_end().damaged.iter();
        let damage =
            damage.map(|damage| format!("{name}: {damage}; the report is of what comes before"));
        let cut = truncated.iter().map(|cut| format!("{name}: {cut}"));
        warn(py, &damage.chain(cut).collect::<Vec<_>>())?;
        Ok(extent)
    }

    fn accumulate<A: Accumulate + Send>(
        &self,
        py: Python<'_>,
        scope: Scope,
        by_page: bool,
        make: impl FnOnce(&Header) -> A,
    ) -> PyResult<(A::Report, ReadExtent)> {
        let mut report = make(reader(&self.file, false)?.header());
        let extent = self.each(py, scope, by_page, |item| report.push(item))?;
        let report = report.finish_at(extent.record_end().clone());
        Ok((report, extent))
    }

    /// Returns the bytes of the file if it is a record of page scans in Isotherm's own format, which the page can
    /// replay.
    fn trace(&self) -> Option<Vec<u8>> {
        let is_trace = reader(&self.file, false).ok()?.is_page_record();
        let format = File::open(&self.path).and_then(Format::detect_in).ok()?;
        let is_ours = is_trace && format == Ok(Format::Isotherm);
        if !is_ours {
            return None;
        }
        page::trace(&self.path).ok()?
    }

    fn failed(&self, error: impl Into<anyhow::Error>) -> PyErr {
        let context = format!("cannot read {}", self.file.name());
        raise(error.into().context(context), Doing::Reading)
    }

    fn table(&self, which: table::RecordTable) -> PyResult<Table> {
        Table::new(self.file.clone(), which, self.salvages)
    }
}

fn scope(target: Option<u32>, start: Option<Time>, stop: Option<Time>) -> Scope {
    Scope {
        target: target.map(TargetId),
        from: start.map(|Time(time)| time),
        to: stop.map(|Time(time)| time),
    }
}

fn require(extent: &ReadExtent, scope: &Scope, at: Option<Nanos>) -> PyResult<()> {
    let there = extent.require(scope, at);
    there.map_err(|nothing| raise(nothing, Doing::Reading))
}

fn no_page_scans() -> PyErr {
    let error = anyhow::anyhow!(
        "the record holds no page scans in this part; make one with `isotherm record --pages`"
    );
    raise(error, Doing::Reading)
}

fn percentiles_or(given: Option<Vec<f64>>, default: Vec<f64>) -> PyResult<Vec<f64>> {
    let given = given.unwrap_or(default);
    if given.iter().all(|percent| (0.0..=100.0).contains(percent)) {
        Ok(given)
    } else {
        Err(PyValueError::new_err(
            "a percentile is a number of 0 to 100",
        ))
    }
}

fn which(snapshot: Option<&Bound<'_, PyAny>>, at: Option<Time>) -> PyResult<Which> {
    const WANTED: &str = "a snapshot is a number from 0, 'last' or 'all'; or say when, by `at`";
    let snapshot = match (snapshot, at) {
        (None, Some(Time(at))) => return Ok(Which::At(at)),
        (None, None) => return Ok(Which::Last),
        (Some(_), Some(_)) => return Err(PyValueError::new_err(WANTED)),
        (Some(snapshot), None) => snapshot,
    };
    if let Ok(number) = snapshot.extract() {
        return Ok(Which::Number(number));
    }
    match snapshot.extract::<String>().as_deref() {
        Ok("last") => Ok(Which::Last),
        Ok("all") => Ok(Which::All),
        _ => Err(PyValueError::new_err(WANTED)),
    }
}

fn sort_by(name: &str) -> PyResult<SortBy> {
    let found = SortBy::ALL.into_iter().find(|by| by.name() == name);
    found.ok_or_else(|| {
        PyValueError::new_err(format!(
            "'{name}' is nothing to sort by; there are address, size, rate, age and mapping"
        ))
    })
}

#[pymethods]
impl Record {
    /// Opens a record: `.isotherm`, Parquet made of one, or a recording of damo. A recording of damo is JSON,
    /// compressed or not, or the output of `perf script`. It is first converted to a temporary file.
    ///
    /// `salvage`: a table ends without an error where damage begins, and its `incomplete` states the damage. Without
    /// `salvage`, damage raises an exception. A record that was merely cut is read up to its last whole batch in either
    /// case.
    ///
    /// Raises RecordError if the file cannot be read. Warns of everything that had to be assumed or left out.
    #[classmethod]
    #[pyo3(signature = (path, *, salvage=false))]
    fn open(
        _class: &Bound<'_, PyType>,
        py: Python<'_>,
        path: PathBuf,
        salvage: bool,
    ) -> PyResult<Self> {
        let opened = py.detach(|| RecordFile::open(&path));
        let file = opened.map_err(|error| raise(error, Doing::Reading))?;
        // Fails here, not in the first report, if the file is no record.
        reader(&file, salvage)?;
        warn(py, file.notes())?;
        Ok(Self {
            path,
            file,
            salvages: salvage,
        })
    }

    /// The header of the record: machine, kernel, command, intervals (in nanoseconds) and settings.
    #[getter]
    fn header(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let reader = reader(&self.file, false)?;
        let json = serde_json::to_string(reader.header()).map_err(|error| self.failed(error))?;
        parsed(py, &json)
    }

    /// Whether its rows are single pages (`isotherm record --pages`).
    #[getter]
    fn is_by_page(&self) -> PyResult<bool> {
        Ok(reader(&self.file, false)?.is_page_record())
    }

    /// A row for each snapshot: number, interval, target and the totals of its regions, in bytes. `resident` and
    /// `swapped` are null where the source knows of addresses only; the other columns then count addresses.
    fn snapshots(&self) -> PyResult<Table> {
        self.table(table::RecordTable::Snapshots)
    }

    /// A row for each region of each snapshot, with the columns of docs/reference/record.md; page scans become regions.
    /// `nr_accesses` is null, not 0, for a region whose accesses are unknown.
    fn regions(&self) -> PyResult<Table> {
        self.table(table::RecordTable::Regions)
    }

    /// A row for each block of 512 pages of each page scan, as bitmaps of 64 bytes: bit `i % 64` of the little-endian
    /// word `i / 64` is page `i`. Raises RecordError where the record has no page scans.
    fn pages(&self) -> PyResult<Table> {
        self.table(table::RecordTable::Pages)
    }

    /// A row for each item between snapshots: its time, its kind, its target if it has one, the number of snapshots
    /// before it, and its content as JSON (docs/schema/record-item.json).
    fn items(&self) -> PyResult<Table> {
        self.table(table::RecordTable::Items)
    }

    /// The working set: bytes in use, as percentiles and over time. A region is in use if at least the share `min_rate`
    /// of its checks found an access; the default is any access. The table has a row for each step of time.
    #[pyo3(signature = (*, target=None, start=None, stop=None, min_rate=None, percentiles=None))]
    fn wss(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
        min_rate: Option<Share>,
        percentiles: Option<Vec<f64>>,
    ) -> PyResult<Report> {
        let scope = scope(target, start, stop);
        let options = WssOptions {
            min_rate: min_rate.map(|Share(rate)| rate as f32),
            percentiles: percentiles_or(percentiles, WssOptions::default().percentiles)?,
        };
        let make = |header: &Header| Wss::new(header, scope, options);
        let (report, extent) = self.accumulate(py, scope, false, make)?;
        require(&extent, &scope, None)?;
        Ok(Report::new("wss", Whole(report)))
    }

    /// The amount of idle memory and its idle time, at the end of the record or at `at`, a time since its beginning.
    /// `at_least`: the idle times to count bytes for. A value is None if the record is too short for it.
    #[pyo3(signature = (*, target=None, start=None, stop=None, at=None, at_least=None, percentiles=None))]
    fn idle(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
        at: Option<Time>,
        at_least: Option<Vec<Time>>,
        percentiles: Option<Vec<f64>>,
    ) -> PyResult<Report> {
        let scope = scope(target, start, stop);
        let default = IdleOptions::default();
        let options = IdleOptions {
            at: at.map(|Time(at)| at),
            at_least: at_least.map_or(default.at_least, |times| {
                times.into_iter().map(|Time(time)| time).collect()
            }),
            percentiles: percentiles_or(percentiles, default.percentiles)?,
        };
        let at = options.at;
        let make = |header: &Header| Idle::new(header, scope, options);
        let (report, extent) = self.accumulate(py, scope, false, make)?;
        require(&extent, &scope, at)?;
        Ok(Report::new("idle", Whole(report)))
    }

    /// The regions of a snapshot (`snapshot`: a number from 0, 'last' or 'all'; or `at` a time), with access rate, age,
    /// mapping and totals by temperature. All snapshots of a long record take much memory: `regions()` streams them.
    #[pyo3(signature = (*, target=None, start=None, stop=None, snapshot=None, at=None, sort="address", reverse=false,
        min_size=None, max_size=None, min_rate=None, max_rate=None, min_age=None, max_age=None, mapping=None,
        limit=None, hot=None))]
    fn access(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
        snapshot: Option<&Bound<'_, PyAny>>,
        at: Option<Time>,
        sort: &str,
        reverse: bool,
        min_size: Option<Bytes>,
        max_size: Option<Bytes>,
        min_rate: Option<Share>,
        max_rate: Option<Share>,
        min_age: Option<Time>,
        max_age: Option<Time>,
        mapping: Option<String>,
        limit: Option<usize>,
        hot: Option<Share>,
    ) -> PyResult<Report> {
        let scope = scope(target, start, stop);
        let rate = |share: Option<Share>| share.map(|Share(rate)| rate as f32);
        let options = AccessOptions {
            which: which(snapshot, at)?,
            sort: sort_by(sort)?,
            reverse,
            size: OptionalBounds {
                min: min_size.map(|Bytes(bytes)| bytes),
                max: max_size.map(|Bytes(bytes)| bytes),
            },
            rate: OptionalBounds::new(rate(min_rate), rate(max_rate)),
            age: OptionalBounds {
                min: min_age.map(|Time(time)| time),
                max: max_age.map(|Time(time)| time),
            },
            mapping,
            limit,
            hot_rate: rate(hot).map_or_else(HotRate::default, HotRate),
        };
        let mut access = Access::new(reader(&self.file, false)?.header(), scope, options);
        let mut tables = Vec::new();
        let extent = self.each(py, scope, false, |item| tables.extend(access.push(item)))?;
        require(&extent, &scope, at.map(|Time(at)| at))?;
        access.end(extent.record_end().clone());
        let report = access.finish_whole(tables);
        if report.snapshots.is_empty() {
            let error = anyhow::anyhow!(
                "no such snapshot in this part of the record; they are numbered from 0 for each target"
            );
            return Err(raise(error, Doing::Reading));
        }
        Ok(Report::new("access", report))
    }

    /// Access rate over time and address, on at most 512 `columns` of time and about `rows` of address for each target.
    /// The table has a row for each cell that was watched.
    #[pyo3(signature = (*, target=None, start=None, stop=None, columns=320, rows=160))]
    fn heatmap(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
        columns: usize,
        rows: usize,
    ) -> PyResult<Report> {
        let scope = scope(target, start, stop);
        if !(1..=10_000).contains(&columns) || !(1..=10_000).contains(&rows) {
            return Err(PyValueError::new_err(
                "columns and rows are from 1 to 10,000",
            ));
        }
        let options = HeatmapOptions {
            columns,
            rows,
            ..HeatmapOptions::default()
        };
        let make = |header: &Header| Heatmap::new(header, scope, options);
        let (report, extent) = self.accumulate(py, scope, false, make)?;
        require(&extent, &scope, None)?;
        Ok(Report::new("heatmap", Whole(report)))
    }

    /// The exact savings and costs of reclaiming memory after each idle time, for a record of page scans.
    /// `refault_cost`: the time that the program loses for each page that is read back. Its default is the cost
    /// measured with the record, else 7 us, as from zram. `max_slowdown` chooses the shortest idle time within it. The
    /// table has a row for each threshold.
    #[pyo3(signature = (*, target=None, start=None, stop=None, max_slowdown=None, refault_cost=None))]
    pub(crate) fn reclaim_curve(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
        max_slowdown: Option<Share>,
        refault_cost: Option<Time>,
    ) -> PyResult<Report> {
        let scope = scope(target, start, stop);
        let options = ReclaimCurveOptions {
            refault_cost: refault_cost.map(|Time(cost)| cost),
            max_slowdown: max_slowdown.map(|Share(share)| share),
        };
        let make = |header: &Header| ReclaimCurve::new(header, scope, options);
        let (curve, _) = self.accumulate(py, scope, true, make)?;
        let curve = curve.ok_or_else(no_page_scans)?;
        Ok(Report::new("reclaim_curve", Whole(curve)))
    }

    /// The record on one screen: memory use of each target, cold memory, and the savings of paging it out.
    #[pyo3(signature = (*, target=None, start=None, stop=None))]
    fn summary(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
    ) -> PyResult<Report> {
        let scope = scope(target, start, stop);
        let make = |header: &Header| SizedSummary::new(header, scope);
        let (summary, extent) = self.accumulate(py, scope, true, make)?;
        require(&extent, &scope, None)?;
        Ok(Report::new("summary", Whole(summary)))
    }

    /// The memory that the program needs: request, `memory.high` and limit of a container, and swap, each with bounds,
    /// for a record of page scans. `max_slowdown`: the loss that the program may have (default 1 %). `refault_cost`: the
    /// time that it loses for each page read back from swap (default: measured with the record, else 11 us);
    /// `file_refault_cost`: from a file (default 100 us). `dram_price`: of a GiB for a month.
    #[pyo3(signature = (*, target=None, start=None, stop=None, max_slowdown=None, refault_cost=None, file_refault_cost=None, dram_price=None))]
    fn size(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
        max_slowdown: Option<Share>,
        refault_cost: Option<Time>,
        file_refault_cost: Option<Time>,
        dram_price: Option<f64>,
    ) -> PyResult<Report> {
        let scope = scope(target, start, stop);
        let default = SizeOptions::default();
        let options = SizeOptions {
            max_slowdown: max_slowdown.map_or(default.max_slowdown, |Share(share)| share),
            swap_cost: refault_cost.map(|Time(cost)| cost),
            file_cost: file_refault_cost.map(|Time(cost)| cost),
            dram_price,
        };
        let make = |header: &Header| Size::new(header, scope, options);
        let (size, _) = self.accumulate(py, scope, true, make)?;
        let size = size.ok_or_else(no_page_scans)?;
        Ok(Report::new("size", Whole(size)))
    }

    /// Resident size, swap, working set and the machine's memory over time.
    #[pyo3(signature = (*, target=None, start=None, stop=None, min_rate=None))]
    fn footprint(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
        min_rate: Option<Share>,
    ) -> PyResult<Report> {
        let scope = scope(target, start, stop);
        let rate = min_rate.map(|Share(rate)| rate as f32);
        let make = |header: &Header| Footprint::new(header, scope, rate);
        let (footprint, _) = self.accumulate(py, scope, false, make)?;
        let missing = || anyhow::anyhow!("the record says nothing of memory use in this part");
        let report = footprint.ok_or_else(|| raise(missing(), Doing::Reading))?;
        Ok(Report::new("footprint", Whole(report)))
    }

    /// The page of the record: one HTML file that needs no network, as `isotherm report heatmap -o page.html` writes
    /// it.
    #[pyo3(signature = (*, target=None, start=None, stop=None))]
    fn page(
        &self,
        py: Python<'_>,
        target: Option<u32>,
        start: Option<Time>,
        stop: Option<Time>,
    ) -> PyResult<String> {
        let scope = scope(target, start, stop);
        let make = |header: &Header| Document::new(header, scope).with_curves(header, scope);
        let (shown, extent) = self.accumulate(py, scope, true, make)?;
        if shown.is_empty() {
            require(&extent, &scope, None)?;
        }
        let trace = if scope == Scope::default() {
            self.trace()
        } else {
            None
        };
        let page = py.detach(|| -> anyhow::Result<Vec<u8>> {
            let container = Finished::container(&[shown])?;
            let mut page = Vec::new();
            let data = Data::Inside {
                container: &container,
                trace: trace.as_deref(),
            };
            isotherm_view::page::write(data, &mut page)?;
            Ok(page)
        });
        let page = page.map_err(|error| self.failed(error))?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }

    fn __repr__(&self) -> String {
        format!("<isotherm.Record {}>", self.path.display())
    }

    fn _repr_html_(&self) -> PyResult<String> {
        let reader = reader(&self.file, false)?;
        let header = reader.header();
        let time = isotherm_engine::units::format_time;
        let mut facts = vec![
            ("machine", header.host.clone()),
            ("kernel", header.kernel.clone()),
            ("command", header.command.join(" ")),
            ("addresses", header.operations.clone()),
            ("written by", header.writer.clone()),
        ];
        if header.aggregation_interval > Nanos(0) {
            facts.push(("interval at first", time(header.aggregation_interval)));
        }
        let settings = header.settings.iter();
        facts.extend(settings.map(|(name, value)| (name.as_str(), value.clone())));
        let rows: Vec<Vec<String>> = facts
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| vec![printable(name).into_owned(), printable(value).into_owned()])
            .collect();
        let title = self.path.display().to_string();
        Ok(html::table(&title, "", &[], &rows))
    }

    /// Pickles the record by its path; unpickling opens the file again.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (PathBuf, bool))> {
        let open = py.import("isotherm")?.getattr("_open_record")?;
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        Ok((open, (path, self.salvages)))
    }
}
