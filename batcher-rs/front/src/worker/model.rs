//! A model's queue with its lock, its sleeping instances and its counters: the thin driver around `headrace_queue`.

use super::counters::Counters;
use super::entry::{Pending, Post};
use super::health::Instance;
use super::spec::{ModelSpec, QueueSpec};
use crate::status::{Reason, Status};
use headrace_queue::{Batch, BatchQueue, Depth, Entry, Live, Next, Refusal, Refused, Ticket};
use headrace_tensor::{BatchKey, Signature};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// An entry of a model's queue.
pub(crate) type QueueEntry = Entry<Pending, BatchKey>;
/// A batch of a model's queue.
pub(crate) type QueueBatch = Batch<Pending, BatchKey>;

struct Inner {
    queue: BatchQueue<Pending, BatchKey>,
    sleeping: usize,
    /// Sleepers that were told to wake and have not looked yet.
    woken: usize,
    closing: bool,
    running_instances: usize,
}

/// One version's queue.
pub(crate) struct ModelQueue {
    signature: Signature,
    settings: QueueSpec,
    inner: Mutex<Inner>,
    work: Condvar,
    ended: Condvar,
    cancelled: AtomicBool,
    pub(crate) counters: Mutex<Counters>,
    pub(crate) instances: Vec<Instance>,
}

impl ModelQueue {
    pub(crate) fn new(spec: &ModelSpec, instances: usize) -> Self {
        let mut queue = BatchQueue::new(spec.policy(instances as u32));
        for &(rows, micros) in &spec.costs {
            queue.seed_cost(rows, Duration::from_secs_f64(micros.max(0.0) / 1e6));
        }
        Self {
            signature: spec.signature(),
            settings: spec.queue.clone(),
            inner: Mutex::new(Inner {
                queue,
                sleeping: 0,
                woken: 0,
                closing: false,
                running_instances: instances,
            }),
            work: Condvar::new(),
            ended: Condvar::new(),
            cancelled: AtomicBool::new(false),
            counters: Mutex::default(),
            instances: (0..instances).map(|_| Instance::default()).collect(),
        }
    }

    pub(crate) fn signature(&self) -> &Signature {
        &self.signature
    }

    pub(crate) fn settings(&self) -> &QueueSpec {
        &self.settings
    }

    /// Queues all of `group` under one lock and wakes at most one sleeping instance. Gives back what was refused, and the
    /// earliest deadline that the queue holds.
    pub(crate) fn push(
        &self,
        group: &mut Vec<QueueEntry>,
        now: Instant,
    ) -> (Vec<Refused<Pending, BatchKey>>, Option<Instant>) {
        let mut refused = Vec::new();
        let mut inner = self.inner.lock();
        for entry in group.drain(..) {
            if entry.payload.is_cancelled() {
                continue;
            }
            if let Err(entry) = inner.queue.push(entry, now) {
                refused.push(entry);
            }
        }
        let deadline = inner.queue.next_deadline();
        self.wake_one(inner);
        (refused, deadline)
    }

    fn wake_one(&self, mut inner: MutexGuard<'_, Inner>) {
        if inner.sleeping > inner.woken && !inner.queue.is_empty() {
            inner.woken += 1;
            drop(inner);
            self.work.notify_one();
        }
    }

    /// The next batch for an instance that is idle now, `None` when the queue was closed and is empty.
    /// `finished` is the batch before: what it cost is learnt under the same lock.
    pub(crate) fn next(&self, finished: Option<(Ticket<BatchKey>, bool)>) -> Option<QueueBatch> {
        let mut inner = self.inner.lock();
        if let Some((ticket, ok)) = finished {
            inner.queue.finished(ticket, Instant::now(), ok);
        }
        loop {
            let until = match inner.queue.poll(Instant::now()) {
                Next::Run(batch) => {
                    let skipped = inner.queue.skipped();
                    // Another instance may be asleep while more is waiting than this one took.
                    self.wake_one(inner);
                    self.answer_dead(skipped);
                    return Some(batch);
                }
                Next::Expire(dead) => {
                    MutexGuard::unlocked(&mut inner, || self.answer_dead(dead));
                    continue;
                }
                Next::Idle if inner.closing => return None,
                Next::Idle => None,
                Next::WaitUntil(at) => Some(at),
            };
            inner.sleeping += 1;
            match until {
                Some(at) => {
                    self.work.wait_until(&mut inner, at);
                }
                None => self.work.wait(&mut inner),
            }
            inner.sleeping -= 1;
            inner.woken = inner.woken.saturating_sub(1).min(inner.sleeping);
        }
    }

    /// Answers what is overdue; the earliest deadline that is left.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut inner = self.inner.lock();
        let dead = inner.queue.expire(now);
        let next = inner.queue.next_deadline();
        drop(inner);
        self.answer_dead(dead);
        next
    }

    /// A caller of some entry here is gone. Called under a lock of HTTP/2.
    pub(crate) fn hint_cancelled(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Frees the places of entries whose callers are gone, if there may be any.
    pub(crate) fn sweep_cancelled(&self) {
        if self.cancelled.load(Ordering::Relaxed) && self.cancelled.swap(false, Ordering::Relaxed) {
            let gone = self.inner.lock().queue.remove_cancelled();
            self.answer_dead(gone);
        }
    }

    fn answer_dead(&self, dead: Vec<QueueEntry>) {
        if dead.is_empty() {
            return;
        }
        let mut post = Post::default();
        let now = Instant::now();
        for entry in dead {
            if entry.payload.is_cancelled() {
                self.counters.lock().cancelled += 1;
                continue;
            }
            let status = self.expired(&entry, now);
            self.count_failure(&status, now.saturating_duration_since(entry.arrived));
            entry.payload.fail(status, &mut post);
        }
    }

    fn expired(&self, entry: &QueueEntry, now: Instant) -> Status {
        let waited = now.saturating_duration_since(entry.arrived);
        let text = format!(
            "the request waited {:.1} ms in the queue of model '{}' and its time ran out before it could run",
            waited.as_secs_f64() * 1e3,
            self.signature.model
        );
        Status::new(Reason::ExpiredInQueue, text)
    }

    fn count_failure(&self, status: &Status, took: Duration) {
        let mut counters = self.counters.lock();
        counters.failed(took);
        counters.refuse(status.reason);
    }

    /// The status for a refusal of the queue; counted.
    pub(crate) fn refusal(&self, why: &Refusal) -> Status {
        let model = &self.signature.model;
        let status = match why {
            Refusal::QueueFull { limit, retry_after } => {
                let allowed = match *limit {
                    "rows" => self.settings.max_queue_rows,
                    "bytes" => self.settings.max_queue_bytes,
                    _ => self.settings.max_queue_requests as u64,
                };
                let text = format!(
                    "the queue of model '{model}' is full: {allowed} {limit} wait (setting max_queue_{limit})"
                );
                Status::new(Reason::QueueFull, text).with_retry_after(*retry_after)
            }
            Refusal::CannotMeetDeadline { estimated, left } => {
                let text = format!(
                    "model '{model}' would need about {:.1} ms for this request, {:.1} ms are left",
                    estimated.as_secs_f64() * 1e3,
                    left.as_secs_f64() * 1e3
                );
                Status::new(Reason::CannotMeetDeadline, text)
            }
            Refusal::Expired => Status::new(
                Reason::DeadlineExceeded,
                "the deadline had passed when the request was queued",
            ),
            Refusal::TooManyRows { limit } => {
                let text = format!("a request of model '{model}' may have {limit} rows");
                Status::new(Reason::InvalidTensor, text)
            }
            Refusal::Draining => {
                let text = format!(
                    "model '{model}' version {} takes nothing new",
                    self.signature.version
                );
                Status::new(Reason::Draining, text)
            }
        };
        self.count_failure(&status, Duration::ZERO);
        status
    }

    pub(crate) fn depth(&self) -> Depth {
        self.inner.lock().queue.depth()
    }

    /// Takes nothing new; what is queued still runs, then the instances end.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closing = true;
        inner.queue.drain();
        inner.woken = inner.sleeping;
        drop(inner);
        self.work.notify_all();
    }

    /// An instance's thread ends.
    pub(crate) fn instance_ended(&self) {
        let mut inner = self.inner.lock();
        inner.running_instances -= 1;
        if inner.running_instances == 0 {
            // Nobody is left to run what is still queued, if anything is.
            let left = inner.queue.take_all();
            drop(inner);
            let mut post = Post::default();
            for entry in left {
                let status = Status::new(
                    Reason::Draining,
                    "the model was unloaded before this request could run",
                );
                entry.payload.fail(status, &mut post);
            }
        }
        self.ended.notify_all();
    }

    /// Waits until all instances ended. False when `end` passed first.
    pub(crate) fn wait_ended(&self, end: Instant) -> bool {
        let mut inner = self.inner.lock();
        while inner.running_instances > 0 {
            if self.ended.wait_until(&mut inner, end).timed_out() {
                return inner.running_instances == 0;
            }
        }
        true
    }

    /// Fails what is queued and not running, when time for finishing is over.
    pub(crate) fn abandon(&self) {
        let left = self.inner.lock().queue.take_all();
        let mut post = Post::default();
        for entry in left {
            let status = Status::new(
                Reason::Draining,
                "the server stopped before this request could run",
            );
            self.count_failure(&status, Duration::ZERO);
            entry.payload.fail(status, &mut post);
        }
    }
}
