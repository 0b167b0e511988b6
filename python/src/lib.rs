//! The Python package: records, reports, simulations and live sessions, for pandas, polars, pyarrow, DuckDB and other
//! readers of Arrow.
//!
//! The package has no logic of its own: each class wraps one of a library crate (`record`, `report`, `config`,
//! `session`, `eval`) and uses its terms. Work is done without the interpreter's lock, and ends at ctrl-C. Sizes,
//! durations and shares are read as on the command line.

#![expect(clippy::too_many_arguments, reason = "keywords of Python")]

mod arrow;
#[cfg(feature = "live")]
mod calibrate;
mod errors;
mod interrupt;
#[cfg(not(feature = "live"))]
mod not_live;
mod quantity;
mod record;
mod replays;
mod report;
#[cfg(feature = "live")]
mod session;
mod simulate;
mod space;
mod spec;
mod table;
mod tune;

#[cfg(not(feature = "live"))]
use not_live as calibrate;
#[cfg(not(feature = "live"))]
use not_live as session;
use pyo3::prelude::*;
use pyo3::wrap_pyfunction;

/// The compiled part of the package `isotherm`.
#[pymodule]
fn _isotherm(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::add_to(module)?;
    module.add_class::<record::Record>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<report::Report>()?;
    module.add_class::<spec::Scheme>()?;
    module.add_class::<spec::SessionSpec>()?;
    module.add_class::<space::Space>()?;
    module.add_class::<replays::Replays>()?;
    module.add_class::<replays::Stop>()?;
    module.add_class::<tune::Tuned>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<session::Snapshot>()?;
    module.add_function(wrap_pyfunction!(spec::check, module)?)?;
    module.add_function(wrap_pyfunction!(spec::presets, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::reclaim_curve, module)?)?;
    module.add_function(wrap_pyfunction!(tune::tune, module)?)?;
    module.add_function(wrap_pyfunction!(replays::_sweep_task, module)?)?;
    module.add_function(wrap_pyfunction!(calibrate::_calibrate, module)?)?;
    module.add_function(wrap_pyfunction!(
        calibrate::_be_calibration_subject,
        module
    )?)?;
    module.add_function(wrap_pyfunction!(session::_close_sessions, module)?)
}
