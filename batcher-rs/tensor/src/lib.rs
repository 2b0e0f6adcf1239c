//! Open Inference messages and tensors: bytes in, bytes out.
//!
//! The steps of one request, in order; nothing here does I/O, waits, or knows Python:
//!
//! 1. [`parse`] finds the fields of a `ModelInferRequest` as offsets into the received bytes ([`peek`] reads only as much as routing needs);
//! 2. [`admit`] holds it against the model's [`Signature`] and refuses, by name, whatever the model could not run;
//! 3. [`join`] lays the rows of several admitted requests side by side, along each input's own batch axis;
//! 4. [`check_outputs`] and [`encode_reply`] give each request its own rows of what the model returned.
//!
//! The wire is little-endian and so is everything in here.
#![forbid(unsafe_code)]

mod admit;
mod bytes_tensor;
mod contents;
mod datatype;
mod encode;
mod invalid;
mod join;
mod key;
mod outputs;
mod parameters;
mod parse;
mod peek;
mod shape;
mod signature;
mod slab;
mod span;
mod split;
mod stream;
mod wire;

pub use admit::{Admitted, admit};
pub use datatype::Datatype;
pub use encode::{OutputData, OutputView, ReplyTooLarge, encode_reply};
pub use invalid::{Invalid, Violation};
pub use join::{Joined, JoinedData, JoinedInput, join};
pub use key::BatchKey;
pub use outputs::{BadOutput, check_outputs, wanted};
pub use parameters::{ParameterValue, SequenceId};
pub use parse::{Input, Parameter, Request, Requested, Typed, Value, parse};
pub use peek::{Head, Peek, peek};
pub use signature::{Signature, TensorSpec};
pub use slab::{Slab, SlabView};
pub use span::Span;
pub use stream::{encode_stream_end, encode_stream_error, encode_stream_reply};
pub use wire::Malformed;
