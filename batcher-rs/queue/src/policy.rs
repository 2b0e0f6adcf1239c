//! What an operator decides about one model's queue.

use std::time::Duration;

/// Limits and habits of one queue. Limits count what waits; what runs isn't counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// No batch has more rows than this. Entries with more are refused.
    pub max_batch_rows: u32,
    /// Longest that the oldest entry of a batch waits for company while an instance is idle. Zero: never.
    pub max_queue_delay: Duration,
    /// Rows that may wait.
    pub max_queue_rows: u64,
    /// Bytes that may wait.
    pub max_queue_bytes: u64,
    /// Requests that may wait.
    pub max_queue_requests: usize,
    /// False: each entry runs alone, whatever its rows.
    pub batching: bool,
    /// True: stop growing batches where more rows no longer mean more rows per second.
    /// False: grow to `max_batch_rows` always.
    pub learn_costs: bool,
    /// Batches that can run at once. Only estimates depend on it. Zero counts as one.
    pub instances: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_batch_rows: 64,
            max_queue_delay: Duration::ZERO,
            max_queue_rows: 4096,
            max_queue_bytes: 256 << 20,
            max_queue_requests: 4096,
            batching: true,
            learn_costs: true,
            instances: 1,
        }
    }
}
