//! Request and tensor parameters: the ones with a meaning of their own, and the ones that a model asked to see.

use std::time::Duration;

use crate::admit::Admitted;
use crate::invalid::{Invalid, UNSUPPORTED};
use crate::parse::{Parameter, Request, Value};
use crate::signature::Signature;
use crate::span::Span;

/// A sequence's name, which callers give as a number or as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceId {
    /// `int64_param` or `uint64_param`; never 0.
    Number(u64),
    /// `string_param`; never empty.
    Text(Span),
}

impl SequenceId {
    /// 0 and the empty string mean no sequence.
    pub(crate) fn of(value: Value) -> Option<Self> {
        match value {
            Value::Uint(0) | Value::Int(0) => None,
            Value::Uint(number) => Some(Self::Number(number)),
            Value::Int(number) => Some(Self::Number(number as u64)),
            Value::String(text) if !text.is_empty() => Some(Self::Text(text)),
            _ => None,
        }
    }
}

/// The value of a parameter that reaches the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParameterValue<'a> {
    /// `bool_param`.
    Bool(bool),
    /// `int64_param`.
    Int(i64),
    /// `uint64_param`.
    Uint(u64),
    /// `double_param`.
    Double(f64),
    /// `string_param`.
    Text(&'a str),
}

impl Admitted {
    /// The parameters that reach the model, in the signature's order; `message` is the one that was admitted.
    pub fn parameters<'a>(
        &'a self,
        message: &'a [u8],
        signature: &'a Signature,
    ) -> impl Iterator<Item = (&'a str, ParameterValue<'a>)> + 'a {
        self.parameters.iter().filter_map(move |&(index, value)| {
            let name = signature.parameters.get(usize::from(index))?;
            let value = match value {
                Value::Bool(value) => ParameterValue::Bool(value),
                Value::Int(value) => ParameterValue::Int(value),
                Value::Uint(value) => ParameterValue::Uint(value),
                Value::Double(value) => ParameterValue::Double(value),
                Value::String(span) => ParameterValue::Text(span.text(message)),
                Value::None => return None,
            };
            Some((name.as_str(), value))
        })
    }
}

/// Reads the request's parameters into `admitted`. What is neither reserved nor asked for by the model is ignored.
pub(crate) fn admit(
    message: &[u8],
    request: &Request,
    signature: &Signature,
    admitted: &mut Admitted,
) -> Result<(), Invalid> {
    for &Parameter { key, value } in &request.parameters {
        let key = key.text(message);
        match key {
            "priority" => {
                let priority = u32::try_from(whole(key, value)?);
                admitted.priority =
                    priority.map_err(|_| Invalid::parameter(key, "is larger than any priority"))?;
            }
            "timeout" => {
                let micros = whole(key, value)?;
                admitted.timeout = (micros > 0).then(|| Duration::from_micros(micros));
            }
            "sequence_id" => {
                admitted.sequence_id = match value {
                    Value::Uint(_) | Value::Int(_) | Value::String(_) => SequenceId::of(value),
                    _ => return Err(expected(key, "an integer or a string", value)),
                };
            }
            "sequence_start" => admitted.sequence_start = switch(key, value)?,
            "sequence_end" => admitted.sequence_end = switch(key, value)?,
            _ => {}
        }
        if let Some(index) = signature.parameters.iter().position(|it| it == key) {
            if value == Value::None {
                return Err(Invalid::parameter(key, "has no value"));
            }
            reach(&mut admitted.parameters, index as u16, value);
        }
    }
    // The signature's order, whatever the caller's was: requests that mean the same must have the same batch key.
    admitted.parameters.sort_unstable_by_key(|entry| entry.0);
    Ok(())
}

/// Of a key given twice the last counts.
fn reach(parameters: &mut Vec<(u16, Value)>, index: u16, value: Value) {
    match parameters.iter_mut().find(|entry| entry.0 == index) {
        Some(entry) => entry.1 = value,
        None => parameters.push((index, value)),
    }
}

fn whole(key: &str, value: Value) -> Result<u64, Invalid> {
    match value {
        Value::Uint(value) => Ok(value),
        Value::Int(value) if value >= 0 => Ok(value as u64),
        Value::Int(value) => Err(Invalid::parameter(
            key,
            format_args!("must not be negative, got {value}"),
        )),
        _ => Err(expected(key, "an integer", value)),
    }
}

fn switch(key: &str, value: Value) -> Result<bool, Invalid> {
    match value {
        Value::Bool(value) => Ok(value),
        _ => Err(expected(key, "true or false", value)),
    }
}

#[cold]
fn expected(key: &str, expected: &str, value: Value) -> Invalid {
    let got = match value {
        Value::None => "no value",
        Value::Bool(_) => "bool_param",
        Value::Int(_) => "int64_param",
        Value::String(_) => "string_param",
        Value::Double(_) => "double_param",
        Value::Uint(_) => "uint64_param",
    };
    Invalid::parameter(key, format_args!("expected {expected}, got {got}"))
}

/// Refuses inputs that lie in shared memory: we read none, and must not take the absence of contents for an empty tensor.
#[inline]
pub(crate) fn check_input(
    message: &[u8],
    name: &str,
    parameters: &[Parameter],
) -> Result<(), Invalid> {
    match unsupported(message, parameters, &["shared_memory_region"]) {
        Some(key) => Err(Invalid::input(
            UNSUPPORTED,
            name,
            format_args!(
                "parameter '{key}' is not supported here; send the contents in the message"
            ),
        )),
        None => Ok(()),
    }
}

/// The same for requested outputs, and for classification, which a client can do as well from the scores.
#[inline]
pub(crate) fn check_output(
    message: &[u8],
    name: &str,
    parameters: &[Parameter],
) -> Result<(), Invalid> {
    match unsupported(
        message,
        parameters,
        &["shared_memory_region", "classification"],
    ) {
        Some(key) => Err(Invalid::output(
            UNSUPPORTED,
            name,
            format_args!("parameter '{key}' is not supported here; ask for the output itself"),
        )),
        None => Ok(()),
    }
}

fn unsupported<'k>(
    message: &[u8],
    parameters: &[Parameter],
    refused: &[&'k str],
) -> Option<&'k str> {
    let mut keys = parameters.iter().map(|it| it.key.of(message));
    keys.find_map(|key| refused.iter().copied().find(|it| it.as_bytes() == key))
}
