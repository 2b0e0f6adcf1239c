//! A model's inputs and outputs, as the server declares them to the hot path.

use serde::Deserialize;

use crate::datatype::Datatype;

/// One input or output that a model declares.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Its name in the model.
    pub name: String,
    /// Datatype of its elements.
    pub datatype: Datatype,
    /// Size of every dimension, batch axis included; -1 where it may vary.
    pub dims: Vec<i64>,
    /// The dimension that counts rows; `None` for a tensor that all rows of a batch share.
    pub batch_axis: Option<usize>,
    /// An input that a request may leave out.
    #[serde(default)]
    pub optional: bool,
}

/// What one model version takes and gives. An immutable snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Signature {
    /// Model name, as replies state it.
    pub model: String,
    /// Version, as replies state it.
    pub version: String,
    /// Inputs in the model's order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the model's order.
    pub outputs: Vec<TensorSpec>,
    /// Most rows of one request (and of a batch).
    pub max_rows: u32,
    /// Whether requests may run together. If not, a request's rows count as 1 and no rule about the batch axis applies.
    pub batching: bool,
    /// Request parameters that reach the model; every other one is ignored.
    #[serde(default)]
    pub parameters: Vec<String>,
}

impl Signature {
    /// The batch axis of a tensor, if rows of several requests are to lie along it.
    #[inline]
    pub(crate) fn axis(&self, spec: &TensorSpec) -> Option<usize> {
        spec.batch_axis.filter(|_| self.batching)
    }
}

/// Where `name` stands in `specs`; looks at `hint` first, because callers mostly keep the model's order.
#[inline]
pub(crate) fn find(specs: &[TensorSpec], name: &[u8], hint: usize) -> Option<usize> {
    match specs.get(hint) {
        Some(spec) if spec.name.as_bytes() == name => Some(hint),
        _ => specs.iter().position(|spec| spec.name.as_bytes() == name),
    }
}
