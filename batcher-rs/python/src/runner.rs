//! Runs batches in Python: attaches, calls the executor once, reads what it returned.

use crate::InvalidInputError;
use crate::batch::{Batch, Data, Input};
use crate::outputs::Output;
use headrace_front::worker::{BatchInput, Emit, ModelSpec, Parameter, RunError, Runner};
use headrace_tensor::{JoinedData, OutputData, OutputView};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::borrow::Cow;

/// Answers above this are split with the interpreter free for others.
const LONG: usize = 64 << 10;

/// One instance's executor.
pub(crate) struct PyRunner {
    executor: Py<PyAny>,
    inputs: Vec<(Py<PyString>, &'static str)>,
    outputs: Vec<Py<PyString>>,
    all_outputs: Py<PyTuple>,
}

impl PyRunner {
    pub(crate) fn new(py: Python<'_>, executor: Py<PyAny>, spec: &ModelSpec) -> PyResult<Self> {
        let outputs: Vec<_> = spec
            .outputs
            .iter()
            .map(|output| PyString::intern(py, &output.name))
            .collect();
        Ok(Self {
            executor,
            inputs: spec
                .inputs
                .iter()
                .map(|input| {
                    (
                        PyString::intern(py, &input.name).unbind(),
                        input.datatype.name(),
                    )
                })
                .collect(),
            all_outputs: PyTuple::new(py, &outputs)?.unbind(),
            outputs: outputs.into_iter().map(Bound::unbind).collect(),
        })
    }

    fn batch(&self, py: Python<'_>, input: BatchInput<'_>) -> PyResult<Batch> {
        let inputs = PyList::empty(py);
        for joined in input.joined.inputs {
            let (name, datatype) = &self.inputs[joined.spec];
            inputs.append(Input {
                name: name.clone_ref(py),
                datatype,
                shape: PyTuple::new(py, &joined.shape[..])?.unbind(),
                data: match joined.data {
                    JoinedData::View(bytes) => Data::View(bytes),
                    JoinedData::Slab(view) => Data::Slab(view),
                    JoinedData::Strings(elements) => Data::Strings(elements),
                },
            })?;
        }
        let output_names = if input.wanted.len() == self.outputs.len() {
            self.all_outputs.clone_ref(py)
        } else {
            PyTuple::new(
                py,
                input
                    .wanted
                    .iter()
                    .map(|&index| self.outputs[index].bind(py)),
            )?
            .unbind()
        };
        let parameters = PyDict::new(py);
        for (name, value) in input.parameters {
            match value {
                Parameter::Bool(value) => parameters.set_item(name, value)?,
                Parameter::Int(value) => parameters.set_item(name, value)?,
                Parameter::Uint(value) => parameters.set_item(name, value)?,
                Parameter::Double(value) => parameters.set_item(name, value)?,
                Parameter::Text(value) => parameters.set_item(name, value)?,
            }
        }
        Ok(Batch {
            rows: input.joined.rows,
            inputs: inputs.unbind(),
            output_names,
            parameters: parameters.unbind(),
        })
    }

    fn call(&self, py: Python<'_>, input: BatchInput<'_>, emit: &mut Emit<'_>) -> PyResult<()> {
        let batch = Bound::new(py, self.batch(py, input)?)?;
        let answer = self.executor.bind(py).call1((batch,))?;
        if let Ok(outputs) = answer.cast::<PyList>() {
            hand_over(py, outputs, emit, true)?;
            return Ok(());
        }
        for outputs in answer.try_iter()? {
            let outputs = outputs?
                .cast_into::<PyList>()
                .map_err(|error| PyTypeError::new_err(error.to_string()))?;
            if !hand_over(py, &outputs, emit, false)? {
                break;
            }
        }
        Ok(())
    }
}

fn hand_over(
    py: Python<'_>,
    outputs: &Bound<'_, PyList>,
    emit: &mut Emit<'_>,
    last: bool,
) -> PyResult<bool> {
    let outputs = outputs
        .iter()
        .map(|output| Output::of(&output))
        .collect::<PyResult<Vec<_>>>()?;
    let texts = outputs
        .iter()
        .map(|output| {
            output
                .texts()
                .iter()
                .map(crate::outputs::Text::bytes)
                .collect::<PyResult<Vec<_>>>()
        })
        .collect::<PyResult<Vec<Vec<Cow<'_, [u8]>>>>>()?;
    let elements: Vec<Vec<&[u8]>> = texts
        .iter()
        .map(|texts| texts.iter().map(|text| &**text).collect())
        .collect();
    let views: Vec<OutputView<'_>> = outputs
        .iter()
        .zip(&elements)
        .map(|(output, elements)| OutputView {
            shape: output.shape(),
            data: match output.raw() {
                Some(raw) => OutputData::Raw(raw),
                None => OutputData::Strings(elements),
            },
        })
        .collect();
    if outputs
        .iter()
        .filter_map(Output::raw)
        .map(<[u8]>::len)
        .sum::<usize>()
        > LONG
    {
        return Ok(py.detach(|| emit(&views, last)));
    }
    Ok(emit(&views, last))
}

impl Runner for PyRunner {
    fn run(&mut self, batch: BatchInput<'_>, emit: &mut Emit<'_>) -> Result<(), RunError> {
        Python::attach(|py| {
            self.call(py, batch, emit).map_err(|error| {
                if error.is_instance_of::<InvalidInputError>(py) {
                    return RunError::InvalidInput(error.value(py).to_string());
                }
                log(py, "the executor failed", Some(&error));
                RunError::Failed
            })
        })
    }

    fn report(&mut self, text: &str) {
        Python::attach(|py| log(py, text, None));
    }
}

/// One line in Python's log; a log that fails is no reason to fail a batch.
fn log(py: Python<'_>, text: &str, error: Option<&PyErr>) {
    let line = match error {
        Some(error) => format!("{text}: {error}"),
        None => text.to_owned(),
    };
    let logged = py
        .import("logging")
        .and_then(|logging| logging.call_method1("getLogger", ("headrace.batch",)))
        .and_then(|logger| logger.call_method1("error", ("%s", line)));
    if let Err(error) = logged {
        error.write_unraisable(py, None);
    }
}
