//! What the queue tells its driver.

use std::time::Instant;

use crate::entry::Entry;

/// Why a batch left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It reached the size where batches stop growing, or the next entry didn't fit.
    Full,
    /// An instance was idle and took what was there.
    Idle,
    /// The queue delay was over.
    Delay,
    /// Waiting or growing further would have cost an entry its deadline.
    Deadline,
    /// The queue is being drained.
    Flush,
}

impl Why {
    /// The name used in metrics and spans.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Idle => "idle",
            Self::Delay => "delay",
            Self::Deadline => "deadline",
            Self::Flush => "flush",
        }
    }
}

/// Stands for a running batch. Hand it back with [`BatchQueue::finished`](crate::BatchQueue::finished) however the run
/// ends: until then the batch counts as running and weighs on every estimate.
#[derive(Debug)]
#[must_use = "a ticket that isn't handed back leaves its batch running for ever"]
pub struct Ticket<K> {
    /// Key of every entry of the batch.
    pub key: K,
    /// Rows of the batch.
    pub rows: u32,
    /// When the batch left the queue.
    pub started: Instant,
    pub(crate) id: u64,
}

/// Entries to run together, in this order.
#[derive(Debug)]
pub struct Batch<T, K> {
    /// At least one entry; all have the same key.
    pub entries: Vec<Entry<T, K>>,
    /// Sum of the entries' rows.
    pub rows: u32,
    /// Why it left.
    pub why: Why,
    /// To be handed back when the run ends.
    pub ticket: Ticket<K>,
}

/// What the driver should do next.
#[derive(Debug)]
#[must_use]
pub enum Next<T, K> {
    /// Run these entries as one batch.
    Run(Batch<T, K>),
    /// These entries ran out of time or were cancelled (their payload tells which); answer them and poll again.
    Expire(Vec<Entry<T, K>>),
    /// Nothing is due; poll again at this instant or after the next push.
    WaitUntil(Instant),
    /// Nothing is queued; poll again after the next push.
    Idle,
}

/// How much waits and runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Requests that wait.
    pub requests: usize,
    /// Rows that wait.
    pub rows: u64,
    /// Bytes that wait.
    pub bytes: u64,
    /// Requests that run.
    pub running_requests: usize,
    /// Rows that run.
    pub running_rows: u64,
    /// When the entry that has waited longest came.
    pub oldest: Option<Instant>,
}
