//! Progress of one instance, for health: being there is not enough.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// What one instance does.
#[derive(Debug)]
pub(crate) struct Instance {
    /// ms of [`clock`] since it runs a batch; 0 when it is idle.
    since: AtomicU64,
    batches: AtomicU64,
    alive: AtomicBool,
}

impl Default for Instance {
    fn default() -> Self {
        Self {
            since: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            alive: AtomicBool::new(true),
        }
    }
}

impl Instance {
    pub(crate) fn begin(&self) {
        self.since.store(clock().max(1), Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dead(&self) {
        self.alive.store(false, Ordering::Relaxed);
    }

    /// Time since the batch that runs now began, ms; 0 when idle.
    pub(crate) fn busy_ms(&self) -> u64 {
        match self.since.load(Ordering::Relaxed) {
            0 => 0,
            since => clock().saturating_sub(since).max(1),
        }
    }

    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }
}

/// ms since this process first asked.
fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}
