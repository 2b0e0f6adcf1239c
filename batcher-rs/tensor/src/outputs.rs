//! Which outputs are wanted, by one request and by a whole batch; and whether what the model returned adds up (V10).

use std::fmt;

use bytes::Bytes;

use crate::admit::Admitted;
use crate::datatype::Datatype;
use crate::encode::{OutputData, OutputView};
use crate::invalid::{INVALID_TENSOR, Invalid, UNKNOWN_TENSOR, choices};
use crate::parameters;
use crate::parse::Request;
use crate::shape::{Shape, elements};
use crate::signature::{Signature, TensorSpec, find};

/// Reads the requested outputs into `admitted`.
#[inline]
pub(crate) fn admit(
    message: &[u8],
    request: &Request,
    signature: &Signature,
    admitted: &mut Admitted,
) -> Result<(), Invalid> {
    for (position, requested) in request.outputs.iter().enumerate() {
        let found = find(&signature.outputs, requested.name.of(message), position);
        let Some(index) = found else {
            return Err(unknown_output(requested.name.text(message), signature));
        };
        let name = &signature.outputs[index].name;
        if admitted.outputs.contains(&(index as u32)) {
            return Err(Invalid::output(
                INVALID_TENSOR,
                name,
                "requested more than once",
            ));
        }
        parameters::check_output(message, name, &requested.parameters)?;
        admitted.outputs.push(index as u32);
    }
    let half = |index: usize| {
        let datatype = signature.outputs[index].datatype;
        matches!(datatype, Datatype::Fp16 | Datatype::Bf16)
    };
    let must_be_raw = admitted.wanted(signature).any(half);
    admitted.raw_reply |= must_be_raw;
    Ok(())
}

#[cold]
fn unknown_output(name: &str, signature: &Signature) -> Invalid {
    let known = choices(signature.outputs.iter().map(|spec| spec.name.as_str()));
    let what = format_args!("unknown; model '{}' gives {known}", signature.model);
    Invalid::output(UNKNOWN_TENSOR, name, what)
}

impl Admitted {
    /// Places in the signature of the outputs that this request wants, in the order that it asked for.
    #[inline]
    pub fn wanted<'a>(&'a self, signature: &Signature) -> impl Iterator<Item = usize> + use<'a> {
        let all = if self.outputs.is_empty() {
            0..signature.outputs.len()
        } else {
            0..0
        };
        self.outputs.iter().map(|&index| index as usize).chain(all)
    }
}

/// Places in the signature of the outputs that any of these requests wants, ascending.
pub fn wanted(entries: &[(&Bytes, &Admitted)], signature: &Signature) -> Vec<usize> {
    if entries.iter().any(|(_, entry)| entry.outputs.is_empty()) {
        return (0..signature.outputs.len()).collect();
    }
    let mut union: Vec<usize> = entries
        .iter()
        .flat_map(|(_, entry)| entry.outputs.iter().map(|&index| index as usize))
        .collect();
    union.sort_unstable();
    union.dedup();
    union
}

/// The model returned something that cannot be cut into the requests' rows. The batch fails; rows are never guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOutput {
    /// Names the output, what was expected and what came.
    pub message: String,
}

impl fmt::Display for BadOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BadOutput {}

/// Checks what a model returned for a batch of `rows`: `outputs` are those of `wanted`, in that order.
///
/// Declared output dims may be wrong and still harmless, so only what splitting relies on is checked: the size along the batch axis, and
/// that the contents are as long as the shape says.
///
/// # Errors
/// The first output that does not add up.
pub fn check_outputs(
    signature: &Signature,
    rows: u32,
    wanted: &[usize],
    outputs: &[OutputView<'_>],
) -> Result<(), BadOutput> {
    if outputs.len() != wanted.len() {
        let message = format!("expected {} outputs, got {}", wanted.len(), outputs.len());
        return Err(BadOutput { message });
    }
    for (&index, output) in wanted.iter().zip(outputs) {
        let Some(spec) = signature.outputs.get(index) else {
            let message = format!("the model has no output number {index}");
            return Err(BadOutput { message });
        };
        check_output(spec, signature.axis(spec), rows, output).map_err(|what| BadOutput {
            message: format!("output '{}': {what}", spec.name),
        })?;
    }
    Ok(())
}

fn check_output(
    spec: &TensorSpec,
    axis: Option<usize>,
    rows: u32,
    output: &OutputView<'_>,
) -> Result<(), String> {
    let shape = Shape(output.shape);
    if let Some(axis) = axis
        && output.shape.get(axis) != Some(&i64::from(rows))
    {
        return Err(format!(
            "expected {rows} rows along dimension {axis}, got shape {shape}"
        ));
    }
    let size = spec.datatype.size();
    let Some(elements) = elements(output.shape, size.unwrap_or(4)) else {
        return Err(format!("shape {shape} is not one of a tensor"));
    };
    let (expected, got, unit) = match (size, &output.data) {
        (Some(size), OutputData::Raw(raw)) => (elements * size, raw.len(), "bytes"),
        (None, OutputData::Strings(strings)) => (elements, strings.len(), "strings"),
        (Some(_), OutputData::Strings(_)) => {
            return Err(format!("expected {}, got strings", spec.datatype.name()));
        }
        (None, OutputData::Raw(_)) => return Err("expected strings, got numbers".to_owned()),
    };
    if expected != got {
        return Err(format!(
            "expected {expected} {unit} for {} {shape}, got {got}",
            spec.datatype.name()
        ));
    }
    Ok(())
}
