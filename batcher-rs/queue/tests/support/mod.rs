//! Entries with a switch for cancelling, and time by hand.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses a part of it"
)]

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use headrace_queue::{Batch, BatchQueue, Entry, Flow, Live, Next, Policy, Refusal};

#[derive(Clone, Debug, Default)]
pub struct Call(pub Rc<Cell<bool>>);

impl Live for Call {
    fn is_cancelled(&self) -> bool {
        self.0.get()
    }
}

pub type Queue = BatchQueue<Call, u32>;
pub type Request = Entry<Call, u32>;

pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A one-row entry with nothing special about it.
pub fn entry(id: u64, now: Instant) -> Request {
    Entry {
        id,
        payload: Call::default(),
        key: 0,
        rows: 1,
        bytes: 10,
        priority: 2,
        flow: Flow { id: 0, weight: 1 },
        arrived: now,
        deadline: None,
    }
}

/// Always grows to `max_batch_rows`, unless a test asks for learning.
pub fn policy(max_batch_rows: u32) -> Policy {
    Policy {
        max_batch_rows,
        learn_costs: false,
        ..Policy::default()
    }
}

pub fn push(queue: &mut Queue, entry: Request, now: Instant) {
    queue
        .push(entry, now)
        .map_err(|refused| refused.why)
        .expect("admitted");
}

pub fn refusal(queue: &mut Queue, entry: Request, now: Instant) -> Refusal {
    queue.push(entry, now).expect_err("refused").why
}

pub fn run(queue: &mut Queue, now: Instant) -> Batch<Call, u32> {
    match queue.poll(now) {
        Next::Run(batch) => batch,
        other => panic!("expected a batch, not {other:?}"),
    }
}

pub fn expired(queue: &mut Queue, now: Instant) -> Vec<u64> {
    match queue.poll(now) {
        Next::Expire(entries) => ids(&entries),
        other => panic!("expected dead entries, not {other:?}"),
    }
}

pub fn ids(entries: &[Request]) -> Vec<u64> {
    entries.iter().map(|entry| entry.id).collect()
}

/// Runs one batch of `rows` that takes `took`.
pub fn measure(queue: &mut Queue, rows: u32, took: Duration, now: &mut Instant) {
    for id in 0..rows {
        push(queue, entry(u64::from(id), *now), *now);
    }
    let batch = run(queue, *now);
    assert_eq!(batch.rows, rows, "the batch that was to be measured");
    *now += took;
    queue.finished(batch.ticket, *now, true);
}
