//! How a batch is formed.
//!
//! The key is chosen by who is next (`room`); the batch then takes entries with that key in order, the most urgent first,
//! until it is as large as pays, the next entry doesn't fit, or none is left. Dead entries are passed over, never counted.
//!
//! An entry is given up as expired although its deadline hasn't passed yet when a run that starts now would end too late and the
//! estimate is trusted (`Curve::is_trusted`). That run is the entry's own if there's little else to do, and then a batch also
//! stops growing where that would make one of its entries late. With two full batches or more waiting it is the full batch:
//! small batches to save a few would make the many behind them late. So that full batches can be in time at all, a batch
//! takes at most half of the time that its first entry had when it came.

use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::entry::{Entry, Live};
use crate::next::{Batch, Next, Ticket, Why};
use crate::queue::BatchQueue;

/// What a batch with positive queue delay may still wait for ends this long before a deadline requires it.
const MARGIN: Duration = Duration::from_millis(1);

impl<T: Live, K: Clone + Eq + Hash> BatchQueue<T, K> {
    /// What an idle instance should do now. With a queue delay of zero it gets work whenever there is some.
    pub fn poll(&mut self, now: Instant) -> Next<T, K> {
        self.room.take_overdue(now, &mut self.dead);
        if !self.dead.is_empty() {
            return Next::Expire(std::mem::take(&mut self.dead));
        }
        loop {
            let waits =
                !self.draining && self.policy.batching && !self.policy.max_queue_delay.is_zero();
            let chosen = if waits {
                self.due(now)
            } else {
                Ok(self.room.pick().map(|key| (key, Why::Idle)))
            };
            let next = match chosen {
                Ok(Some((key, why))) => match self.fill(key, why, now) {
                    Some(batch) => Next::Run(batch),
                    None => continue,
                },
                Ok(None) => Next::Idle,
                Err(at) => Next::WaitUntil(at),
            };
            return match next {
                Next::Idle | Next::WaitUntil(_) if !self.dead.is_empty() => {
                    Next::Expire(std::mem::take(&mut self.dead))
                }
                next => next,
            };
        }
    }

    /// The key whose wait for company is over, or the time when the first one's will be.
    /// Looks at every sub-queue: delays are for models with few keys.
    fn due(&mut self, now: Instant) -> Result<Option<(u32, Why)>, Instant> {
        let mut first: Option<(u32, u64, u32, Why)> = None;
        let mut until: Option<Instant> = None;
        for sub in self.room.subs() {
            let Some((seq, entry)) = sub.front() else {
                continue;
            };
            let limit = self.preferred_rows(&entry.key);
            let over = entry.arrived + self.policy.max_queue_delay;
            let why = if self.room.rows_of(sub.key) >= u64::from(limit) {
                Why::Full
            } else if over <= now {
                Why::Delay
            } else {
                until = Some(until.map_or(over, |at| at.min(over)));
                continue;
            };
            let priority = self.room.priority_of(sub);
            if first
                .as_ref()
                .is_none_or(|&(p, s, ..)| (priority, seq) < (p, s))
            {
                first = Some((priority, seq, sub.key, why));
            }
        }
        if let Some((_, _, key, why)) = first {
            return Ok(Some((key, why)));
        }
        if let Some((deadline, arrived, key)) = self.room.most_pressed() {
            let rows = self.room.rows_of(key).clamp(1, u64::from(u32::MAX)) as u32;
            let run = self.costs.curve(self.room.key(key)).run_at_worst(rows);
            // Without knowledge of the cost half of its time is as good a guess as any.
            let unknown = arrived + deadline.saturating_duration_since(arrived) / 2;
            let latest = if run.is_zero() {
                unknown
            } else {
                deadline.checked_sub(run + MARGIN).unwrap_or(now)
            };
            if latest <= now {
                return Ok(Some((key, Why::Deadline)));
            }
            until = Some(until.map_or(latest, |at| at.min(latest)));
        }
        until.map_or(Ok(None), Err)
    }

    /// Forms a batch with this key. None: all that was there was dead.
    fn fill(&mut self, key: u32, cause: Why, now: Instant) -> Option<Batch<T, K>> {
        let name = self.room.key(key).clone();
        let waiting = self.room.rows_of(key);
        let mut limit = match (self.policy.batching, self.policy.learn_costs) {
            (false, _) => 1,
            (true, false) => self.policy.max_batch_rows,
            (true, true) => self
                .costs
                .curve_mut(&name)
                .next_size(waiting)
                .min(self.policy.max_batch_rows),
        };
        let backlog = waiting >= 2 * u64::from(limit);
        let curve = self.costs.curve(&name);
        let trusted = curve.is_trusted(now);
        let mut full_run = curve.run(limit);

        let mut entries = std::mem::take(&mut self.recycled);
        let mut rows = 0_u32;
        let mut earliest: Option<Instant> = None;
        let mut why = cause;
        'levels: for rank in 0..self.room.ranks() {
            while let Some((sub, entry)) = self.room.next_of(rank, key) {
                let late = match entry.deadline {
                    _ if entry.payload.is_cancelled() => true,
                    Some(deadline) if deadline <= now => true,
                    Some(deadline) => {
                        if entries.is_empty() && full_run > entry_budget(entry) / 2 {
                            limit = curve.fit(limit, entry_budget(entry) / 2);
                            full_run = curve.run(limit);
                        }
                        let left = deadline - now;
                        let needs = if backlog {
                            full_run
                        } else {
                            curve.run(entry.rows)
                        };
                        trusted && left < full_run && left < needs
                    }
                    None => false,
                };
                if late {
                    let entry = self.room.take(sub, false);
                    self.dead.push(entry);
                    continue;
                }
                let grown = rows.saturating_add(entry.rows);
                if !entries.is_empty() {
                    if !self.policy.batching || grown > limit {
                        why = Why::Full;
                        break 'levels;
                    }
                    let bound = [earliest, entry.deadline].into_iter().flatten().min();
                    if let Some(bound) = bound.filter(|_| trusted && !backlog)
                        && now + curve.run(grown) > bound
                        && earliest.is_none_or(|earliest| now + curve.run(rows) <= earliest)
                    {
                        why = Why::Deadline;
                        break 'levels;
                    }
                }
                earliest = [earliest, entry.deadline].into_iter().flatten().min();
                if entries.is_empty() {
                    self.room.serve(sub);
                }
                rows = grown;
                entries.push(self.room.take(sub, true));
                if rows >= limit {
                    why = Why::Full;
                    break 'levels;
                }
            }
        }
        if entries.is_empty() {
            self.recycled = entries;
            return None;
        }
        if self.draining && why == Why::Idle {
            why = Why::Flush;
        }
        let expected = self.costs.curve(&name).run(rows);
        let id = self.next_ticket;
        self.next_ticket += 1;
        self.running.start(id, now, expected, entries.len(), rows);
        self.usual_rows += 0.2 * (f64::from(rows) - self.usual_rows);
        let ticket = Ticket {
            key: name,
            rows,
            started: now,
            id,
        };
        Some(Batch {
            entries,
            rows,
            why,
            ticket,
        })
    }
}

/// The time that an entry had when it came.
fn entry_budget<T, K>(entry: &Entry<T, K>) -> Duration {
    entry.deadline.map_or(Duration::MAX, |deadline| {
        deadline.saturating_duration_since(entry.arrived)
    })
}
