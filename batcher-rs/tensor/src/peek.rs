//! Reads as much of a `ModelInferRequest` as routing needs, from however much of it has arrived.

use smallvec::SmallVec;

use crate::parameters::SequenceId;
use crate::parse::{
    ID, INPUTS, MODEL_NAME, MODEL_VERSION, OUTPUTS, PARAMETERS, Parameter, RAW_INPUT_CONTENTS,
    parameter, unknown,
};
use crate::span::Span;
use crate::wire::{Malformed, Reader, TRUNCATED};

/// What [`peek`] found.
#[derive(Clone, Debug)]
pub enum Peek {
    /// Enough to route the request.
    Head(Head),
    /// Not enough yet: peek again when more has arrived.
    More,
}

/// The part of a request that decides where it goes. Spans are of the bytes that were peeked at.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// `model_name`; empty only if the whole message has none.
    pub model: Span,
    /// `model_version`; empty means the server's choice.
    pub version: Span,
    /// `id`.
    pub id: Span,
    /// The sequence that the request belongs to, if any.
    pub sequence_id: Option<SequenceId>,
    /// Request parameters in the order of the wire; of equal keys the last counts.
    pub parameters: SmallVec<[Parameter; 2]>,
}

/// Most parameters that routing looks at; more is no honest request.
const MAX_PARAMETERS: usize = 16_384;

/// Looks for the head of a message of which `prefix` has arrived, `complete` if that is all of it.
///
/// A message still arriving is decided at its first tensor once the name is known (every writer puts the fields in order; where one does
/// not, reading goes on until the name comes). A complete one is read to its end, so that there a name given twice means what it means
/// to the worker.
///
/// # Errors
/// The bytes cannot be the beginning of a `ModelInferRequest`; tensors are not looked into.
pub fn peek(prefix: &[u8], complete: bool) -> Result<Peek, Malformed> {
    let mut reader = Reader::new(prefix)?;
    let mut head = Head::default();
    loop {
        if reader.done() {
            return Ok(if complete {
                found(head, prefix)
            } else {
                Peek::More
            });
        }
        match field(&mut reader, &mut head, complete) {
            Ok(true) => return Ok(found(head, prefix)),
            Ok(false) => {}
            Err(Failure::Outer(error)) if error.what == TRUNCATED && !complete => {
                return Ok(Peek::More);
            }
            Err(Failure::Outer(error) | Failure::Inner(error)) => return Err(error),
        }
    }
}

/// Where reading failed: between fields, where more bytes may help, or inside a field that is all there.
enum Failure {
    Outer(Malformed),
    Inner(Malformed),
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Self::Outer(error)
    }
}

/// Reads one field; `true` if nothing more is needed.
fn field(reader: &mut Reader<'_>, head: &mut Head, complete: bool) -> Result<bool, Failure> {
    let key = reader.key()?;
    match key {
        MODEL_NAME => head.model = reader.text()?,
        MODEL_VERSION => head.version = reader.text()?,
        ID => head.id = reader.text()?,
        PARAMETERS => {
            let entry = reader.nested()?;
            if head.parameters.len() >= MAX_PARAMETERS {
                return Err(Failure::Inner(
                    reader.malformed("the request has more than 16384 parameters"),
                ));
            }
            head.parameters
                .push(parameter(entry).map_err(Failure::Inner)?);
        }
        INPUTS | OUTPUTS | RAW_INPUT_CONTENTS => {
            if !complete && !head.model.is_empty() {
                return Ok(true);
            }
            reader.span()?;
        }
        _ => unknown(reader, key, 7)?,
    }
    Ok(false)
}

fn found(mut head: Head, bytes: &[u8]) -> Peek {
    let sequence = head
        .parameters
        .iter()
        .rfind(|it| it.key.of(bytes) == b"sequence_id");
    head.sequence_id = sequence.and_then(|it| SequenceId::of(it.value));
    Peek::Head(head)
}
