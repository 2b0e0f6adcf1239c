//! Counts, and how they are told. Labels come from our own tables only: reasons, and replicas of the route table.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::Gateway;
use crate::server::Shared;
use crate::status::Reason;

/// Refusals of ours, by reason.
pub(super) struct Refusals(Vec<AtomicU64>);

impl Refusals {
    pub(super) fn new() -> Self {
        Self(Reason::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }

    /// One more for this reason.
    pub(super) fn count(&self, reason: &str) {
        if let Some(at) = Reason::ALL
            .iter()
            .position(|known| known.as_str() == reason)
        {
            self.0[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn snapshot(&self) -> Map<String, Value> {
        Reason::ALL
            .iter()
            .zip(&self.0)
            .map(|(reason, count)| (reason.as_str().to_owned(), count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason, count.into()))
            .collect()
    }
}

/// All counters now.
pub(super) fn snapshot(gateway: &Gateway, shared: &Shared) -> Value {
    let routes = gateway.routes.load();
    let replicas: Map<String, Value> = routes
        .replicas()
        .iter()
        .map(|replica| (replica.id.clone(), replica.snapshot()))
        .collect();
    json!({
        "generation": routes.generation(),
        "replicas": replicas,
        "retries": gateway.retries.load(Ordering::Relaxed),
        "refused": gateway.refusals.snapshot(),
        "in_flight": shared.in_flight(),
        "connections": shared.connections(),
        "draining": shared.is_draining(),
    })
}
