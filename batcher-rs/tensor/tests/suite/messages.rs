//! The protocol's messages as prost reads and writes them, and short ways to make requests and signatures.

use std::collections::HashMap;

use bytes::Bytes;
use headrace_tensor::{Admitted, Datatype, Invalid, Signature, TensorSpec, admit, parse};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferParameter {
    #[prost(oneof = "Choice", tags = "1, 2, 3, 4, 5")]
    pub(crate) choice: Option<Choice>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Choice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int(i64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(uint64, tag = "5")]
    Uint(u64),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub(crate) bools: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub(crate) ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) int64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) uints: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) uint64s: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub(crate) fp32s: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) fp64s: Vec<f64>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub(crate) bytes: Vec<Vec<u8>>,
}

/// The same with every number unpacked, as an old writer sends it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UnpackedContents {
    #[prost(bool, repeated, packed = "false", tag = "1")]
    pub(crate) bools: Vec<bool>,
    #[prost(int32, repeated, packed = "false", tag = "2")]
    pub(crate) ints: Vec<i32>,
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub(crate) int64s: Vec<i64>,
    #[prost(uint32, repeated, packed = "false", tag = "4")]
    pub(crate) uints: Vec<u32>,
    #[prost(uint64, repeated, packed = "false", tag = "5")]
    pub(crate) uint64s: Vec<u64>,
    #[prost(float, repeated, packed = "false", tag = "6")]
    pub(crate) fp32s: Vec<f32>,
    #[prost(double, repeated, packed = "false", tag = "7")]
    pub(crate) fp64s: Vec<f64>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub(crate) bytes: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: HashMap<String, InferParameter>,
    #[prost(message, optional, tag = "5")]
    pub(crate) contents: Option<Contents>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Requested {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(map = "string, message", tag = "2")]
    pub(crate) parameters: HashMap<String, InferParameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: HashMap<String, InferParameter>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) inputs: Vec<Tensor>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) outputs: Vec<Requested>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub(crate) raw: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: HashMap<String, InferParameter>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub(crate) raw: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamResponse {
    #[prost(string, tag = "1")]
    pub(crate) error: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) response: Option<Response>,
}

impl Request {
    pub(crate) fn new() -> Self {
        Self {
            model: "m".into(),
            ..Self::default()
        }
    }

    /// One more input, without contents.
    pub(crate) fn input(mut self, name: &str, datatype: &str, shape: &[i64]) -> Self {
        self.inputs.push(Tensor {
            name: name.into(),
            datatype: datatype.into(),
            shape: shape.into(),
            ..Tensor::default()
        });
        self
    }

    /// Raw contents for the next input.
    pub(crate) fn raw(mut self, raw: impl Into<Vec<u8>>) -> Self {
        self.raw.push(raw.into());
        self
    }

    /// Typed contents for the last input.
    pub(crate) fn typed(mut self, contents: Contents) -> Self {
        self.inputs.last_mut().unwrap().contents = Some(contents);
        self
    }

    pub(crate) fn output(mut self, name: &str) -> Self {
        self.outputs.push(Requested {
            name: name.into(),
            ..Requested::default()
        });
        self
    }

    pub(crate) fn parameter(mut self, key: &str, choice: Choice) -> Self {
        self.parameters.insert(key.into(), some(choice));
        self
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    pub(crate) fn admit(&self, signature: &Signature) -> Result<(Bytes, Admitted), Invalid> {
        let message = self.bytes();
        let admitted = admit(&message, &parse(&message)?, signature)?;
        Ok((message, admitted))
    }

    /// The refusal, as `field: message`, with the reason where it is not `INVALID_TENSOR`.
    pub(crate) fn refusal(&self, signature: &Signature) -> String {
        let invalid = self.admit(signature).expect_err("the request is invalid");
        let fields: Vec<&str> = invalid.violations.iter().map(|it| &*it.field).collect();
        let reason = match invalid.reason {
            "INVALID_TENSOR" => String::new(),
            reason => format!("{reason} "),
        };
        format!("{reason}{}: {}", fields.join(" "), invalid.message)
    }
}

pub(crate) fn some(choice: Choice) -> InferParameter {
    InferParameter {
        choice: Some(choice),
    }
}

pub(crate) fn spec(
    name: &str,
    datatype: Datatype,
    dims: &[i64],
    axis: Option<usize>,
) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        datatype,
        dims: dims.into(),
        batch_axis: axis,
        optional: false,
    }
}

/// A batching model of at most 8 rows, named `m`, version 1.
pub(crate) fn signature(inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>) -> Signature {
    Signature {
        model: "m".into(),
        version: "1".into(),
        inputs,
        outputs,
        max_rows: 8,
        batching: true,
        parameters: Vec::new(),
    }
}

/// One input `x` of this datatype and these dims with rows along the first, one output `y` alike.
pub(crate) fn identity(datatype: Datatype, dims: &[i64]) -> Signature {
    signature(
        vec![spec("x", datatype, dims, Some(0))],
        vec![spec("y", datatype, dims, Some(0))],
    )
}

/// The frame's message, the prefix checked.
pub(crate) fn unframe<M: Message + Default>(frame: &[u8]) -> M {
    assert_eq!(frame[0], 0, "not compressed");
    let len = u32::from_be_bytes(frame[1..5].try_into().unwrap());
    assert_eq!(len as usize, frame.len() - 5, "the frame says its length");
    M::decode(&frame[5..]).unwrap()
}

/// Raw contents of a `BYTES` tensor.
pub(crate) fn framed(elements: &[&[u8]]) -> Vec<u8> {
    let mut raw = Vec::new();
    for element in elements {
        raw.extend((element.len() as u32).to_le_bytes());
        raw.extend(*element);
    }
    raw
}

pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}
