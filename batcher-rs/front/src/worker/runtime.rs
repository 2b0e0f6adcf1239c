//! What belongs to one runtime thread: the entries of the current tick, the replies to send, and news of callers gone.

use super::entry::{Pending, Post};
use super::expiry::Expiry;
use super::inbox::Inbox;
use super::model::{ModelQueue, QueueEntry};
use headrace_queue::Refused;
use headrace_tensor::BatchKey;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Whether a caller of this runtime has gone since somebody looked.
#[derive(Default)]
pub(crate) struct Cancels(AtomicBool);

impl Cancels {
    pub(crate) fn hint(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Tick {
    entries: Vec<(Arc<ModelQueue>, QueueEntry)>,
    flusher: Option<Waker>,
}

/// The state of one runtime thread. Its lock is never contended: only that thread takes it.
pub(crate) struct Runtime {
    tick: Mutex<Tick>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) cancels: Arc<Cancels>,
    expiry: Arc<Expiry>,
}

impl Runtime {
    /// The state, with its two tasks running in the current runtime.
    pub(crate) fn start(expiry: Arc<Expiry>, still: Duration) -> Arc<Self> {
        let runtime = Arc::new(Self {
            tick: Mutex::default(),
            inbox: Arc::default(),
            cancels: Arc::default(),
            expiry,
        });
        tokio::spawn(Arc::clone(&runtime.inbox).deliver(still));
        tokio::spawn(Arc::clone(&runtime).flush());
        runtime
    }

    /// Queues an entry at the end of this tick, together with all others that came in it: they meet in one batch, under
    /// one lock, with one wake of an instance. Nothing waits longer than the runtime needs to look at each ready socket once.
    pub(crate) fn submit(&self, model: Arc<ModelQueue>, entry: QueueEntry) {
        let mut tick = self.tick.lock();
        if tick.entries.is_empty()
            && let Some(flusher) = &tick.flusher
        {
            flusher.wake_by_ref();
        }
        tick.entries.push((model, entry));
    }

    async fn flush(self: Arc<Self>) {
        let mut taken = Vec::new();
        let mut group = Vec::new();
        poll_fn(|cx| {
            {
                let mut tick = self.tick.lock();
                if tick
                    .flusher
                    .as_ref()
                    .is_none_or(|waker| !waker.will_wake(cx.waker()))
                {
                    tick.flusher = Some(cx.waker().clone());
                }
                std::mem::swap(&mut tick.entries, &mut taken);
            }
            let mut entries = taken.drain(..).peekable();
            while let Some((model, entry)) = entries.next() {
                group.push(entry);
                if entries
                    .peek()
                    .is_none_or(|(next, _)| !Arc::ptr_eq(next, &model))
                {
                    self.push(&model, &mut group);
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }

    fn push(&self, model: &Arc<ModelQueue>, group: &mut Vec<QueueEntry>) {
        let (refused, deadline) = model.push(group, Instant::now());
        if let Some(deadline) = deadline {
            self.expiry.at(deadline);
        }
        if !refused.is_empty() {
            answer_refused(model, refused);
        }
    }
}

fn answer_refused(model: &ModelQueue, refused: Vec<Refused<Pending, BatchKey>>) {
    let mut post = Post::default();
    for Refused { entry, why } in refused {
        let status = model.refusal(&why);
        entry.payload.fail(status, &mut post);
    }
}
