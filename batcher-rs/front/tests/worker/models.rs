//! Runners for tests, in place of Python: they compute real answers, with faults on demand.

use headrace_front::config::FrontConfig;
use headrace_front::worker::{
    BatchInput, Catalog, CatalogModel, CatalogVersion, Emit, ModelSpec, RunError, Runner, State,
    WorkerFront,
};
use headrace_tensor::{JoinedData, OutputData, OutputView};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Doubles each value. Negative ones stand for faults: see the constants.
#[derive(Clone, Default)]
pub struct Doubler(Arc<Shared>);

/// A row that the model cannot work on.
pub const BAD_ROW: f32 = -1.0;
/// A row that makes the runner panic.
pub const PANIC_ROW: f32 = -2.0;
/// A row that makes the model give one output row too few.
pub const SHORT_ROW: f32 = -3.0;

#[derive(Default)]
struct Shared {
    gate: Mutex<Gate>,
    changed: Condvar,
    /// The rows of each execution.
    executed: Mutex<Vec<Vec<f32>>>,
    /// Answers a request gets: 0 is the one usual answer, n are n of a stream.
    answers: Mutex<usize>,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    waiting: usize,
}

impl Doubler {
    /// Executions wait from now on, until [`Self::open`].
    pub fn close(&self) {
        self.0.gate.lock().closed = true;
    }

    pub fn open(&self) {
        self.0.gate.lock().closed = false;
        self.0.changed.notify_all();
    }

    /// Waits until `count` executions wait at the gate.
    pub async fn until_waiting(&self, count: usize) {
        let shared = Arc::clone(&self.0);
        let arrived = tokio::task::spawn_blocking(move || {
            let mut gate = shared.gate.lock();
            let end = std::time::Instant::now() + Duration::from_secs(10);
            while gate.waiting < count {
                if shared.changed.wait_until(&mut gate, end).timed_out() {
                    return false;
                }
            }
            true
        });
        assert!(
            arrived.await.unwrap(),
            "{count} executions at the gate within 10 s"
        );
    }

    pub fn streams(&self, answers: usize) {
        *self.0.answers.lock() = answers;
    }

    pub fn executed(&self) -> Vec<Vec<f32>> {
        self.0.executed.lock().clone()
    }
}

impl Runner for Doubler {
    fn run(&mut self, batch: BatchInput<'_>, emit: &mut Emit<'_>) -> Result<(), RunError> {
        let bytes: &[u8] = match &batch.joined.inputs[0].data {
            JoinedData::View(bytes) => bytes,
            JoinedData::Slab(slab) => slab,
            JoinedData::Strings(_) => unreachable!("FP32"),
        };
        let rows: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|row| f32::from_le_bytes(row.try_into().unwrap()))
            .collect();
        self.0.executed.lock().push(rows.clone());
        {
            let mut gate = self.0.gate.lock();
            gate.waiting += 1;
            self.0.changed.notify_all();
            while gate.closed {
                self.0.changed.wait(&mut gate);
            }
            gate.waiting -= 1;
        }
        assert!(!rows.contains(&PANIC_ROW), "asked to panic");
        if rows.contains(&BAD_ROW) {
            return Err(RunError::InvalidInput("index out of range".into()));
        }
        let short = usize::from(rows.contains(&SHORT_ROW));
        let doubled: Vec<u8> = rows[short..]
            .iter()
            .flat_map(|row| (row * 2.0).to_le_bytes())
            .collect();
        let shape = [(rows.len() - short) as i64, 1];
        let answer = [OutputView {
            shape: &shape,
            data: OutputData::Raw(&doubled),
        }];
        let answers = *self.0.answers.lock();
        if answers == 0 {
            emit(&answer, true);
        }
        for _ in 0..answers {
            if !emit(&answer, false) {
                break;
            }
        }
        Ok(())
    }

    fn report(&mut self, _text: &str) {}
}

/// A worker's front with one model, `double`, at version 1.
pub fn worker(doubler: &Doubler, instances: usize, queue: &str) -> WorkerFront {
    worker_with(doubler, instances, queue, FrontConfig::default())
}

pub fn worker_with(
    doubler: &Doubler,
    instances: usize,
    queue: &str,
    config: FrontConfig,
) -> WorkerFront {
    let front = WorkerFront::bind(config).unwrap();
    let spec: ModelSpec = serde_json::from_str(&format!(
        r#"{{"name":"double","version":"1","max_rows":8,"batching":true,"queue":{queue},
            "costs":[[1,1000.0],[2,1050.0],[4,1100.0],[8,1200.0]],
            "inputs":[{{"name":"x","datatype":"FP32","dims":[-1,1],"batch_axis":0}}],
            "outputs":[{{"name":"y","datatype":"FP32","dims":[-1,1],"batch_axis":0}}]}}"#
    ))
    .unwrap();
    let runners = (0..instances)
        .map(|_| Box::new(doubler.clone()) as Box<dyn Runner>)
        .collect();
    front
        .install(&spec, runners, Duration::from_secs(5))
        .unwrap();
    front.set_catalog(catalog(State::Ready, ""));
    front.start().unwrap();
    front
}

pub fn catalog(state: State, reason: &str) -> Catalog {
    let version = CatalogVersion {
        state,
        reason: reason.into(),
    };
    let model = CatalogModel {
        default: Some("1".into()),
        versions: HashMap::from([("1".into(), version)]),
    };
    Catalog {
        models: HashMap::from([("double".into(), model)]),
    }
}
