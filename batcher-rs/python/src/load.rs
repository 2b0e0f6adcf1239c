//! The load generator behind `headrace bench`.

use crate::worker::read;
use headrace_load::Config;
use pyo3::exceptions::{PyConnectionError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often Python is asked whether somebody pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a load test to its end; Ctrl-C ends it early.
#[pyfunction]
pub(crate) fn load_test(py: Python<'_>, config: &str) -> PyResult<String> {
    let config: Config = read("load test", config)?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let test = std::thread::Builder::new()
        .name("load".into())
        .spawn(move || headrace_load::run(&config, &told))?;
    let mut interrupted = None;
    while !test.is_finished() {
        py.detach(|| std::thread::sleep(LOOK));
        if let Err(signal) = py.check_signals() {
            stop.store(true, Ordering::Relaxed);
            interrupted.get_or_insert(signal);
        }
    }
    let report = py
        .detach(|| test.join())
        .map_err(|_| PyRuntimeError::new_err("the load generator panicked"))?;
    if let Some(signal) = interrupted {
        return Err(signal);
    }
    let report = report.map_err(|error| {
        let reason = error.to_string();
        match error {
            headrace_load::LoadError::Config(_) => PyValueError::new_err(reason),
            headrace_load::LoadError::Connect { .. } => PyConnectionError::new_err(reason),
            headrace_load::LoadError::System(_) => PyOSError::new_err(reason),
        }
    })?;
    serde_json::to_string(&report).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
