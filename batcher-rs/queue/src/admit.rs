//! What may come in: exact limits, and no work that would be late.
//!
//! A bound in numbers alone keeps a server from collapsing only if it is tuned to the callers' deadlines: a long queue makes
//! every answer late. So an entry with a deadline is refused when the expected wait and run exceed the time it has.
//! The danger of that rule is an estimate that is too high and refuses everything, because then nothing runs that could
//! correct it. Hence an entry that finds nothing waiting and an instance idle comes in whatever the estimate says, unless
//! that is trusted (see `Curve::is_trusted`, which lapses with time) and even a run alone is well beyond the time left.

use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::curve::Curve;
use crate::entry::{Entry, Flow, Live, Refusal, Refused};
use crate::queue::BatchQueue;

/// Cancelled entries are looked for in a full queue no more often than this.
const SWEEP_EVERY: Duration = Duration::from_millis(1);

/// An entry that would have to wait must be expected to need so much less than the time it has: at the very edge every delay
/// makes somebody late whose run was work for nobody. It costs nothing, since others wait already.
const CAUTION: f64 = 1.15;

impl<T: Live, K: Clone + Eq + Hash> BatchQueue<T, K> {
    /// Queues an entry, or hands it back with the reason.
    ///
    /// Overdue entries give up their places first, and cancelled ones do when the queue is full.
    pub fn push(&mut self, entry: Entry<T, K>, now: Instant) -> Result<(), Refused<T, K>> {
        if let Some(why) = self.refusal(&entry, now) {
            return Err(Refused { entry, why });
        }
        self.room.push(entry);
        Ok(())
    }

    fn refusal(&mut self, entry: &Entry<T, K>, now: Instant) -> Option<Refusal> {
        if self.draining {
            return Some(Refusal::Draining);
        }
        if self.policy.batching && entry.rows > self.policy.max_batch_rows {
            return Some(Refusal::TooManyRows {
                limit: self.policy.max_batch_rows,
            });
        }
        if entry.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Refusal::Expired);
        }
        if self.full(entry).is_some() {
            self.make_room(now);
        }
        if let Some(limit) = self.full(entry) {
            let retry_after = self.time_to_clear(now);
            return Some(Refusal::QueueFull { limit, retry_after });
        }
        let deadline = entry.deadline?;
        let left = deadline - now;
        let estimated = self.expected(entry, left, now);
        let late = if self.room.waiting().requests == 0 && self.has_idle_instance() {
            self.is_hopeless(&entry.key, entry.rows, left.mul_f64(1.25), now)
        } else {
            estimated.mul_f64(CAUTION) > left
        };
        late.then_some(Refusal::CannotMeetDeadline { estimated, left })
    }

    /// The limit that this entry would break.
    fn full(&self, entry: &Entry<T, K>) -> Option<&'static str> {
        let waiting = self.room.waiting();
        if waiting.requests >= self.policy.max_queue_requests {
            Some("requests")
        } else if waiting.rows.saturating_add(u64::from(entry.rows)) > self.policy.max_queue_rows {
            Some("rows")
        } else if waiting.bytes.saturating_add(entry.bytes) > self.policy.max_queue_bytes {
            Some("bytes")
        } else {
            None
        }
    }

    /// Lets go of the dead in a full queue.
    fn make_room(&mut self, now: Instant) {
        self.room.take_overdue(now, &mut self.dead);
        if self
            .swept
            .is_none_or(|last| now.saturating_duration_since(last) >= SWEEP_EVERY)
        {
            self.swept = Some(now);
            self.room.take_cancelled(&mut self.dead);
        }
    }

    pub(crate) fn has_idle_instance(&self) -> bool {
        self.running.len() < self.policy.instances.max(1) as usize
    }

    /// Expected time until a request of `rows` that joins now is done: what goes before it, what runs, its own run.
    /// Zero as long as nothing is known about costs.
    pub fn estimate(&self, rows: u32, priority: u32, now: Instant) -> Duration {
        self.expected_with(self.costs.overall(), rows, priority, None, None, now)
    }

    fn expected(&self, entry: &Entry<T, K>, left: Duration, now: Instant) -> Duration {
        let curve = self.costs.curve(&entry.key);
        self.expected_with(
            curve,
            entry.rows,
            entry.priority,
            Some(entry.flow),
            Some(left),
            now,
        )
    }

    fn expected_with(
        &self,
        curve: &Curve,
        rows: u32,
        priority: u32,
        flow: Option<Flow>,
        left: Option<Duration>,
        now: Instant,
    ) -> Duration {
        let (requests, ahead) = self.room.ahead(priority, flow.map(|flow| (flow, rows)));
        let instances = self.policy.instances;
        if !self.policy.batching {
            let each = curve.run_at_worst(rows);
            return self
                .running
                .wait(requests, instances, each, now)
                .saturating_add(each);
        }
        let limit = self.bounded(curve.reach());
        // With many keys a batch holds what its key has, not what would be best.
        let keys = self.room.live_keys().max(1) as u64;
        let size = (self.room.waiting().rows / keys).clamp(1, u64::from(limit)) as u32;
        let size = if keys == 1 { limit } else { size };
        let each = curve.run_at_worst(size);
        let wait = self
            .running
            .wait(ahead / u64::from(size), instances, each, now);
        // Those who come after it join its batch: as many as usual, if it has to wait at all.
        let joined = (ahead % u64::from(size)) as u32 + rows;
        let company = if wait.is_zero() {
            0.0
        } else {
            self.usual_rows.min(f64::from(size))
        };
        let own = joined
            .max(company.round() as u32)
            .clamp(rows.max(1), self.policy.max_batch_rows.max(rows));
        let total = wait.saturating_add(curve.run_at_worst(own));
        match left {
            // Batches of entries in a hurry are kept shorter.
            Some(left) if total > left => {
                wait.saturating_add(curve.run_at_worst(curve.fit(own, left / 2).max(rows)))
            }
            _ => total,
        }
    }

    /// Expected time until everything that waits has run, for callers who are told to come back.
    fn time_to_clear(&self, now: Instant) -> Duration {
        let all = self.estimate(1, u32::MAX, now);
        all.clamp(Duration::from_millis(1), Duration::from_secs(30))
    }

    /// True when a run of `rows` that starts at once would surely end too late.
    pub(crate) fn is_hopeless(&self, key: &K, rows: u32, left: Duration, now: Instant) -> bool {
        let curve = self.costs.curve(key);
        curve.run(rows) > left && curve.is_trusted(now)
    }

    /// Rows at which batches of this key stop growing at present.
    pub fn preferred_rows(&self, key: &K) -> u32 {
        self.bounded(self.costs.curve(key).limit())
    }

    /// A size learnt from a curve, within what the policy allows.
    fn bounded(&self, learnt: u32) -> u32 {
        if !self.policy.batching {
            1
        } else if self.policy.learn_costs {
            learnt.clamp(1, self.policy.max_batch_rows.max(1))
        } else {
            self.policy.max_batch_rows.max(1)
        }
    }
}
