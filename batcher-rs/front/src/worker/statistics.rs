//! The counters of every queue as one JSON document, for the Python half.

use super::counters::Counters;
use super::model::ModelQueue;
use super::table::Table;
use crate::server::Shared;
use serde::Serialize;

#[derive(Serialize)]
struct Statistics {
    models: Vec<ModelStatistics>,
    connections: usize,
    refused_connections: usize,
    in_flight: usize,
    draining: bool,
}

#[derive(Serialize)]
struct ModelStatistics {
    name: String,
    version: String,
    #[serde(flatten)]
    counters: Counters,
    queue_depth: QueueDepth,
    instances: Vec<InstanceState>,
}

#[derive(Serialize)]
struct QueueDepth {
    requests: u64,
    rows: u64,
    bytes: u64,
    running_requests: u64,
    running_rows: u64,
    oldest_ms: f64,
}

#[derive(Serialize)]
struct InstanceState {
    busy_ms: u64,
    batches: u64,
    alive: bool,
}

pub(super) fn render(table: &Table, shared: &Shared) -> String {
    let statistics = Statistics {
        models: table.queues().map(|queue| of_model(queue)).collect(),
        connections: shared.connections(),
        refused_connections: shared.refused_connections(),
        in_flight: shared.in_flight(),
        draining: shared.is_draining(),
    };
    serde_json::to_string(&statistics).expect("numbers and strings make JSON")
}

fn of_model(queue: &ModelQueue) -> ModelStatistics {
    let depth = queue.depth();
    let signature = queue.signature();
    ModelStatistics {
        name: signature.model.clone(),
        version: signature.version.clone(),
        counters: queue.counters.lock().clone(),
        queue_depth: QueueDepth {
            requests: depth.requests as u64,
            rows: depth.rows,
            bytes: depth.bytes,
            running_requests: depth.running_requests as u64,
            running_rows: depth.running_rows,
            oldest_ms: depth
                .oldest
                .map_or(0.0, |oldest| oldest.elapsed().as_secs_f64() * 1e3),
        },
        instances: queue
            .instances
            .iter()
            .map(|instance| InstanceState {
                busy_ms: instance.busy_ms(),
                batches: instance.batches(),
                alive: instance.is_alive(),
            })
            .collect(),
    }
}
