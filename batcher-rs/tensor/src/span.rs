//! A piece of a message as offsets, so that a parsed request borrows nothing and copies nothing.

use bytes::Bytes;

/// A range of bytes within one message. It means something only together with the message that it was found in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte, counted from the message's first.
    pub start: u32,
    /// Number of bytes.
    pub len: u32,
}

impl Span {
    /// The bytes. Panics if `message` is shorter than the one that this span was found in.
    #[inline]
    pub fn of(self, message: &[u8]) -> &[u8] {
        &message[self.start as usize..self.end()]
    }

    /// The text; empty should the bytes not be UTF-8, which [`parse`](crate::parse) rules out for every string field.
    #[inline]
    pub fn text(self, message: &[u8]) -> &str {
        std::str::from_utf8(self.of(message)).unwrap_or_default()
    }

    /// The bytes, sharing the message's memory.
    #[inline]
    pub fn slice(self, message: &Bytes) -> Bytes {
        message.slice(self.start as usize..self.end())
    }

    /// Whether there is nothing in it.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// One past the last byte.
    #[inline]
    pub(crate) const fn end(self) -> usize {
        self.start as usize + self.len as usize
    }

    /// From offsets known to lie within a message, which is below 4 GiB.
    #[inline]
    pub(crate) const fn new(start: usize, len: usize) -> Self {
        Self {
            start: start as u32,
            len: len as u32,
        }
    }
}
