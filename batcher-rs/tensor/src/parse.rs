//! Reads a whole `ModelInferRequest` as spans of the received bytes: no tensor byte is copied, and a small request allocates nothing.
//!
//! Protobuf's rules hold: the last of a repeated scalar wins, repeated fields append, packed and unpacked numbers both count, the parts of a
//! message given twice are merged, and unknown fields are passed over. A known field of another wire type is an error.

use smallvec::SmallVec;

use crate::contents;
use crate::datatype::Field;
use crate::span::Span;
use crate::wire::{Malformed, Reader, fixed64_key, length_key, varint_key};

/// Most inputs, requested outputs or raw contents of one request. A two-byte field becomes some hundred bytes here, so without a bound a
/// message within the size limit could take gigabytes.
const MAX_TENSORS: usize = 16_384;
/// Most parameters of one request, those of its tensors included.
const MAX_PARAMETERS: usize = 16_384;
/// Most dimensions of a tensor: as many as numpy knows.
const MAX_RANK: usize = 64;

/// A parsed `ModelInferRequest`. Spans are of the message that was parsed.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `model_name`; empty if absent.
    pub model: Span,
    /// `model_version`; empty means the server's choice.
    pub version: Span,
    /// `id`, echoed in the reply.
    pub id: Span,
    /// Request parameters in the order of the wire; of equal keys the last counts.
    pub parameters: SmallVec<[Parameter; 2]>,
    /// Inputs in the order of the wire.
    pub inputs: SmallVec<[Input; 4]>,
    /// Requested outputs; none means all.
    pub outputs: SmallVec<[Requested; 4]>,
    /// `raw_input_contents`, one for each input in the same order, or none at all.
    pub raw: SmallVec<[Span; 4]>,
}

/// One entry of a `parameters` map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its key.
    pub key: Span,
    /// Its value.
    pub value: Value,
}

/// An `InferParameter`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Value {
    /// No choice was made.
    #[default]
    None,
    /// `bool_param`.
    Bool(bool),
    /// `int64_param`.
    Int(i64),
    /// `string_param`.
    String(Span),
    /// `double_param`.
    Double(f64),
    /// `uint64_param`.
    Uint(u64),
}

/// An `InferInputTensor`.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Name of the input.
    pub name: Span,
    /// Datatype as the caller wrote it.
    pub datatype: Span,
    /// Dimensions as the caller wrote them, not yet checked.
    pub shape: SmallVec<[i64; 4]>,
    /// Parameters of this tensor.
    pub parameters: Vec<Parameter>,
    /// Typed contents, if the field is there.
    pub typed: Option<Box<Typed>>,
}

/// `InferTensorContents`, checked to be well formed but not yet held against a datatype.
#[derive(Clone, Debug, Default)]
pub struct Typed {
    /// The message; more than one where the sender split it.
    pub(crate) spans: SmallVec<[Span; 1]>,
    /// Elements in each of the eight fields.
    pub(crate) counts: [u32; 8],
    /// The packed floats, if they came in one piece: they are then the raw contents already.
    pub(crate) run: Option<Span>,
}

impl Typed {
    /// The fields that hold elements.
    pub(crate) fn used(&self) -> impl Iterator<Item = Field> + '_ {
        let used = |field: &Field| self.counts[field.index()] > 0;
        Field::ALL.into_iter().filter(used)
    }
}

/// An `InferRequestedOutputTensor`.
#[derive(Clone, Debug, Default)]
pub struct Requested {
    /// Name of the output.
    pub name: Span,
    /// Parameters of this output.
    pub parameters: Vec<Parameter>,
}

/// Reads a whole message.
///
/// # Errors
/// The bytes are not a `ModelInferRequest`, or one with more tensors, dimensions or parameters than any honest one.
pub fn parse(message: &[u8]) -> Result<Request, Malformed> {
    let mut reader = Reader::new(message)?;
    let mut request = Request::default();
    let mut budget = MAX_PARAMETERS;
    while !reader.done() {
        let key = reader.key()?;
        match key {
            MODEL_NAME => request.model = reader.text()?,
            MODEL_VERSION => request.version = reader.text()?,
            ID => request.id = reader.text()?,
            PARAMETERS => {
                spend(&mut budget, &reader)?;
                request.parameters.push(parameter(reader.nested()?)?);
            }
            INPUTS => {
                room(request.inputs.len(), &reader)?;
                let nested = reader.nested()?;
                request.inputs.push(Input::default());
                if let Some(slot) = request.inputs.last_mut() {
                    input(nested, slot, &mut budget)?;
                }
            }
            OUTPUTS => {
                room(request.outputs.len(), &reader)?;
                let nested = reader.nested()?;
                request.outputs.push(requested(nested, &mut budget)?);
            }
            RAW_INPUT_CONTENTS => {
                room(request.raw.len(), &reader)?;
                request.raw.push(reader.span()?);
            }
            _ => unknown(&mut reader, key, 7)?,
        }
    }
    Ok(request)
}

pub(crate) const MODEL_NAME: u32 = length_key(1);
pub(crate) const MODEL_VERSION: u32 = length_key(2);
pub(crate) const ID: u32 = length_key(3);
pub(crate) const PARAMETERS: u32 = length_key(4);
pub(crate) const INPUTS: u32 = length_key(5);
pub(crate) const OUTPUTS: u32 = length_key(6);
pub(crate) const RAW_INPUT_CONTENTS: u32 = length_key(7);

/// Passes over a field that the message does not declare; `last` is the highest number that it does.
pub(crate) fn unknown(reader: &mut Reader<'_>, key: u32, last: u32) -> Result<(), Malformed> {
    if key >> 3 <= last {
        return Err(reader.malformed("a known field has the wrong wire type"));
    }
    reader.skip(key)
}

fn room(len: usize, reader: &Reader<'_>) -> Result<(), Malformed> {
    if len >= MAX_TENSORS {
        return Err(reader.malformed("the request has more than 16384 tensors"));
    }
    Ok(())
}

fn spend(budget: &mut usize, reader: &Reader<'_>) -> Result<(), Malformed> {
    match budget.checked_sub(1) {
        Some(left) => *budget = left,
        None => return Err(reader.malformed("the request has more than 16384 parameters")),
    }
    Ok(())
}

#[inline]
fn input(mut reader: Reader<'_>, input: &mut Input, budget: &mut usize) -> Result<(), Malformed> {
    const NAME: u32 = length_key(1);
    const DATATYPE: u32 = length_key(2);
    const PACKED_SHAPE: u32 = length_key(3);
    const SHAPE: u32 = varint_key(3);
    const PARAMETERS: u32 = length_key(4);
    const CONTENTS: u32 = length_key(5);
    while !reader.done() {
        let key = reader.key()?;
        match key {
            NAME => input.name = reader.text()?,
            DATATYPE => input.datatype = reader.text()?,
            PACKED_SHAPE => {
                let mut packed = reader.nested()?;
                while !packed.done() {
                    dimension(&mut packed, &mut input.shape)?;
                }
            }
            SHAPE => dimension(&mut reader, &mut input.shape)?,
            PARAMETERS => {
                spend(budget, &reader)?;
                input.parameters.push(parameter(reader.nested()?)?);
            }
            CONTENTS => {
                let span = reader.span()?;
                let typed = input.typed.get_or_insert_default();
                contents::scan(reader.enter(span), span, typed)?;
            }
            _ => unknown(&mut reader, key, 5)?,
        }
    }
    Ok(())
}

#[inline]
fn dimension(reader: &mut Reader<'_>, shape: &mut SmallVec<[i64; 4]>) -> Result<(), Malformed> {
    if shape.len() >= MAX_RANK {
        return Err(reader.malformed("a shape has more than 64 dimensions"));
    }
    shape.push(reader.varint()? as i64);
    Ok(())
}

fn requested(mut reader: Reader<'_>, budget: &mut usize) -> Result<Requested, Malformed> {
    const NAME: u32 = length_key(1);
    const PARAMETERS: u32 = length_key(2);
    let mut requested = Requested::default();
    while !reader.done() {
        let key = reader.key()?;
        match key {
            NAME => requested.name = reader.text()?,
            PARAMETERS => {
                spend(budget, &reader)?;
                requested.parameters.push(parameter(reader.nested()?)?);
            }
            _ => unknown(&mut reader, key, 2)?,
        }
    }
    Ok(requested)
}

/// One entry of a map from string to `InferParameter`.
pub(crate) fn parameter(mut reader: Reader<'_>) -> Result<Parameter, Malformed> {
    const KEY: u32 = length_key(1);
    const VALUE: u32 = length_key(2);
    let mut parameter = Parameter {
        key: Span::default(),
        value: Value::None,
    };
    while !reader.done() {
        let key = reader.key()?;
        match key {
            KEY => parameter.key = reader.text()?,
            VALUE => value(reader.nested()?, &mut parameter.value)?,
            _ => unknown(&mut reader, key, 2)?,
        }
    }
    Ok(parameter)
}

fn value(mut reader: Reader<'_>, value: &mut Value) -> Result<(), Malformed> {
    const BOOL: u32 = varint_key(1);
    const INT64: u32 = varint_key(2);
    const STRING: u32 = length_key(3);
    const DOUBLE: u32 = fixed64_key(4);
    const UINT64: u32 = varint_key(5);
    while !reader.done() {
        let key = reader.key()?;
        match key {
            BOOL => *value = Value::Bool(reader.varint()? != 0),
            INT64 => *value = Value::Int(reader.varint()? as i64),
            STRING => *value = Value::String(reader.text()?),
            DOUBLE => *value = Value::Double(f64::from_le_bytes(reader.fixed()?)),
            UINT64 => *value = Value::Uint(reader.varint()?),
            _ => unknown(&mut reader, key, 5)?,
        }
    }
    Ok(())
}
