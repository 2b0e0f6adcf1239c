//! Wake-ups of one connection's task: which of its parts have something to say.
//!
//! One task drives a connection and all requests on it. Each part polls with a [`Bell`] for a waker, so that only those that rang are
//! polled again. A bell that rings while the task runs wakes nobody: the task looks once more before it rests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Hub {
    task: AtomicWaker,
    running: AtomicBool,
    rung: AtomicBool,
    slots: Mutex<Vec<usize>>,
}

pub(crate) struct Bell {
    hub: Arc<Hub>,
    slot: Option<usize>,
    rung: AtomicBool,
}

impl Hub {
    pub(crate) fn enter(&self, task: &Waker) {
        self.task.register(task);
        self.running.store(true, Ordering::SeqCst);
    }

    /// The task rests. What rang since [`Hub::take`] wakes it at once.
    pub(crate) fn leave(&self) {
        self.running.store(false, Ordering::SeqCst);
        if self.rung.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }

    /// Whether anything rang since the last call.
    pub(crate) fn take(&self) -> bool {
        self.rung.swap(false, Ordering::SeqCst)
    }

    /// Fills `into` with the slots that rang since the last call.
    pub(crate) fn take_slots(&self, into: &mut Vec<usize>) {
        into.clear();
        std::mem::swap(&mut *self.slots.lock(), into);
    }

    /// Wakes the task from outside.
    pub(crate) fn wake(&self) {
        self.rung.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}

impl Bell {
    pub(crate) fn new(hub: &Arc<Hub>, slot: Option<usize>) -> Arc<Self> {
        Arc::new(Self {
            hub: Arc::clone(hub),
            slot,
            rung: AtomicBool::new(false),
        })
    }

    /// Whether it rang since the last call.
    pub(crate) fn take(&self) -> bool {
        self.rung.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn ring(&self) {
        if self.rung.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(slot) = self.slot {
            self.hub.slots.lock().push(slot);
        }
        self.hub.rung.store(true, Ordering::SeqCst);
        if !self.hub.running.load(Ordering::SeqCst) {
            self.hub.task.wake();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}
