//! What runs a batch. The front knows batches and answers; who computes them is behind this trait (Python, in the product).

use headrace_tensor::{Joined, OutputView, ParameterValue};

/// The value of a request parameter that reaches the model.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// A truth value.
    Bool(bool),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    Text(String),
}

impl From<ParameterValue<'_>> for Parameter {
    fn from(value: ParameterValue<'_>) -> Self {
        match value {
            ParameterValue::Bool(value) => Self::Bool(value),
            ParameterValue::Int(value) => Self::Int(value),
            ParameterValue::Uint(value) => Self::Uint(value),
            ParameterValue::Double(value) => Self::Double(value),
            ParameterValue::Text(value) => Self::Text(value.to_owned()),
        }
    }
}

/// One batch, joined and ready to run.
pub struct BatchInput<'a> {
    /// The inputs, rows joined.
    pub joined: Joined,
    /// Indexes of the outputs that somebody in the batch wants, ascending.
    pub wanted: &'a [usize],
    /// Request parameters that reach the model; equal for all requests of a batch, since they are part of its key.
    pub parameters: Vec<(String, Parameter)>,
}

/// Why a batch gave no answer.
#[derive(Debug)]
pub enum RunError {
    /// The model cannot work on these values; the text is for the caller.
    InvalidInput(String),
    /// Anything else; the detail is logged by whoever ran it and never reaches the caller.
    Failed,
}

/// Takes the answers of a batch: the wanted outputs, and whether they are the only and last ones.
/// False asks the runner to stop: nobody takes any more.
pub type Emit<'a> = dyn FnMut(&[OutputView<'_>], bool) -> bool + Send + 'a;

/// Runs batches, one at a time, on the instance's own thread.
pub trait Runner: Send {
    /// Runs one batch and hands each answer to `emit`: one of them, or a stream of any number.
    ///
    /// # Errors
    /// When the model raised; no answer is missing otherwise.
    fn run(&mut self, batch: BatchInput<'_>, emit: &mut Emit<'_>) -> Result<(), RunError>;

    /// Logs a fault that was found outside the model, e.g. outputs that don't fit their batch.
    fn report(&mut self, text: &str);
}
