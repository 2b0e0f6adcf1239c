//! `headrace_batcher`: the hot path as Python sees it. Python hands over immutable snapshots as JSON and one callable per
//! model instance; it is entered once a batch, and never with a lock held.

mod batch;
mod gateway;

mod load;
mod outputs;
mod runner;
mod worker;

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;

create_exception!(
    headrace_batcher,
    InvalidInputError,
    PyValueError,
    "The model cannot work on these values. Its text reaches the caller, as INVALID_ARGUMENT."
);

/// Every reason of the front's error table and the number of its gRPC code.
#[pyfunction]
fn status_table() -> BTreeMap<&'static str, u8> {
    headrace_front::status::TABLE
        .iter()
        .map(|reason| (reason.as_str(), reason.code() as u8))
        .collect()
}

/// The version of this extension.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Fills the extension module.
#[pymodule]
fn headrace_batcher(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add(
        "InvalidInputError",
        module.py().get_type::<InvalidInputError>(),
    )?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<batch::Input>()?;
    module.add_class::<worker::WorkerFront>()?;
    module.add_class::<gateway::GatewayFront>()?;
    module.add_function(wrap_pyfunction!(load::load_test, module)?)?;
    module.add_function(wrap_pyfunction!(status_table, module)?)?;
    module.add_function(wrap_pyfunction!(version, module)?)
}
