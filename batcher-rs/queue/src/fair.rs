//! Shares: strict priorities, and start-time fair queueing between the flows of one priority.
//!
//! Each flow carries a virtual time that moves on by rows / weight whenever one of its entries is run; the flow that is
//! furthest behind goes next. A flow that comes back from being idle starts at the present virtual time, so nobody saves up
//! credit, and keeps its debt if it has one, so nobody sheds it by leaving (Goyal, Vin, Cheng 1996, with tags given at the
//! head of the line: entries that are cancelled or expire in the queue cost their flow nothing).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Virtual time, in 1/65536 of a row at weight 1. Lasts for years at a million rows a second.
pub(crate) type Tag = u64;

const ROW: u64 = 1 << 16;

/// Virtual time that `rows` cost a flow of this weight.
pub(crate) fn charge(rows: u32, weight: u32) -> Tag {
    (u64::from(rows.max(1)) * ROW / u64::from(weight.max(1))).max(1)
}

/// Members of a heap, the one with the smallest tag first, equal tags in order of arrival.
///
/// Tags only grow while members sit in the heap, so a recorded tag is a lower bound: it is corrected when it comes to the top.
#[derive(Debug, Default)]
pub(crate) struct Ranking {
    heap: BinaryHeap<Reverse<(Tag, u64, u32)>>,
}

impl Ranking {
    pub(crate) fn add(&mut self, tag: Tag, seq: u64, member: u32) {
        self.heap.push(Reverse((tag, seq, member)));
    }

    /// The first member that `current` gives a tag for. Those without one have nothing waiting: they are taken out and passed
    /// to `gone`.
    pub(crate) fn first(
        &mut self,
        mut current: impl FnMut(u32) -> Option<(Tag, u64)>,
        mut gone: impl FnMut(u32),
    ) -> Option<u32> {
        loop {
            let mut top = self.heap.peek_mut()?;
            let Reverse((tag, _, member)) = *top;
            match current(member) {
                None => {
                    std::collections::binary_heap::PeekMut::pop(top);
                    gone(member);
                }
                Some((now, _)) if now == tag => return Some(member),
                Some((now, seq)) => *top = Reverse((now, seq, member)),
            }
        }
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        self.heap.retain(|&Reverse((_, _, member))| keep(member));
    }
}

/// Entries of one flow and key that came one after another, without entries of that flow with other keys between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) sub: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// One flow within one priority.
#[derive(Debug, Default)]
pub(crate) struct FlowState {
    pub(crate) id: u32,
    pub(crate) level: u32,
    pub(crate) weight: u32,
    pub(crate) tag: Tag,
    pub(crate) entries: usize,
    pub(crate) rows: u64,
    /// In its level's ranking (perhaps with nothing waiting).
    pub(crate) ranked: bool,
    /// Order of arrival over all keys.
    pub(crate) order: VecDeque<Stretch>,
}

/// One priority.
#[derive(Debug, Default)]
pub(crate) struct Level {
    pub(crate) priority: u32,
    pub(crate) entries: usize,
    pub(crate) rows: u64,
    /// Sum of the weights of the flows that have entries waiting.
    pub(crate) weights: u64,
    /// Virtual time: the tag of the flow that was served last.
    pub(crate) time: Tag,
    /// The largest tag that any flow has.
    pub(crate) horizon: Tag,
    pub(crate) flows: Ranking,
}

impl Level {
    /// Counts a flow's first waiting entry.
    pub(crate) fn wake(&mut self, flow: &mut FlowState, weight: u32) {
        flow.tag = flow.tag.max(self.time);
        flow.weight = weight;
        self.weights += u64::from(weight);
    }

    /// Bills a flow for an entry that is run.
    pub(crate) fn bill(&mut self, flow: &mut FlowState, rows: u32, weight: u32) {
        flow.tag += charge(rows, weight);
        self.horizon = self.horizon.max(flow.tag);
    }
}
