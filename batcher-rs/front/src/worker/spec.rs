//! What Python says of a worker's models: one [`ModelSpec`] a version, one [`Catalog`] of everything known.

use headrace_queue::Policy;
use headrace_tensor::{Signature, TensorSpec};
use serde::Deserialize;
use std::collections::HashMap;
use std::time::Duration;

/// One version of a model: its signature, how it is queued, what running it was seen to cost.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// The model's name.
    pub name: String,
    /// The version's name.
    pub version: String,
    /// What runs it, for the record.
    #[serde(default)]
    pub platform: String,
    /// Inputs as the model declares them.
    pub inputs: Vec<TensorSpec>,
    /// Outputs as the model declares them.
    pub outputs: Vec<TensorSpec>,
    /// Most rows of one batch, and of one request.
    pub max_rows: u32,
    /// Whether requests may run together at all.
    pub batching: bool,
    /// Request parameters that reach the model.
    #[serde(default)]
    pub parameters: Vec<String>,
    /// How requests wait.
    #[serde(default)]
    pub queue: QueueSpec,
    /// Rows and µs of runs measured at load.
    #[serde(default)]
    pub costs: Vec<(u32, f64)>,
}

/// How requests wait for a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSpec {
    /// Longest the oldest request waits for company while an instance is idle, µs.
    pub max_queue_delay_us: u64,
    /// Waiting rows beyond this are refused.
    pub max_queue_rows: u64,
    /// Waiting bytes beyond this are refused.
    pub max_queue_bytes: u64,
    /// Waiting requests beyond this are refused.
    pub max_queue_requests: usize,
    /// The priority of a request that names none.
    pub default_priority: u32,
    /// Priorities go from 1, the most urgent, to this.
    pub priority_levels: u32,
    /// Longest a request may wait when it says nothing itself, µs; 0 is as long as its deadline allows.
    pub default_timeout_us: u64,
    /// Whether batches stop growing where that does not pay.
    pub learn_costs: bool,
}

impl Default for QueueSpec {
    fn default() -> Self {
        Self {
            max_queue_delay_us: 0,
            max_queue_rows: 4096,
            max_queue_bytes: 256 << 20,
            max_queue_requests: 4096,
            default_priority: 2,
            priority_levels: 3,
            default_timeout_us: 0,
            learn_costs: true,
        }
    }
}

impl ModelSpec {
    /// The signature that requests are held against.
    pub fn signature(&self) -> Signature {
        Signature {
            model: self.name.clone(),
            version: self.version.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            max_rows: self.max_rows,
            batching: self.batching,
            parameters: self.parameters.clone(),
        }
    }

    /// The queue's policy for this many instances.
    pub fn policy(&self, instances: u32) -> Policy {
        Policy {
            max_batch_rows: self.max_rows,
            max_queue_delay: Duration::from_micros(self.queue.max_queue_delay_us),
            max_queue_rows: self.queue.max_queue_rows,
            max_queue_bytes: self.queue.max_queue_bytes,
            max_queue_requests: self.queue.max_queue_requests,
            batching: self.batching,
            learn_costs: self.queue.learn_costs,
            instances,
        }
    }
}

/// The state of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// Being loaded.
    Loading,
    /// Serving.
    Ready,
    /// Finishing what it has.
    Unloading,
    /// Could not be loaded.
    #[default]
    Failed,
}

/// Every model that this worker knows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// By name.
    pub models: HashMap<String, CatalogModel>,
}

/// One model of the catalog.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogModel {
    /// The version that answers requests which name none.
    #[serde(default)]
    pub default: Option<String>,
    /// By version.
    pub versions: HashMap<String, CatalogVersion>,
}

/// One version of the catalog.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogVersion {
    /// What can be asked of it.
    pub state: State,
    /// Why it is so; shown to callers.
    #[serde(default)]
    pub reason: String,
}
