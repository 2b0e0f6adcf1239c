//! What waits in the queue, and why an entry may be refused at the door.

use std::time::{Duration, Instant};

/// Tells whether anybody still wants the answer.
///
/// The queue asks while it fills a batch, so that work for callers who are gone is never run (`V13`).
pub trait Live {
    /// True once the caller has gone. Must be cheap: it is asked for each entry that reaches the head of the queue.
    fn is_cancelled(&self) -> bool;
}

/// Whose entry this is, for fair shares within one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Identifies the flow (a tenant, say). Entries of one flow, priority and key leave in the order they came.
    pub id: u32,
    /// Share of the rows relative to the other flows that are waiting. Zero counts as one.
    pub weight: u32,
}

/// One request in the queue.
#[derive(Clone, Debug)]
pub struct Entry<T, K> {
    /// The caller's own name for the request; the queue only carries it.
    pub id: u64,
    /// What the caller needs to run and answer it. Moved twice, so keep it small or boxed.
    pub payload: T,
    /// Only entries with equal keys run together.
    pub key: K,
    /// Rows along the batch axis, at least 1. Never split over two batches.
    pub rows: u32,
    /// Memory that it holds while it waits.
    pub bytes: u64,
    /// 1 is the most urgent. Expected to take few distinct values.
    pub priority: u32,
    /// Whose share of the server it uses.
    pub flow: Flow,
    /// When the server received it; a queue delay counts from here.
    pub arrived: Instant,
    /// When its answer stops being of use.
    pub deadline: Option<Instant>,
}

/// Why an entry wasn't queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A limit on what waits is reached.
    QueueFull {
        /// Which one: `"requests"`, `"rows"` or `"bytes"`.
        limit: &'static str,
        /// About how long what waits now will take to run, between 1 ms and 30 s.
        retry_after: Duration,
    },
    /// It would be answered too late.
    CannotMeetDeadline {
        /// Expected wait and run.
        estimated: Duration,
        /// Time that it has.
        left: Duration,
    },
    /// Its deadline has passed already.
    Expired,
    /// It has more rows than a batch may hold, so it could never run.
    TooManyRows {
        /// The limit, [`Policy::max_batch_rows`](crate::Policy::max_batch_rows).
        limit: u32,
    },
    /// The queue accepts nothing new.
    Draining,
}

/// A refused entry, handed back with the reason.
#[derive(Clone, Debug)]
pub struct Refused<T, K> {
    /// The entry, untouched.
    pub entry: Entry<T, K>,
    /// The reason.
    pub why: Refusal,
}
