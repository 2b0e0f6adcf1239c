//! The queue itself: its state and the calls that change it. What decides lives in `admit` and `fill`.

use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::cost::Costs;
use crate::entry::{Entry, Live};
use crate::next::{Depth, Ticket};
use crate::policy::Policy;
use crate::room::Room;
use crate::running::Running;

/// Requests of one model version that wait for an instance. See the [crate] for how it is driven.
///
/// Every entry that was pushed successfully comes out exactly once: in a [`Batch`](crate::Batch), or as dead from
/// [`poll`](Self::poll), [`expire`](Self::expire), [`skipped`](Self::skipped) or [`remove_cancelled`](Self::remove_cancelled),
/// or from [`take_all`](Self::take_all).
#[derive(Debug)]
pub struct BatchQueue<T, K> {
    pub(crate) policy: Policy,
    pub(crate) room: Room<T, K>,
    pub(crate) costs: Costs<K>,
    pub(crate) running: Running,
    /// Entries that were found dead and not handed out yet. They no longer wait.
    pub(crate) dead: Vec<Entry<T, K>>,
    /// Moving average of the rows of a batch.
    pub(crate) usual_rows: f64,
    pub(crate) draining: bool,
    pub(crate) next_ticket: u64,
    /// When cancelled entries were last looked for because the queue was full.
    pub(crate) swept: Option<Instant>,
    /// An emptied vector for the next batch.
    pub(crate) recycled: Vec<Entry<T, K>>,
}

impl<T: Live, K: Clone + Eq + Hash> BatchQueue<T, K> {
    /// An empty queue.
    pub fn new(policy: Policy) -> Self {
        let costs = Costs::new(policy.max_batch_rows);
        Self {
            policy,
            room: Room::new(),
            costs,
            running: Running::default(),
            dead: Vec::new(),
            usual_rows: 1.0,
            draining: false,
            next_ticket: 0,
            swept: None,
            recycled: Vec::new(),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Replaces the policy. What is queued stays queued, also beyond new limits; an entry with more rows than a new, smaller
    /// `max_batch_rows` runs alone.
    pub fn set_policy(&mut self, policy: Policy) {
        if policy.max_batch_rows != self.policy.max_batch_rows {
            self.costs.resize(policy.max_batch_rows);
        }
        self.policy = policy;
    }

    /// Tells what a batch of `rows` took when it was measured at load. Holds for every key until its own batches have run.
    pub fn seed_cost(&mut self, rows: u32, took: Duration) {
        self.costs.seed(rows, took);
    }

    /// Takes out entries that are overdue at `now` (and others that were found dead), for a timer that runs while all instances are busy.
    /// Their payload tells the cancelled ones from the others.
    pub fn expire(&mut self, now: Instant) -> Vec<Entry<T, K>> {
        self.room.take_overdue(now, &mut self.dead);
        std::mem::take(&mut self.dead)
    }

    /// Entries that the last [`poll`](Self::poll) passed over because they were dead when it formed a batch. Asked after a
    /// `Next::Run`, before the batch runs, so that their callers hear at once; else the next `poll` or `expire` has them.
    pub fn skipped(&mut self) -> Vec<Entry<T, K>> {
        std::mem::take(&mut self.dead)
    }

    /// When [`expire`](Self::expire) should be called next: the earliest queued deadline, or earlier, never later.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.dead.first() {
            Some(entry) => Some(entry.arrived),
            None => self.room.earliest_deadline(),
        }
    }

    /// Takes out every cancelled entry (and others that were found dead). Looks at all entries; cancelled ones are never
    /// run anyway, so this is only needed to free their memory and their place early.
    pub fn remove_cancelled(&mut self) -> Vec<Entry<T, K>> {
        self.room.take_cancelled(&mut self.dead);
        std::mem::take(&mut self.dead)
    }

    /// The batch of this ticket has ended. Its time is learnt if `ok`; a failed run says nothing about the cost.
    pub fn finished(&mut self, ticket: Ticket<K>, now: Instant, ok: bool) {
        let Ticket {
            key,
            rows,
            started,
            id,
        } = ticket;
        let known = self.running.finish(id);
        debug_assert!(known, "a ticket of another queue");
        if ok && known {
            let took = now.saturating_duration_since(started);
            self.costs.observe(&key, rows, took, now);
        }
    }

    /// Hands back the vector of a batch that has been dealt with, to be used for another one.
    pub fn recycle(&mut self, mut entries: Vec<Entry<T, K>>) {
        entries.clear();
        if entries.capacity() > self.recycled.capacity() {
            self.recycled = entries;
        }
    }

    /// Accepts nothing from now on. What is queued still runs, without waiting for company.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Takes out everything, in order of arrival: for a queue whose instances are gone.
    pub fn take_all(&mut self) -> Vec<Entry<T, K>> {
        let mut all = std::mem::take(&mut self.dead);
        self.room.take_all(&mut all);
        all
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.room.waiting().requests == 0 && self.dead.is_empty()
    }

    /// How much waits and runs. Costs O(flows × keys) because of `oldest`.
    pub fn depth(&self) -> Depth {
        let waiting = self.room.waiting();
        let fronts = self.room.subs().filter_map(|sub| sub.front());
        Depth {
            requests: waiting.requests,
            rows: waiting.rows,
            bytes: waiting.bytes,
            running_requests: self.running.requests,
            running_rows: self.running.rows,
            oldest: fronts.map(|(_, entry)| entry.arrived).min(),
        }
    }
}
