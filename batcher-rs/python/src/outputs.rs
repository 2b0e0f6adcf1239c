//! What an executor returned, read without copying: arrays by the buffer protocol, BYTES as a shape and a list.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

/// One output, held for as long as its elements are needed. To be dropped with the interpreter attached.
pub(crate) enum Output<'py> {
    Array {
        view: Box<ffi::Py_buffer>,
        shape: Vec<i64>,
    },
    Strings {
        elements: Vec<Text<'py>>,
        shape: Vec<i64>,
    },
}

/// One element of a BYTES output.
pub(crate) enum Text<'py> {
    Str(Bound<'py, PyString>),
    Bytes(Bound<'py, PyBytes>),
}

impl Text<'_> {
    fn of(object: Bound<'_, PyAny>) -> PyResult<Text<'_>> {
        match object.cast_into::<PyString>() {
            Ok(text) => Ok(Text::Str(text)),
            Err(error) => error
                .into_inner()
                .cast_into::<PyBytes>()
                .map(Text::Bytes)
                .map_err(|error| {
                    let kind = error.into_inner().get_type();
                    PyTypeError::new_err(format!(
                        "an element of a BYTES output is {kind}, neither str nor bytes"
                    ))
                }),
        }
    }

    /// The element's bytes.
    pub(crate) fn bytes(&self) -> PyResult<std::borrow::Cow<'_, [u8]>> {
        match self {
            Text::Str(text) => Ok(match text.to_cow()? {
                std::borrow::Cow::Borrowed(text) => std::borrow::Cow::Borrowed(text.as_bytes()),
                std::borrow::Cow::Owned(text) => std::borrow::Cow::Owned(text.into_bytes()),
            }),
            Text::Bytes(bytes) => Ok(std::borrow::Cow::Borrowed(bytes.as_bytes())),
        }
    }
}

impl<'py> Output<'py> {
    /// Reads one item of an executor's list.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(pair) = object.cast::<PyTuple>() {
            let (shape, elements): (Vec<i64>, Bound<'py, PyList>) = pair.extract()?;
            let elements = elements
                .iter()
                .map(Text::of)
                .collect::<PyResult<Vec<_>>>()?;
            return Ok(Self::Strings { elements, shape });
        }
        // SAFETY: an all-zero Py_buffer is valid to be filled.
        let mut view: Box<ffi::Py_buffer> = Box::new(unsafe { std::mem::zeroed() });
        let flags = ffi::PyBUF_C_CONTIGUOUS;
        // SAFETY: the object is alive and the view is ours, on the heap, and does not move until it is released.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } == -1 {
            return Err(PyErr::fetch(object.py()));
        }
        let mut output = Self::Array {
            view,
            shape: Vec::new(),
        };
        let Self::Array { view, shape } = &mut output else {
            unreachable!("made above")
        };
        if view.ndim > 0 && view.shape.is_null() {
            return Err(PyValueError::new_err("an output's buffer tells no shape"));
        }
        for axis in 0..usize::try_from(view.ndim).unwrap_or(0) {
            // SAFETY: a buffer asked for with PyBUF_ND has `ndim` entries of shape.
            shape.push(unsafe { *view.shape.add(axis) } as i64);
        }
        Ok(output)
    }

    /// The output's shape.
    pub(crate) fn shape(&self) -> &[i64] {
        match self {
            Self::Array { shape, .. } | Self::Strings { shape, .. } => shape,
        }
    }

    /// The elements' bytes; `None` for BYTES.
    pub(crate) fn raw(&self) -> Option<&[u8]> {
        match self {
            Self::Array { view, .. } if view.len > 0 => {
                // SAFETY: the exporter keeps `len` contiguous bytes at `buf` alive and in place until the view is released,
                // which is when `self` is dropped. Nobody writes: the array was made for this answer and handed over.
                Some(unsafe {
                    std::slice::from_raw_parts(view.buf.cast::<u8>(), view.len.cast_unsigned())
                })
            }
            Self::Array { .. } => Some(&[]),
            Self::Strings { .. } => None,
        }
    }

    /// The elements of a BYTES output.
    pub(crate) fn texts(&self) -> &[Text<'py>] {
        match self {
            Self::Strings { elements, .. } => elements,
            Self::Array { .. } => &[],
        }
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        if let Self::Array { view, .. } = self {
            // SAFETY: filled by PyObject_GetBuffer, released once. `'py` says that the interpreter is attached.
            unsafe { ffi::PyBuffer_Release(&raw mut **view) };
        }
    }
}
