//! Whether an answer is the right one.

use bytes::Bytes;

/// `ModelInferResponse.raw_output_contents`.
const RAW_OUTPUT_CONTENTS: u64 = 6;

/// Compares the raw outputs of an answer, one after the other, with what is expected.
pub(crate) struct Check {
    expected: Vec<Bytes>,
    tolerance: Option<f32>,
}

impl Check {
    /// `expected` holds one output for every payload, or one for all of them.
    pub(crate) fn new(expected: Vec<Bytes>, tolerance: Option<f32>) -> Self {
        Self {
            expected,
            tolerance,
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.expected.is_empty()
    }

    /// Whether the gRPC frames in `body` answer payload number `payload` rightly.
    pub(crate) fn matches(&self, payload: usize, body: &[Bytes]) -> bool {
        let expected = &self.expected[payload % self.expected.len()];
        let body = body.concat();
        let Some(outputs) = body.get(5..).and_then(raw_outputs) else {
            return false;
        };
        match self.tolerance {
            None => outputs == **expected,
            Some(tolerance) => {
                outputs.len() == expected.len()
                    && floats(&outputs)
                        .zip(floats(expected))
                        .all(|(got, meant)| (got - meant).abs() <= tolerance)
            }
        }
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().expect("chunks of four")))
}

/// All `raw_output_contents` of a `ModelInferResponse`; `None` if the message is malformed.
fn raw_outputs(mut message: &[u8]) -> Option<Vec<u8>> {
    let mut outputs = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message)?;
        match key & 7 {
            0 => {
                varint(&mut message)?;
            }
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                let (field, rest) = message.split_at_checked(length)?;
                if key >> 3 == RAW_OUTPUT_CONTENTS {
                    outputs.extend_from_slice(field);
                }
                message = rest;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(outputs)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(raw: &[u8]) -> Vec<Bytes> {
        let mut message = vec![0x0a, 1, b'm', 0x32, raw.len() as u8];
        message.extend_from_slice(raw);
        let mut frame = vec![0, 0, 0, 0, message.len() as u8];
        frame.extend_from_slice(&message);
        // Cut where a DATA frame may end: in the middle of a field.
        let tail = frame.split_off(7);
        vec![frame.into(), tail.into()]
    }

    #[test]
    fn one_wrong_byte_is_a_mismatch() {
        let check = Check::new(vec![Bytes::from_static(&[1, 2, 3, 4])], None);
        assert!(check.matches(0, &reply(&[1, 2, 3, 4])));
        assert!(!check.matches(0, &reply(&[1, 2, 3, 5])));
        assert!(!check.matches(0, &reply(&[1, 2, 3])));
        assert!(!check.matches(0, &[]));
    }

    #[test]
    fn each_payload_has_its_own_answer() {
        let check = Check::new(
            vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")],
            None,
        );
        assert!(check.matches(1, &reply(b"b")));
        assert!(!check.matches(0, &reply(b"b")));
    }

    #[test]
    fn floats_may_differ_within_the_tolerance_and_nan_never_passes() {
        let bytes = |value: f32| Bytes::copy_from_slice(&value.to_le_bytes());
        let check = Check::new(vec![bytes(1.0)], Some(1e-3));
        assert!(check.matches(0, &reply(&bytes(1.0005))));
        assert!(!check.matches(0, &reply(&bytes(1.002))));
        assert!(!check.matches(0, &reply(&bytes(f32::NAN))));
    }
}
