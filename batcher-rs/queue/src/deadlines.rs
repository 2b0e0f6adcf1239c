//! When queued entries run out of time.
//!
//! A heap of deadlines that isn't told when entries leave: most leave long before their deadline, and taking them out of a
//! heap one by one would cost more than everything else that is done for them. What has left is forgotten in bulk instead,
//! once it makes up most of the heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// An entry's place: its sub-queue and its sequence number there.
pub(crate) type Place = (u64, u32);

/// Deadlines of entries, earliest first; some of them may have left the queue.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, u64, u32)>>,
}

impl Deadlines {
    pub(crate) fn push(&mut self, deadline: Instant, (seq, sub): Place) {
        self.heap.push(Reverse((deadline, seq, sub)));
    }

    /// The earliest deadline; never later than that of any queued entry.
    pub(crate) fn earliest(&self) -> Option<(Instant, Place)> {
        self.heap
            .peek()
            .map(|&Reverse((at, seq, sub))| (at, (seq, sub)))
    }

    /// Takes the earliest one if it is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Place> {
        let &Reverse((at, seq, sub)) = self.heap.peek()?;
        (at <= now).then(|| {
            self.heap.pop();
            (seq, sub)
        })
    }

    /// Takes the earliest one, whatever its time.
    pub(crate) fn pop(&mut self) {
        self.heap.pop();
    }

    /// True when so many have left that forgetting them pays. `queued` entries are in the queue.
    pub(crate) fn is_stale(&self, queued: usize) -> bool {
        self.heap.len() > 2 * queued + 64
    }

    pub(crate) fn retain(&mut self, mut queued: impl FnMut(Place) -> bool) {
        self.heap
            .retain(|&Reverse((_, seq, sub))| queued((seq, sub)));
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }
}
