//! One worker as the gateway sees it: where it is, what it has to do, how it fares.
//!
//! Counters and health are shared by all threads; each thread has its own connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use headrace_route::Health;
use parking_lot::Mutex;

use crate::upstream::{Upstream, UpstreamConfig};

/// One replica.
pub(crate) struct Replica {
    pub(crate) id: String,
    pub(crate) address: String,
    links: Vec<Arc<Upstream>>,
    outstanding: AtomicUsize,
    sent: AtomicU64,
    failed: AtomicU64,
    /// Rows queued there, by its own word.
    reported: AtomicU64,
    ejected: AtomicBool,
    health: Mutex<Health>,
}

impl Replica {
    pub(crate) fn new(id: &str, address: &str, threads: usize) -> Arc<Self> {
        let links = (0..threads)
            .map(|_| Upstream::new(address, UpstreamConfig::replica()))
            .collect();
        Arc::new(Self {
            id: id.to_owned(),
            address: address.to_owned(),
            links,
            outstanding: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            ejected: AtomicBool::new(false),
            health: Mutex::new(Health::default()),
        })
    }

    /// This thread's connection.
    pub(crate) fn link(&self, thread: usize) -> &Arc<Upstream> {
        &self.links[thread]
    }

    /// Counts a request as outstanding here until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Outstanding {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        Outstanding(Arc::clone(self))
    }

    /// Requests that this gateway waits for.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// A request was handed over.
    pub(crate) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// The worker said how long its queue is.
    pub(crate) fn report(&self, queue_rows: u64) {
        self.reported.store(queue_rows, Ordering::Relaxed);
    }

    /// How much it has to do: requests that wait for it here, and the queue that it reported.
    pub(crate) fn load(&self) -> u32 {
        let load = self.outstanding() as u64 + self.reported.load(Ordering::Relaxed);
        u32::try_from(load).unwrap_or(u32::MAX)
    }

    /// It answered, whatever the answer.
    pub(crate) fn answered(&self) {
        self.learn(Health::success);
    }

    /// It could not be reached, or was lost during a request.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.learn(|health| health.failure(Instant::now()));
    }

    fn learn(&self, lesson: impl FnOnce(&mut Health)) {
        let mut health = self.health.lock();
        lesson(&mut health);
        self.ejected.store(health.is_ejected(), Ordering::Relaxed);
    }

    /// Whether requests may not go here.
    pub(crate) fn is_ejected(&self) -> bool {
        self.ejected.load(Ordering::Relaxed)
    }

    /// Whether it is time to see if it is back.
    pub(crate) fn probe_is_due(&self) -> bool {
        self.health.lock().probe_is_due(Instant::now())
    }

    /// Its part of the statistics.
    pub(crate) fn snapshot(&self) -> serde_json::Value {
        let ejected_for = self.health.lock().ejected_for(Instant::now());
        serde_json::json!({
            "address": self.address,
            "outstanding": self.outstanding(),
            "sent": self.sent.load(Ordering::Relaxed),
            "failed": self.failed.load(Ordering::Relaxed),
            "ejected": ejected_for.is_some(),
            "ejected_for_ms": ejected_for.map_or(0, |time| time.as_millis() as u64),
            "connected": self.links.iter().any(|link| link.is_connected()),
        })
    }
}

/// One request that a replica has.
pub(crate) struct Outstanding(Arc<Replica>);

impl Outstanding {
    /// Who has it.
    pub(crate) fn replica(&self) -> &Arc<Replica> {
        &self.0
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}
