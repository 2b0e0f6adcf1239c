//! One joined batch as Python sees it: views of the rows, no copies.

use bytes::Bytes;
use headrace_tensor::SlabView;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use std::ffi::c_int;

/// One batch, for one call of an executor.
#[pyclass(frozen, module = "headrace_batcher")]
pub(crate) struct Batch {
    /// Rows along the batch axis; 1 for a model that does not batch.
    #[pyo3(get)]
    pub(crate) rows: u32,
    /// The inputs that came, in the signature's order.
    #[pyo3(get)]
    pub(crate) inputs: Py<PyList>,
    /// The outputs to return, in this order.
    #[pyo3(get)]
    pub(crate) output_names: Py<PyTuple>,
    /// Request parameters that reach the model.
    #[pyo3(get)]
    pub(crate) parameters: Py<PyDict>,
}

/// Where an input's elements are.
pub(crate) enum Data {
    View(Bytes),
    Slab(SlabView),
    Strings(Vec<Bytes>),
}

/// One input of a batch. Exports its elements by the buffer protocol, read-only; a view may outlive the call.
#[pyclass(frozen, module = "headrace_batcher")]
pub(crate) struct Input {
    /// The input's name.
    #[pyo3(get)]
    pub(crate) name: Py<PyString>,
    /// Its Open Inference datatype.
    #[pyo3(get)]
    pub(crate) datatype: &'static str,
    /// Its shape, the rows of the whole batch along the batch axis.
    #[pyo3(get)]
    pub(crate) shape: Py<PyTuple>,
    pub(crate) data: Data,
}

#[pymethods]
impl Input {
    /// The elements of a BYTES input, row-major.
    fn strings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let Data::Strings(elements) = &self.data else {
            return Err(PyTypeError::new_err(format!(
                "input is {}, only BYTES has strings",
                self.datatype
            )));
        };
        let list = PyList::empty(py);
        for element in elements {
            // Admission refused what is not UTF-8.
            list.append(PyString::from_bytes(py, element)?)?;
        }
        Ok(list)
    }

    #[allow(clippy::needless_pass_by_value, reason = "the protocol's signature")]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let bytes: &[u8] = match &this.data {
            Data::View(bytes) => bytes,
            Data::Slab(slab) => slab,
            Data::Strings(_) => {
                return Err(PyBufferError::new_err(
                    "a BYTES input has no buffer; call strings()",
                ));
            }
        };
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is null"));
        }
        // SAFETY: `view` is the caller's, valid by the buffer protocol. The bytes never move or change while `slf` lives: the
        // object is frozen, `Bytes` is immutable, and a slab is not written again while a `SlabView` of it exists. The view
        // holds a reference to `slf` (PyBuffer_FillInfo takes one), and it is read-only.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                bytes.len() as isize,
                1,
                flags,
            )
        };
        if filled == -1 {
            Err(PyErr::fetch(slf.py()))
        } else {
            Ok(())
        }
    }
}
