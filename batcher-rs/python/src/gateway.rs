//! The gateway's front for Python.

use crate::worker::{read, seconds};
use headrace_front::config::FrontConfig;
use headrace_front::gateway;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A gateway's port: the hot methods are routed and forwarded in Rust, everything else is relayed.
#[pyclass(frozen, module = "headrace_batcher")]
pub(crate) struct GatewayFront {
    front: gateway::GatewayFront,
}

#[pymethods]
impl GatewayFront {
    #[new]
    fn new(config: &str) -> PyResult<Self> {
        let config: FrontConfig = read("front config", config)?;
        Ok(Self {
            front: gateway::GatewayFront::bind(config)?,
        })
    }

    #[getter]
    fn address(&self) -> String {
        self.front.address().to_string()
    }

    fn start(&self) -> PyResult<()> {
        Ok(self.front.start()?)
    }

    fn set_routes(&self, py: Python<'_>, table: &str) -> PyResult<()> {
        py.detach(|| self.front.set_routes(table))
            .map_err(|error| PyValueError::new_err(format!("route table: {error}")))
    }

    fn report_queue(&self, replica: &str, rows: u64) {
        self.front.report_queue(replica, rows);
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
