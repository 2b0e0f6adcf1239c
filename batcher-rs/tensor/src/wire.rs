//! Reading and writing the protobuf wire format, with exact bounds: nothing is read past its own field's end.

use std::fmt;

use crate::span::Span;

/// The bytes are not a protobuf message of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Where reading stopped, counted from the message's first byte.
    pub offset: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.offset)
    }
}

impl std::error::Error for Malformed {}

/// The one complaint that more bytes could cure; [`peek`](crate::peek) tells it from the others.
pub(crate) const TRUNCATED: &str = "a field ends past the end of its message";

/// Protobuf's own limit for anything with a length.
const MAX_LENGTH: u64 = 0x7fff_ffff;

/// How deep unknown groups may nest; the default of protobuf's own readers.
const MAX_GROUP_DEPTH: u32 = 100;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const GROUP_START: u32 = 3;
const GROUP_END: u32 = 4;
const FIXED32: u32 = 5;

/// Key of a varint field.
pub(crate) const fn varint_key(field: u32) -> u32 {
    field << 3 | VARINT
}
/// Key of an 8-byte field.
pub(crate) const fn fixed64_key(field: u32) -> u32 {
    field << 3 | FIXED64
}
/// Key of a length-delimited field: string, bytes, message, packed numbers.
pub(crate) const fn length_key(field: u32) -> u32 {
    field << 3 | LENGTH
}
/// Key of a 4-byte field.
pub(crate) const fn fixed32_key(field: u32) -> u32 {
    field << 3 | FIXED32
}

/// A cursor over a message, or over one field of it; offsets always count from the whole message's start.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    /// Everything up to the end of what may be read.
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Result<Self, Malformed> {
        if message.len() as u64 > MAX_LENGTH {
            return Err(Malformed {
                offset: 0,
                what: "the message is larger than 2 GiB",
            });
        }
        Ok(Self {
            bytes: message,
            at: 0,
        })
    }

    /// Over one field of `message`.
    #[inline]
    pub(crate) fn within(message: &'a [u8], span: Span) -> Self {
        Self {
            bytes: &message[..span.end()],
            at: span.start as usize,
        }
    }

    #[inline]
    pub(crate) fn done(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// An error at the cursor.
    #[cold]
    pub(crate) fn malformed(&self, what: &'static str) -> Malformed {
        Malformed {
            offset: self.at,
            what,
        }
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let Some(&byte) = self.bytes.get(self.at) else {
                return Err(self.malformed(TRUNCATED));
            };
            if shift == 63 && byte > 1 {
                return Err(self.malformed("a varint holds more than 64 bits"));
            }
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    /// The next field's key: number and wire type as one value.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<u32, Malformed> {
        let start = self.at;
        let key = self.varint()?;
        let valid = u32::try_from(key).ok().filter(|key| key >> 3 != 0);
        valid.ok_or(Malformed {
            offset: start,
            what: "a field number is out of range",
        })
    }

    /// The bytes of a length-delimited field.
    #[inline]
    pub(crate) fn span(&mut self) -> Result<Span, Malformed> {
        let len = self.varint()?;
        if len > self.remaining() as u64 {
            return Err(self.malformed(if len > MAX_LENGTH {
                "a length is larger than 2 GiB"
            } else {
                TRUNCATED
            }));
        }
        let span = Span::new(self.at, len as usize);
        self.at += len as usize;
        Ok(span)
    }

    /// A length-delimited field that must be UTF-8.
    #[inline]
    pub(crate) fn text(&mut self) -> Result<Span, Malformed> {
        let span = self.span()?;
        match std::str::from_utf8(span.of(self.bytes)) {
            Ok(_) => Ok(span),
            Err(error) => Err(Malformed {
                offset: span.start as usize + error.valid_up_to(),
                what: "a string is not UTF-8",
            }),
        }
    }

    /// A length-delimited field as a reader of its own.
    #[inline]
    pub(crate) fn nested(&mut self) -> Result<Self, Malformed> {
        let span = self.span()?;
        Ok(self.enter(span))
    }

    /// A reader of a field just passed.
    #[inline]
    pub(crate) fn enter(&self, span: Span) -> Self {
        Self::within(self.bytes, span)
    }

    /// The next `len` bytes, whatever they are.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<Span, Malformed> {
        if len > self.remaining() {
            return Err(self.malformed(TRUNCATED));
        }
        let span = Span::new(self.at, len);
        self.at += len;
        Ok(span)
    }

    /// The next `N` bytes as they are (4- and 8-byte fields).
    #[inline]
    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some(value) = self.bytes[self.at..].first_chunk::<N>() else {
            return Err(self.malformed(TRUNCATED));
        };
        self.at += N;
        Ok(*value)
    }

    /// Passes over an unknown field whose key was just read.
    pub(crate) fn skip(&mut self, key: u32) -> Result<(), Malformed> {
        match key & 7 {
            GROUP_START => self.skip_group(key >> 3, MAX_GROUP_DEPTH),
            GROUP_END => Err(self.malformed("a group ends that never began")),
            _ => self.skip_value(key),
        }
    }

    fn skip_value(&mut self, key: u32) -> Result<(), Malformed> {
        match key & 7 {
            VARINT => self.varint().map(drop),
            FIXED64 => self.fixed::<8>().map(drop),
            LENGTH => self.span().map(drop),
            FIXED32 => self.fixed::<4>().map(drop),
            _ => Err(self.malformed("a wire type does not exist")),
        }
    }

    fn skip_group(&mut self, field: u32, depth: u32) -> Result<(), Malformed> {
        if depth == 0 {
            return Err(self.malformed("groups are nested too deep"));
        }
        loop {
            if self.done() {
                return Err(self.malformed(TRUNCATED));
            }
            let key = self.key()?;
            match key & 7 {
                GROUP_START => self.skip_group(key >> 3, depth - 1)?,
                GROUP_END if key >> 3 == field => return Ok(()),
                GROUP_END => return Err(self.malformed("a group ends under another's number")),
                _ => self.skip_value(key)?,
            }
        }
    }
}

/// Bytes that `value` takes as a varint.
#[inline]
pub(crate) const fn varint_len(value: u64) -> usize {
    // 7 bits a byte: ⌈bits / 7⌉ with at least one.
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Bytes that a length-delimited field of `len` bytes takes, under a field number below 16.
#[inline]
pub(crate) const fn field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Like [`field_len`], for a string that is left out when empty.
#[inline]
pub(crate) const fn text_len(text: &[u8]) -> usize {
    if text.is_empty() {
        0
    } else {
        field_len(text.len())
    }
}

#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Key and length of a length-delimited field; its bytes follow.
#[inline]
pub(crate) fn put_head(out: &mut Vec<u8>, field: u32, len: usize) {
    out.push(length_key(field) as u8);
    put_varint(out, len as u64);
}

/// A string field, left out when empty.
#[inline]
pub(crate) fn put_text(out: &mut Vec<u8>, field: u32, text: &[u8]) {
    if !text.is_empty() {
        put_head(out, field, text.len());
        out.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<u64, Malformed> {
        Reader::new(bytes).unwrap().varint()
    }

    #[test]
    fn varints_round_trip_at_every_length() {
        for bits in 0..64 {
            for value in [1_u64 << bits, (1_u64 << bits) - 1, u64::MAX >> bits] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value), "{value}");
                assert_eq!(read(&out), Ok(value));
                let cut = read(&out[..out.len() - 1]).unwrap_err();
                assert_eq!((cut.what, cut.offset), (TRUNCATED, out.len() - 1));
            }
        }
    }

    #[test]
    fn a_varint_of_more_than_64_bits_is_malformed() {
        let mut bytes = [0xff; 10];
        bytes[9] = 0x02;
        assert_eq!(read(&bytes).unwrap_err().offset, 9);
        bytes[9] = 0x01;
        assert_eq!(read(&bytes), Ok(u64::MAX));
        assert!(read(&[0x80; 11]).is_err());
    }

    #[test]
    fn an_absurd_length_is_told_apart_from_a_truncated_one() {
        let absurd = [0xff, 0xff, 0xff, 0xff, 0x7f];
        let error = Reader::new(&absurd).unwrap().span().unwrap_err();
        assert_eq!(error.what, "a length is larger than 2 GiB");
        let error = Reader::new(&[5, 1, 2]).unwrap().span().unwrap_err();
        assert_eq!(error.what, TRUNCATED);
    }

    #[test]
    fn groups_are_skipped_with_their_contents_and_only_so_deep() {
        // field 9: a group that holds a varint, a string, and another group
        let group = [0x4b, 0x08, 0x01, 0x12, 0x02, 0x4c, 0x4c, 0x53, 0x54, 0x4c];
        let mut reader = Reader::new(&group).unwrap();
        let key = reader.key().unwrap();
        assert_eq!(reader.skip(key), Ok(()));
        assert!(reader.done());

        let bomb = vec![0x4b; 100_000];
        let mut reader = Reader::new(&bomb).unwrap();
        let key = reader.key().unwrap();
        assert_eq!(
            reader.skip(key).unwrap_err().what,
            "groups are nested too deep"
        );
    }
}
