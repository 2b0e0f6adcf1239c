//! Raw `BYTES` tensors: each element is a 4-byte little-endian length and that many bytes, one after another (V04).

use crate::span::Span;

/// Why raw contents are not the elements that a shape promises.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Element `index` starts or ends past the end.
    Truncated { index: usize },
    /// This many bytes are left after the last element.
    Trailing { left: usize },
}

/// Finds `count` elements in `raw`, a span of `message`.
pub(crate) fn elements(message: &[u8], raw: Span, count: usize) -> Result<Vec<Span>, Fault> {
    let bytes = raw.of(message);
    // The count is the caller's claim; an element takes at least four bytes.
    let mut elements = Vec::with_capacity(count.min(bytes.len() / 4));
    let mut rest = bytes;
    for index in 0..count {
        let Some((len, tail)) = rest.split_first_chunk::<4>() else {
            return Err(Fault::Truncated { index });
        };
        let len = u32::from_le_bytes(*len) as usize;
        let Some(next) = tail.get(len..) else {
            return Err(Fault::Truncated { index });
        };
        let start = raw.end() - tail.len();
        elements.push(Span::new(start, len));
        rest = next;
    }
    if !rest.is_empty() {
        return Err(Fault::Trailing { left: rest.len() });
    }
    Ok(elements)
}

/// The first element that is not UTF-8. ONNX Runtime's strings are, and it would change other bytes silently.
pub(crate) fn first_not_utf8(message: &[u8], elements: &[Span]) -> Option<usize> {
    let valid = |element: &Span| std::str::from_utf8(element.of(message)).is_ok();
    elements.iter().position(|element| !valid(element))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(raw: &[u8], count: usize) -> Result<Vec<&[u8]>, Fault> {
        let spans = elements(raw, Span::new(0, raw.len()), count)?;
        Ok(spans.into_iter().map(|span| span.of(raw)).collect())
    }

    #[test]
    fn elements_keep_their_zeros_and_may_be_empty() {
        let raw = [&[5, 0, 0, 0][..], b"ab\0c\0", &[0; 4], &[1, 0, 0, 0, 0]].concat();
        assert_eq!(find(&raw, 3), Ok(vec![&b"ab\0c\0"[..], b"", b"\0"]));
        assert_eq!(find(&[], 0), Ok(vec![]));
    }

    #[test]
    fn framing_that_does_not_add_up_is_refused() {
        let raw = [2, 0, 0, 0, b'a', b'b', 9, 0, 0, 0, b'c'];
        assert_eq!(find(&raw, 2), Err(Fault::Truncated { index: 1 }));
        assert_eq!(find(&raw, 1), Err(Fault::Trailing { left: 5 }));
        assert_eq!(find(&raw[..6], 2), Err(Fault::Truncated { index: 1 }));
        assert_eq!(find(&[0xff; 8], 1), Err(Fault::Truncated { index: 0 }));
        assert_eq!(
            find(&[0; 8], usize::MAX),
            Err(Fault::Truncated { index: 2 })
        );
    }
}
