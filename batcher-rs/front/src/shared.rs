//! What all threads of one server share: its settings, the phase of its life, and what is open and in flight.

use crate::config::FrontConfig;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    Draining,
    Stopped,
}

/// Shared by all threads of one server.
pub struct Shared {
    pub(crate) config: FrontConfig,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) connections: AtomicUsize,
    pub(crate) refused_connections: AtomicUsize,
    in_flight: AtomicUsize,
    receiving: AtomicUsize,
    quiet: Mutex<()>,
    changed: Condvar,
}

impl Shared {
    pub(crate) fn new(config: FrontConfig) -> Arc<Self> {
        Arc::new(Self {
            config,
            phase: watch::Sender::new(Phase::Serving),
            connections: AtomicUsize::new(0),
            refused_connections: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            receiving: AtomicUsize::new(0),
            quiet: Mutex::new(()),
            changed: Condvar::new(),
        })
    }

    /// The settings this server was started with.
    pub fn config(&self) -> &FrontConfig {
        &self.config
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections closed at once because there were too many.
    pub fn refused_connections(&self) -> usize {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// Requests taken and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether the server accepts nothing new.
    pub fn is_draining(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// Counts a request as in flight until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Room for a body of `bytes` that is still being received, or `None` when others take it all.
    pub fn reserve_receiving(self: &Arc<Self>, bytes: usize) -> Option<Receiving> {
        let before = self.receiving.fetch_add(bytes, Ordering::Relaxed);
        let reserved = Receiving {
            shared: Arc::clone(self),
            bytes,
        };
        // The guard gives the bytes back when it is dropped here.
        (before + bytes <= self.config.max_receiving_bytes).then_some(reserved)
    }

    /// Resolves when the server takes nothing new any more.
    pub async fn draining(&self) {
        let mut phase = self.phase.subscribe();
        // An error means the server itself is gone, which is a drain too.
        let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
    }

    /// Resolves when the server stops for good, draining over or cut short.
    pub async fn stopped(&self) {
        let mut phase = self.phase.subscribe();
        // An error means the server itself is gone, which is a stop too.
        let _ = phase.wait_for(|phase| *phase == Phase::Stopped).await;
    }

    fn tell_waiters(&self) {
        if self.is_draining() {
            let _lock = self.quiet.lock();
            self.changed.notify_all();
        }
    }

    pub(crate) fn wait_until(&self, end: Instant, done: impl Fn(&Self) -> bool) -> bool {
        let mut lock = self.quiet.lock();
        while !done(self) {
            if self.changed.wait_until(&mut lock, end).timed_out() {
                return done(self);
            }
        }
        true
    }
}

/// One request in flight.
pub struct InFlight(Arc<Shared>);

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.tell_waiters();
        }
    }
}

/// Room reserved for a body that is still being received.
pub struct Receiving {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.shared
            .receiving
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// One open connection, counted until it is dropped.
pub(crate) struct OpenConnection(pub(crate) Arc<Shared>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.tell_waiters();
    }
}
