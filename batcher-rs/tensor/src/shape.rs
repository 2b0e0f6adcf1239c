//! Shapes: the arithmetic of dimensions, and a request's shape held against a signature.

use std::fmt;

use smallvec::SmallVec;

use crate::invalid::{INVALID_TENSOR, Invalid};
use crate::signature::{Signature, TensorSpec};

/// More bytes than any tensor has. Kept far from 2⁶⁴, so that sums of such products cannot overflow either.
const MOST_BYTES: u64 = 1 << 48;

/// Product of the dimensions, or `None` if one is negative or the tensor could not exist.
///
/// Dimensions of zero count as one for the bound: `[0, 2⁶², 2⁶²]` has no elements, yet the products of its parts overflow.
#[inline]
pub(crate) fn elements(shape: &[i64], size: usize) -> Option<usize> {
    let mut bound = size.max(1) as u64;
    let mut empty = false;
    for &dim in shape {
        empty |= dim == 0;
        bound = bound.checked_mul(u64::try_from(dim).ok()?.max(1))?;
    }
    if bound > MOST_BYTES {
        return None;
    }
    Some(if empty {
        0
    } else {
        (bound / size.max(1) as u64) as usize
    })
}

/// Product of dimensions that [`elements`] has passed.
#[inline]
pub(crate) fn product(dims: &[i64]) -> usize {
    dims.iter().map(|&dim| dim as usize).product()
}

/// Holds a request's shape against its spec; gives the number of elements.
#[inline]
pub(crate) fn check(
    name: &str,
    shape: &[i64],
    spec: &TensorSpec,
    signature: &Signature,
) -> Result<usize, Invalid> {
    if shape.len() != spec.dims.len() {
        return Err(wrong_rank(name, shape, spec, signature));
    }
    let axis = signature.axis(spec);
    for (index, (&got, &expected)) in shape.iter().zip(&spec.dims).enumerate() {
        if got < 0 {
            return Err(Invalid::part(
                name,
                "shape",
                format_args!(
                    "dimension {index} is {got} in {}; only a model's metadata may hold -1, a request states every size",
                    Shape(shape)
                ),
            ));
        }
        if expected >= 0 && got != expected && axis != Some(index) {
            return Err(Invalid::part(
                name,
                "shape",
                format_args!(
                    "expected shape {}, got {}: dimension {index} must be {expected}",
                    Shape(&spec.dims),
                    Shape(shape)
                ),
            ));
        }
    }
    elements(shape, spec.datatype.size().unwrap_or(4)).ok_or_else(|| {
        Invalid::part(
            name,
            "shape",
            format_args!("the number of elements of {} overflows", Shape(shape)),
        )
    })
}

#[cold]
fn wrong_rank(name: &str, shape: &[i64], spec: &TensorSpec, signature: &Signature) -> Invalid {
    let hint = match signature.axis(spec) {
        Some(axis) if shape.len() + 1 == spec.dims.len() => {
            format!("; dimension {axis} counts rows, also when there is only one")
        }
        _ => String::new(),
    };
    Invalid::part(
        name,
        "shape",
        format_args!(
            "expected {} dimensions {}, got {} {}{hint}",
            spec.dims.len(),
            Shape(&spec.dims),
            shape.len(),
            Shape(shape)
        ),
    )
}

/// The rows of a request so far: how many, and which input said so.
#[derive(Default)]
pub(crate) struct Rows {
    found: Option<(u32, usize)>,
}

impl Rows {
    /// Takes the batch dimension of one more input.
    #[inline]
    pub(crate) fn add(
        &mut self,
        shape: &[i64],
        axis: usize,
        index: usize,
        signature: &Signature,
    ) -> Result<(), Invalid> {
        let rows = shape[axis];
        match self.found {
            Some((agreed, _)) if i64::from(agreed) == rows => Ok(()),
            None if rows >= 1 && rows <= i64::from(signature.max_rows) => {
                self.found = Some((rows as u32, index));
                Ok(())
            }
            _ => Err(self.refuse(shape, axis, index, signature)),
        }
    }

    #[cold]
    fn refuse(&self, shape: &[i64], axis: usize, index: usize, signature: &Signature) -> Invalid {
        let name = &signature.inputs[index].name;
        let rows = shape[axis];
        let shape = Shape(shape);
        if let Some((agreed, other)) = self.found {
            let other = &signature.inputs[other].name;
            let what = format_args!(
                "dimension {axis} of {shape} is {rows} rows, but input '{other}' has {agreed}; all inputs of a request must agree"
            );
            return Invalid::part(name, "shape", what);
        }
        let max = signature.max_rows;
        if rows < 1 {
            let what = format_args!("batch must be ≥ 1, dimension {axis} of {shape} is {rows}");
            return Invalid::part(name, "shape", what);
        }
        let what = format_args!(
            "dimension {axis} of {shape} is {rows} rows; model '{}' takes at most {max} a request",
            signature.model
        );
        Invalid::part(name, "shape", what)
    }

    /// The rows of the whole request; 1 if no input counts them.
    pub(crate) fn total(&self) -> u32 {
        self.found.map_or(1, |(rows, _)| rows)
    }
}

/// A shape as people write it: `[2,-1]`.
pub(crate) struct Shape<'a>(pub(crate) &'a [i64]);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dim) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

/// A small owned shape.
pub(crate) type Dims = SmallVec<[i64; 4]>;

/// Names the inputs that a request lacks.
#[cold]
pub(crate) fn missing(names: &[&str], signature: &Signature) -> Invalid {
    let mut invalid = Invalid::input(
        INVALID_TENSOR,
        names[0],
        format_args!("missing; model '{}' needs it", signature.model),
    );
    for name in &names[1..] {
        let other = Invalid::input(INVALID_TENSOR, name, "missing");
        invalid.violations.extend(other.violations);
    }
    if names.len() > 1 {
        let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        invalid.message = format!(
            "inputs {} are missing; model '{}' needs them",
            quoted.join(", "),
            signature.model
        );
    }
    invalid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_never_overflow_and_negative_pairs_do_not_cancel_out() {
        assert_eq!(elements(&[-1, -8], 1), None);
        assert_eq!(elements(&[i64::MAX, 2], 4), None);
        assert_eq!(elements(&[1 << 32, 1 << 32], 1), None);
        assert_eq!(elements(&[0, i64::MAX, i64::MAX], 4), None);
        assert_eq!(elements(&[1 << 46], 8), None);
    }

    #[test]
    fn a_scalar_has_one_element_and_a_zero_dimension_none() {
        assert_eq!(elements(&[], 4), Some(1));
        assert_eq!(elements(&[1, 0], 4), Some(0));
        assert_eq!(elements(&[3, 5, 7], 4), Some(105));
    }
}
