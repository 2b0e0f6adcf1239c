//! A refusal: one sentence for people, and the fields at fault for programs.

use std::fmt;

use crate::wire::Malformed;

/// Why a request was not admitted. Nothing of it reached the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// `INVALID_REQUEST`, `INVALID_TENSOR`, `UNKNOWN_TENSOR`, `INVALID_PARAMETER` or `UNSUPPORTED`.
    pub reason: &'static str,
    /// One sentence that names the tensor, what was expected and what came.
    pub message: String,
    /// The fields at fault, for `google.rpc.BadRequest`.
    pub violations: Vec<Violation>,
}

/// One field at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its path: `inputs[NAME].shape`, `outputs[NAME]`, `parameters[KEY]`, ….
    pub field: String,
    /// What is wrong with it.
    pub description: String,
}

pub(crate) const INVALID_REQUEST: &str = "INVALID_REQUEST";
pub(crate) const INVALID_TENSOR: &str = "INVALID_TENSOR";
pub(crate) const UNKNOWN_TENSOR: &str = "UNKNOWN_TENSOR";
pub(crate) const INVALID_PARAMETER: &str = "INVALID_PARAMETER";
pub(crate) const UNSUPPORTED: &str = "UNSUPPORTED";

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Invalid {}

impl From<Malformed> for Invalid {
    fn from(malformed: Malformed) -> Self {
        Self {
            reason: INVALID_REQUEST,
            message: format!("the message is not a ModelInferRequest: {malformed}"),
            violations: Vec::new(),
        }
    }
}

impl Invalid {
    /// With one field at fault.
    #[cold]
    pub(crate) fn at(reason: &'static str, field: String, message: String) -> Self {
        Self {
            reason,
            violations: vec![Violation {
                field,
                description: message.clone(),
            }],
            message,
        }
    }

    /// About a whole input.
    #[cold]
    pub(crate) fn input(reason: &'static str, name: &str, what: impl fmt::Display) -> Self {
        let name = Brief(name);
        let message = format!("input '{name}': {what}");
        Self::at(reason, format!("inputs[{name}]"), message)
    }

    /// About one part of an input: its `shape`, `datatype`, `contents` or `parameters`.
    #[cold]
    pub(crate) fn part(name: &str, part: &str, what: impl fmt::Display) -> Self {
        let name = Brief(name);
        let message = format!("input '{name}': {what}");
        Self::at(INVALID_TENSOR, format!("inputs[{name}].{part}"), message)
    }

    /// About a requested output.
    #[cold]
    pub(crate) fn output(reason: &'static str, name: &str, what: impl fmt::Display) -> Self {
        let name = Brief(name);
        let message = format!("output '{name}': {what}");
        Self::at(reason, format!("outputs[{name}]"), message)
    }

    /// About a request parameter.
    #[cold]
    pub(crate) fn parameter(key: &str, what: impl fmt::Display) -> Self {
        let key = Brief(key);
        let message = format!("parameter '{key}': {what}");
        Self::at(INVALID_PARAMETER, format!("parameters[{key}]"), message)
    }
}

/// Text from a caller, made fit for a message: control characters escaped, and cut, because a name may be megabytes long.
pub(crate) struct Brief<'a>(pub(crate) &'a str);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 80;
        let mut chars = self.0.chars();
        for char in chars.by_ref().take(LONGEST) {
            if char.is_control() {
                write!(f, "{}", char.escape_default())?;
            } else {
                write!(f, "{char}")?;
            }
        }
        if chars.next().is_some() {
            f.write_str("…")?;
        }
        Ok(())
    }
}

/// A list of names for a message: `'a', 'b' or 'c'`.
pub(crate) fn choices<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const MOST: usize = 8;
    let quoted: Vec<String> = names
        .into_iter()
        .map(|name| format!("'{}'", Brief(name)))
        .collect();
    match quoted.as_slice() {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [most @ .., last] if quoted.len() <= MOST => format!("{} or {last}", most.join(", ")),
        many => format!("{}, … ({} in all)", many[..MOST].join(", "), many.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_text_is_cut_and_cannot_break_a_line() {
        let long = "ä".repeat(1_000_000);
        assert_eq!(Brief(&long).to_string().chars().count(), 81);
        assert_eq!(Brief("a\r\nb\0").to_string(), "a\\r\\nb\\u{0}");
    }

    #[test]
    fn names_are_listed_as_a_sentence_would() {
        assert_eq!(choices([]), "none");
        assert_eq!(choices(["a"]), "'a'");
        assert_eq!(choices(["a", "b", "c"]), "'a', 'b' or 'c'");
        let many: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        assert!(choices(many.iter().map(String::as_str)).ends_with("'7', … (100 in all)"));
    }
}
