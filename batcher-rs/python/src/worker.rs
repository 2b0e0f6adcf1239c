//! The worker's front for Python.

use crate::runner::PyRunner;
use headrace_front::config::FrontConfig;
use headrace_front::worker::{self, Catalog, ModelSpec, Runner};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Duration;

/// How long a replaced version may go on with what it has.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads a snapshot.
pub(crate) fn read<T: serde::de::DeserializeOwned>(what: &str, json: &str) -> PyResult<T> {
    serde_json::from_str(json).map_err(|error| PyValueError::new_err(format!("{what}: {error}")))
}

/// A length of time from a Python number of seconds.
pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| PyValueError::new_err(format!("{value} s: {error}")))
}

/// A worker's port: `ModelInfer` and `ModelStreamInfer` are answered in Rust, everything else is relayed.
#[pyclass(frozen, module = "headrace_batcher")]
pub(crate) struct WorkerFront {
    front: worker::WorkerFront,
}

#[pymethods]
impl WorkerFront {
    #[new]
    fn new(config: &str) -> PyResult<Self> {
        let config: FrontConfig = read("front config", config)?;
        Ok(Self {
            front: worker::WorkerFront::bind(config)?,
        })
    }

    #[getter]
    fn address(&self) -> String {
        self.front.address().to_string()
    }

    fn start(&self) -> PyResult<()> {
        Ok(self.front.start()?)
    }

    fn install(&self, py: Python<'_>, model: &str, executors: Vec<Py<PyAny>>) -> PyResult<()> {
        let spec: ModelSpec = read("model", model)?;
        if executors.is_empty() {
            return Err(PyValueError::new_err(format!(
                "model '{}' needs at least one executor",
                spec.name
            )));
        }
        let runners = executors
            .into_iter()
            .map(|executor| Ok(Box::new(PyRunner::new(py, executor, &spec)?) as Box<dyn Runner>))
            .collect::<PyResult<Vec<_>>>()?;
        Ok(py.detach(|| self.front.install(&spec, runners, PATIENCE))?)
    }

    fn remove(&self, py: Python<'_>, name: &str, version: &str, timeout_s: f64) -> PyResult<bool> {
        let patience = seconds(timeout_s)?;
        Ok(py.detach(|| self.front.remove(name, version, patience)))
    }

    fn set_catalog(&self, py: Python<'_>, catalog: &str) -> PyResult<()> {
        let catalog: Catalog = read("catalog", catalog)?;
        py.detach(|| self.front.set_catalog(catalog));
        Ok(())
    }

    fn statistics(&self, py: Python<'_>) -> String {
        py.detach(|| self.front.statistics())
    }

    fn drain(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let limit = seconds(timeout_s)?;
        Ok(py.detach(|| self.front.drain(limit)))
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.front.stop());
    }
}
