//! The timer of the queues: answers an entry at the moment its deadline passes, however long the running batch takes (V15).

use super::table::Table;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Deadlines closer together than this are answered together.
const GRAIN: Duration = Duration::from_millis(1);

/// Wakes when the earliest deadline of any queue passes.
pub(crate) struct Expiry {
    next: Mutex<Option<Instant>>,
    earlier: Notify,
}

impl Expiry {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            next: Mutex::new(None),
            earlier: Notify::new(),
        })
    }

    /// An entry with this deadline was queued.
    pub(crate) fn at(&self, deadline: Instant) {
        let mut next = self.next.lock();
        if next.is_none_or(|next| deadline < next) {
            *next = Some(deadline);
            drop(next);
            self.earlier.notify_one();
        }
    }

    /// Runs for as long as the front does.
    pub(crate) async fn run(self: Arc<Self>, table: Arc<ArcSwap<Table>>) {
        loop {
            let next = *self.next.lock();
            match next {
                None => self.earlier.notified().await,
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until((at + GRAIN).into()) => self.look(&table),
                    () = self.earlier.notified() => {}
                },
            }
        }
    }

    fn look(&self, table: &ArcSwap<Table>) {
        // Cleared first: what is queued meanwhile sets it again.
        *self.next.lock() = None;
        let now = Instant::now();
        for model in table.load().queues() {
            if let Some(deadline) = model.expire(now) {
                self.at(deadline);
            }
        }
    }
}
