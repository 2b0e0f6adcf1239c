//! What a model's queue did, counted once a batch; the numbers behind `ModelStatistics`.

use headrace_queue::Why;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A number of events and the time they took together.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Total {
    /// How many.
    pub count: u64,
    /// Their time together, ns.
    pub ns: u64,
}

impl Total {
    fn add(&mut self, count: u64, time: Duration) {
        self.count += count;
        self.ns += u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    }
}

/// The batches of one size.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct BatchSize {
    /// Rows of each of these batches.
    pub rows: u32,
    /// Joining the rows.
    pub compute_input: Total,
    /// Running the model.
    pub compute_infer: Total,
    /// Splitting and encoding the answers.
    pub compute_output: Total,
}

/// Times of one executed batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Phases {
    pub(crate) join: Duration,
    pub(crate) execute: Duration,
    pub(crate) split: Duration,
}

/// The counters of one version.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Counters {
    /// Rows answered.
    pub inference_count: u64,
    /// Executions of the model.
    pub execution_count: u64,
    /// When the last request was answered, ms since the epoch.
    pub last_inference_ms: u64,
    /// Requests answered, from arrival to answer.
    pub success: Total,
    /// Requests that failed in the queue or in the model.
    pub fail: Total,
    /// Time in the queue, by request.
    pub queue: Total,
    /// Time of joining, by request.
    pub compute_input: Total,
    /// Time of running, by request.
    pub compute_infer: Total,
    /// Time of splitting, by request.
    pub compute_output: Total,
    /// Requests whose caller went away before they ran.
    pub cancelled: u64,
    /// Requests refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Executions by rows.
    #[serde(serialize_with = "sizes")]
    pub batches: BTreeMap<u32, BatchSize>,
    /// Why batches left.
    pub left: BTreeMap<&'static str, u64>,
}

fn sizes<S: serde::Serializer>(
    batches: &BTreeMap<u32, BatchSize>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(batches.values())
}

impl Counters {
    /// One execution of the model over `rows` rows of `requests` requests.
    pub(crate) fn executed(&mut self, rows: u32, requests: u64, phases: Phases) {
        self.execution_count += 1;
        let size = self.batches.entry(rows).or_insert_with(|| BatchSize {
            rows,
            ..BatchSize::default()
        });
        size.compute_input.add(1, phases.join);
        size.compute_infer.add(1, phases.execute);
        size.compute_output.add(1, phases.split);
        self.compute_input.add(requests, phases.join);
        self.compute_infer.add(requests, phases.execute);
        self.compute_output.add(requests, phases.split);
    }

    /// One request was answered.
    pub(crate) fn succeeded(&mut self, rows: u32, total: Duration) {
        self.inference_count += u64::from(rows);
        self.success.add(1, total);
    }

    /// One request failed.
    pub(crate) fn failed(&mut self, total: Duration) {
        self.fail.add(1, total);
    }

    /// One request waited in the queue.
    pub(crate) fn waited(&mut self, time: Duration) {
        self.queue.add(1, time);
    }

    /// A batch left the queue.
    pub(crate) fn batch_left(&mut self, why: Why) {
        *self.left.entry(why.as_str()).or_default() += 1;
    }

    /// A request was refused.
    pub(crate) fn refuse(&mut self, reason: &'static str) {
        *self.refused.entry(reason).or_default() += 1;
    }

    /// Something was answered now.
    pub(crate) fn touch(&mut self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.last_inference_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    }
}
