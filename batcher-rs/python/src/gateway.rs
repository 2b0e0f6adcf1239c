//! The gateway's front for Python.

use crate::worker::{read, seconds};
use headrace_front::config::FrontConfig;
use headrace_front::gateway::Gateway;
use headrace_front::server::{Server, Shared};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// A gateway's port: the hot methods are routed and forwarded in Rust, everything else is relayed.
#[pyclass(frozen, module = "headrace_batcher")]
pub(crate) struct GatewayFront {
    gateway: Arc<Gateway>,
    shared: Arc<Shared>,
    address: String,
    server: Mutex<Server>,
}

#[pymethods]
impl GatewayFront {
    #[new]
    fn new(config: &str) -> PyResult<Self> {
        let config: FrontConfig = read("front config", config)?;
        let gateway = Gateway::new(&config);
        let server = Server::bind(config)?;
        Ok(Self {
            gateway,
            shared: Arc::clone(server.shared()),
            address: server.address().to_string(),
            server: Mutex::new(server),
        })
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        let gateway = Arc::clone(&self.gateway);
        Ok(py.detach(|| {
            self.server
                .lock()
                .start(move |shared| gateway.service(shared))
        })?)
    }

    fn set_routes(&self, py: Python<'_>, table: &str) -> PyResult<()> {
        py.detach(|| self.gateway.set_routes(table))
            .map_err(|error| PyValueError::new_err(format!("route table: {error}")))
    }

    fn report_queue(&self, replica: &str, rows: u64) {
        self.gateway.report_queue(replica, rows);
    }

    fn statistics(&self, py: Python<'_>) -> String {
        py.detach(|| self.gateway.statistics(&self.shared))
    }

    fn drain(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let limit = seconds(timeout_s)?;
        Ok(py.detach(|| self.server.lock().drain(limit)))
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.server.lock().stop());
    }
}
