//! Holds a parsed request against a model's signature, before it is queued: one bad request must never be found out inside a batch.

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::bytes_tensor::{self, Fault};
use crate::contents;
use crate::datatype::Datatype;
use crate::invalid::{Brief, INVALID_TENSOR, Invalid, UNKNOWN_TENSOR, choices};
use crate::key::BatchKey;
use crate::outputs;
use crate::parameters::{self, SequenceId};
use crate::parse::{Input, Request, Typed, Value};
use crate::shape::{self, Dims, Rows, Shape};
use crate::signature::{Signature, TensorSpec, find};
use crate::span::Span;

/// A request that its model can run. Spans are of the message that was admitted.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Rows of the request; 1 if the model does not batch.
    pub rows: u32,
    /// Memory that the request holds while it is queued, in bytes.
    pub bytes: u64,
    /// Requests of equal keys may run together.
    pub key: BatchKey,
    /// The request's `id`.
    pub id: Span,
    /// Whether the reply carries raw contents: it does what the request did, but 16-bit floats have no typed form.
    pub raw_reply: bool,
    /// The `priority` parameter, 1 the most urgent; 0 for the model's default.
    pub priority: u32,
    /// The `timeout` parameter: longest wait in the queue.
    pub timeout: Option<Duration>,
    /// The `sequence_id` parameter; `None` also for 0 and the empty string.
    pub sequence_id: Option<SequenceId>,
    /// The `sequence_start` parameter.
    pub sequence_start: bool,
    /// The `sequence_end` parameter.
    pub sequence_end: bool,
    /// Parameters that reach the model, by their place in the signature's list.
    pub(crate) parameters: Vec<(u16, Value)>,
    /// In the signature's order.
    pub(crate) inputs: SmallVec<[Given; 3]>,
    /// Places of the requested outputs in the signature, in the caller's order; empty for all.
    pub(crate) outputs: SmallVec<[u32; 4]>,
}

/// One input that a request gives.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// Its place in the signature.
    pub(crate) spec: usize,
    pub(crate) shape: Dims,
    pub(crate) data: Data,
}

/// Contents of an input, whose length fits the shape.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// Raw bytes within the message.
    Span(Span),
    /// Raw bytes made from typed contents.
    Owned(Bytes),
    /// Elements of a `BYTES` tensor within the message.
    Elements(Box<[Span]>),
}

impl Data {
    /// The raw bytes; none for a `BYTES` tensor.
    pub(crate) fn raw<'a>(&'a self, message: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Span(span) => span.of(message),
            Self::Owned(bytes) => bytes,
            Self::Elements(_) => &[],
        }
    }
}

/// Checks `request`, parsed from `message`, against `signature`.
///
/// # Errors
/// The first rule that the request breaks, with the tensor's name, what was expected and what came.
pub fn admit(
    message: &Bytes,
    request: &Request,
    signature: &Signature,
) -> Result<Admitted, Invalid> {
    let raw = !request.raw.is_empty();
    let mut admitted = Admitted {
        rows: 1,
        bytes: message.len() as u64,
        key: BatchKey::default(),
        id: request.id,
        raw_reply: raw || request.inputs.is_empty(),
        priority: 0,
        timeout: None,
        sequence_id: None,
        sequence_start: false,
        sequence_end: false,
        parameters: Vec::new(),
        inputs: SmallVec::new(),
        outputs: SmallVec::new(),
    };
    if raw && request.raw.len() != request.inputs.len() {
        return Err(raw_count(message, request));
    }
    let mut rows = Rows::default();
    let mut ascending = true;
    for (position, input) in request.inputs.iter().enumerate() {
        let index = named(message, input, position, signature, &admitted.inputs)?;
        let spec = &signature.inputs[index];
        let elements = described(message, input, spec, signature)?;
        if let Some(axis) = signature.axis(spec) {
            rows.add(&input.shape, axis, index, signature)?;
        }
        let data = if raw {
            raw_contents(message, input, request.raw[position], spec, elements)?
        } else {
            typed_contents(message, input, spec, elements)?
        };
        admitted.bytes += match &data {
            Data::Span(_) => 0,
            Data::Owned(bytes) => bytes.len() as u64,
            Data::Elements(elements) => std::mem::size_of_val::<[Span]>(elements) as u64,
        };
        ascending &= admitted.inputs.last().is_none_or(|it| it.spec < index);
        admitted.inputs.push(Given {
            spec: index,
            shape: input.shape.clone(),
            data,
        });
    }
    if !ascending {
        admitted.inputs.sort_unstable_by_key(|given| given.spec);
    }
    if admitted.inputs.len() < signature.inputs.len() {
        complete(&admitted.inputs, signature)?;
    }
    admitted.rows = rows.total();
    outputs::admit(message, request, signature, &mut admitted)?;
    if !request.parameters.is_empty() {
        parameters::admit(message, request, signature, &mut admitted)?;
    }
    admitted.key = key(message, signature, &admitted);
    Ok(admitted)
}

/// The input's place in the signature, if it is known and comes only once.
#[inline]
fn named(
    message: &[u8],
    input: &Input,
    position: usize,
    signature: &Signature,
    before: &[Given],
) -> Result<usize, Invalid> {
    let Some(index) = find(&signature.inputs, input.name.of(message), position) else {
        return Err(unknown_input(input.name.text(message), signature));
    };
    if before.iter().any(|given| given.spec == index) {
        let name = &signature.inputs[index].name;
        return Err(Invalid::input(INVALID_TENSOR, name, "given more than once"));
    }
    Ok(index)
}

#[cold]
fn unknown_input(name: &str, signature: &Signature) -> Invalid {
    let known = choices(signature.inputs.iter().map(|spec| spec.name.as_str()));
    let what = format_args!("unknown; model '{}' expects {known}", signature.model);
    Invalid::input(UNKNOWN_TENSOR, name, what)
}

/// Datatype, parameters and shape; gives the number of elements.
#[inline]
fn described(
    message: &[u8],
    input: &Input,
    spec: &TensorSpec,
    signature: &Signature,
) -> Result<usize, Invalid> {
    if input.datatype.of(message) != spec.datatype.name().as_bytes() {
        let what = format_args!(
            "expected datatype {}, got {}",
            spec.datatype.name(),
            Brief(match input.datatype.text(message) {
                "" => "none",
                datatype => datatype,
            })
        );
        return Err(Invalid::part(&spec.name, "datatype", what));
    }
    if !input.parameters.is_empty() {
        parameters::check_input(message, &spec.name, &input.parameters)?;
    }
    shape::check(&spec.name, &input.shape, spec, signature)
}

#[inline]
fn raw_contents(
    message: &[u8],
    input: &Input,
    raw: Span,
    spec: &TensorSpec,
    elements: usize,
) -> Result<Data, Invalid> {
    let name = &spec.name;
    if let Some(field) = input.typed.as_ref().and_then(|typed| typed.used().next()) {
        let what = format_args!(
            "has {} although the request has raw_input_contents; a request is all raw or all typed",
            field.name()
        );
        return Err(Invalid::part(name, "contents", what));
    }
    let Some(size) = spec.datatype.size() else {
        let found = bytes_tensor::elements(message, raw, elements);
        let found = found.map_err(|fault| framing(name, input, raw, elements, &fault))?;
        return strings(message, name, found);
    };
    let expected = elements * size;
    if raw.len as usize != expected {
        let what = format_args!(
            "expected {expected} bytes for {} {}, got {}",
            spec.datatype.name(),
            Shape(&input.shape),
            raw.len
        );
        return Err(Invalid::part(name, "contents", what));
    }
    if spec.datatype == Datatype::Bool
        && let Some(index) = raw.of(message).iter().position(|&byte| byte > 1)
    {
        let byte = raw.of(message)[index];
        let what = format_args!("element {index} is {byte}, a BOOL is 0 or 1");
        return Err(Invalid::part(name, "contents", what));
    }
    Ok(Data::Span(raw))
}

#[cold]
fn framing(name: &str, input: &Input, raw: Span, elements: usize, fault: &Fault) -> Invalid {
    let shape = Shape(&input.shape);
    let what = match fault {
        Fault::Truncated { index } => format!(
            "BYTES element {index} ends past the {} bytes sent; expected {elements} elements for {shape}, each a 4-byte little-endian length and its bytes",
            raw.len
        ),
        Fault::Trailing { left } => format!(
            "expected {elements} BYTES elements for {shape}, got {left} more bytes after them"
        ),
    };
    Invalid::part(name, "contents", what)
}

/// Elements that an ONNX string tensor can carry unchanged.
fn strings(message: &[u8], name: &str, elements: Vec<Span>) -> Result<Data, Invalid> {
    if let Some(index) = bytes_tensor::first_not_utf8(message, &elements) {
        let what = format_args!("BYTES element {index} is not UTF-8");
        return Err(Invalid::part(name, "contents", what));
    }
    Ok(Data::Elements(elements.into_boxed_slice()))
}

fn typed_contents(
    message: &[u8],
    input: &Input,
    spec: &TensorSpec,
    elements: usize,
) -> Result<Data, Invalid> {
    let name = &spec.name;
    let datatype = spec.datatype.name();
    let empty = Typed::default();
    let typed = input.typed.as_deref().unwrap_or(&empty);
    let Some(field) = spec.datatype.field() else {
        if elements == 0 && typed.used().next().is_none() {
            return Ok(Data::Span(Span::default()));
        }
        let what = format_args!(
            "{datatype} has no typed contents; send it in raw_input_contents, two bytes an element"
        );
        return Err(Invalid::part(name, "contents", what));
    };
    if let Some(wrong) = typed.used().find(|used| *used != field) {
        let what = format_args!(
            "{datatype} belongs in {}, got values in {}",
            field.name(),
            wrong.name()
        );
        return Err(Invalid::part(name, "contents", what));
    }
    let count = typed.counts[field.index()] as usize;
    if count != elements {
        let shape = Shape(&input.shape);
        let what = if count == 0 {
            format!(
                "expected {elements} values for {shape}, got neither {} nor raw_input_contents",
                field.name()
            )
        } else {
            format!(
                "expected {elements} values for {shape}, got {count} in {}",
                field.name()
            )
        };
        return Err(Invalid::part(name, "contents", what));
    }
    if spec.datatype == Datatype::Bytes {
        return strings(message, name, contents::elements(message, typed));
    }
    if let Some(run) = typed.run {
        return Ok(Data::Span(run));
    }
    match contents::to_raw(message, typed, spec.datatype) {
        Ok(raw) => Ok(Data::Owned(raw.into())),
        Err(refused) => {
            let what = format_args!(
                "element {} is {}, out of range for {datatype}",
                refused.index, refused.value
            );
            Err(Invalid::part(name, "contents", what))
        }
    }
}

#[cold]
fn raw_count(message: &[u8], request: &Request) -> Invalid {
    let mixed = request.inputs.iter().find_map(|input| {
        let field = input.typed.as_ref()?.used().next()?;
        Some((input.name.text(message), field))
    });
    if let Some((name, field)) = mixed {
        let what = format_args!(
            "has {} although the request has raw_input_contents; a request is all raw or all typed",
            field.name()
        );
        return Invalid::part(name, "contents", what);
    }
    Invalid::at(
        INVALID_TENSOR,
        "raw_input_contents".to_owned(),
        format!(
            "expected one raw_input_contents for each of {} inputs, got {}",
            request.inputs.len(),
            request.raw.len()
        ),
    )
}

/// Every input is there that the model cannot do without.
#[cold]
fn complete(given: &[Given], signature: &Signature) -> Result<(), Invalid> {
    let specs = signature.inputs.iter().enumerate();
    let lacking: Vec<&str> = specs
        .filter(|(index, spec)| !spec.optional && given.iter().all(|it| it.spec != *index))
        .map(|(_, spec)| spec.name.as_str())
        .collect();
    if lacking.is_empty() {
        Ok(())
    } else {
        Err(shape::missing(&lacking, signature))
    }
}

/// Everything that requests of one batch must share. A request that always runs alone shares nothing; its shape still tells costs apart.
#[inline]
fn key(message: &[u8], signature: &Signature, admitted: &Admitted) -> BatchKey {
    let mut key = SmallVec::<[u8; 64]>::new();
    if signature.inputs.iter().any(|spec| spec.optional) {
        for index in 0..signature.inputs.len() {
            key.push(u8::from(admitted.inputs.iter().any(|it| it.spec == index)));
        }
    }
    for given in &admitted.inputs {
        let spec = &signature.inputs[given.spec];
        let axis = signature.axis(spec);
        for (index, (&dim, &declared)) in given.shape.iter().zip(&spec.dims).enumerate() {
            if declared < 0 && axis != Some(index) {
                put_key_number(&mut key, dim as u64);
            }
        }
        if axis.is_none() && signature.batching {
            put_key_contents(&mut key, message, &given.data);
        }
    }
    for &(index, value) in &admitted.parameters {
        if signature.batching {
            put_key_number(&mut key, u64::from(index));
            put_key_value(&mut key, message, value);
        }
    }
    BatchKey::new(&key)
}

/// A self-delimiting number, so that two different lists never give the same bytes.
fn put_key_number(key: &mut SmallVec<[u8; 64]>, mut number: u64) {
    while number >= 0x80 {
        key.push(number as u8 | 0x80);
        number >>= 7;
    }
    key.push(number as u8);
}

fn put_key_bytes(key: &mut SmallVec<[u8; 64]>, bytes: &[u8]) {
    put_key_number(key, bytes.len() as u64);
    key.extend_from_slice(bytes);
}

fn put_key_contents(key: &mut SmallVec<[u8; 64]>, message: &[u8], data: &Data) {
    match data {
        Data::Elements(elements) => {
            put_key_number(key, elements.len() as u64);
            for element in elements {
                put_key_bytes(key, element.of(message));
            }
        }
        _ => put_key_bytes(key, data.raw(message)),
    }
}

fn put_key_value(key: &mut SmallVec<[u8; 64]>, message: &[u8], value: Value) {
    let (kind, bits) = match value {
        Value::None => (0, 0),
        Value::Bool(value) => (1, u64::from(value)),
        Value::Int(value) => (2, value as u64),
        Value::Uint(value) => (3, value),
        Value::Double(value) => (4, value.to_bits()),
        Value::String(text) => {
            key.push(5);
            return put_key_bytes(key, text.of(message));
        }
    };
    key.push(kind);
    put_key_number(key, bits);
}
