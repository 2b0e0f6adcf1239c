//! The memory that batches are joined in: aligned, and used again for the next batch unless somebody still reads it.

use std::ops::Deref;
use std::sync::Arc;

/// Alignment of every view, in bytes: a cache line, and the widest vector register.
pub(crate) const ALIGNMENT: usize = 64;

const SMALLEST: usize = 4096;
/// Slabs up to this size are kept for good.
const KEEP: usize = 1 << 20;
/// After this many batches that needed less than an eighth of a larger one, it is given back.
const PATIENCE: u32 = 256;

/// Memory for the joined inputs of one batch at a time. Each instance has its own.
#[derive(Debug)]
pub struct Slab {
    buffer: Arc<Buffer>,
    small_batches: u32,
}

#[derive(Debug)]
struct Buffer {
    /// Longer than the capacity by what alignment may take at the front.
    bytes: Box<[u8]>,
    start: usize,
}

impl Buffer {
    fn new(capacity: usize) -> Self {
        let bytes = vec![0; capacity + ALIGNMENT - 1].into_boxed_slice();
        let start = bytes.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        Self { bytes, start }
    }

    fn capacity(&self) -> usize {
        self.bytes.len() + 1 - ALIGNMENT
    }
}

impl Default for Slab {
    fn default() -> Self {
        Self::new()
    }
}

impl Slab {
    /// A small one; it grows as batches need it.
    pub fn new() -> Self {
        Self {
            buffer: Arc::new(Buffer::new(SMALLEST)),
            small_batches: 0,
        }
    }

    /// `len` bytes to write a batch to; their old contents are of no meaning. A view of an earlier batch that is still held keeps its
    /// memory: this batch then gets other memory.
    pub(crate) fn writable(&mut self, len: usize) -> &mut [u8] {
        let capacity = self.buffer.capacity();
        self.small_batches = if capacity > KEEP && len < capacity / 8 {
            self.small_batches + 1
        } else {
            0
        };
        let fits = len <= capacity && self.small_batches < PATIENCE;
        if !fits || Arc::get_mut(&mut self.buffer).is_none() {
            let capacity = len.max(SMALLEST);
            // Powers of two spare small slabs from growing often; large ones would waste too much.
            let capacity = if capacity <= KEEP {
                capacity.next_power_of_two()
            } else {
                capacity.next_multiple_of(KEEP)
            };
            self.buffer = Arc::new(Buffer::new(capacity));
            self.small_batches = 0;
        }
        let buffer = Arc::get_mut(&mut self.buffer).expect("nobody else holds the buffer");
        let start = buffer.start;
        &mut buffer.bytes[start..start + len]
    }

    /// A view of `len` bytes from `start` of what was written last.
    pub(crate) fn view(&self, start: usize, len: usize) -> SlabView {
        SlabView {
            buffer: Arc::clone(&self.buffer),
            start: self.buffer.start + start,
            len,
        }
    }
}

/// A piece of a [`Slab`] that one input's rows were joined in. While it is held, its bytes stay as they are and where they are.
#[derive(Clone, Debug)]
pub struct SlabView {
    buffer: Arc<Buffer>,
    start: usize,
    len: usize,
}

impl Deref for SlabView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.bytes[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for SlabView {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_that_is_still_held_is_never_written_over() {
        let mut slab = Slab::new();
        slab.writable(100).fill(1);
        let held = slab.view(0, 100);
        slab.writable(100).fill(2);
        assert_eq!(&*held, &[1; 100]);
        assert_eq!(&*slab.view(0, 100), &[2; 100]);
    }

    #[test]
    fn memory_is_used_again_once_nobody_reads_it() {
        let mut slab = Slab::new();
        let first = slab.writable(100).as_ptr();
        drop(slab.view(0, 100));
        assert_eq!(slab.writable(4000).as_ptr(), first);
    }

    #[test]
    fn views_are_aligned_whatever_the_size() {
        let mut slab = Slab::new();
        for len in [1, 4096, 4097, 1 << 20, (1 << 20) + 1, 5_000_000] {
            assert!(slab.writable(len).as_ptr().addr().is_multiple_of(ALIGNMENT));
        }
    }

    #[test]
    fn one_huge_batch_does_not_hold_its_memory_for_ever() {
        let mut slab = Slab::new();
        slab.writable(64 << 20);
        for _ in 0..PATIENCE {
            slab.writable(1000);
        }
        assert!(slab.buffer.capacity() <= KEEP);
    }
}
