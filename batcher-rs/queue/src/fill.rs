//! How a batch is formed.
//!
//! The key is chosen by who is next (`room`); the batch then takes entries with that key in order, the most urgent first,
//! until it is as large as pays, the next entry doesn't fit, or none is left. Dead entries are passed over, never counted.
//!
//! An entry is given up as expired although its deadline hasn't passed yet when a run that starts now would end too late and the
//! estimate is trusted (`Curve::is_trusted`). That run is the entry's own as long as there's little to do, and then a batch also
//! stops growing where that would make one of its entries late, if the others can wait. If they can't, or two full batches
//! are waiting, the run that counts is the planned batch's: small batches to save a few would make the many behind them late.
//! So that full batches can be in time at all, a batch takes at most half of the time that its first entry had when it came.

use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::curve::Curve;
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
        let limit = match (self.policy.batching, self.policy.learn_costs) {
            (false, _) => 1,
            (true, false) => self.policy.max_batch_rows,
            (true, true) => self
                .costs
                .curve_mut(&name)
                .next_size(waiting)
                .min(self.policy.max_batch_rows),
        };
        let mut form = Form {
            entries: std::mem::take(&mut self.recycled),
            rows: 0,
            earliest: None,
            limit,
            waiting,
            crowded: waiting >= 2 * u64::from(limit),
            now,
            ends: now,
        };
        let mut why = cause;
        let curve = self.costs.curve_mut(&name);
        let trusted = curve.is_trusted(now);
        let mut daring = false;
        form.ends = now + curve.run(limit);
        'levels: for rank in 0..self.room.ranks() {
            while let Some((sub, entry)) = self.room.next_of(rank, key) {
                if form.entries.is_empty() && !form.suits(entry) && !curve.dares(form.limit) {
                    form.limit = curve.fit(form.limit, budget(entry) / 2);
                    form.ends = now + curve.run(form.limit);
                }
                if form.is_dead(entry) || (trusted && form.is_late(entry, curve)) {
                    let entry = self.room.take(sub, false);
                    self.dead.push(entry);
                    continue;
                }
                if !form.entries.is_empty() {
                    let grown = form.rows.saturating_add(entry.rows);
                    if !self.policy.batching || grown > form.limit {
                        why = Why::Full;
                        break 'levels;
                    }
                    if trusted && !daring && form.makes_late(entry, curve) {
                        daring = curve.dares(grown);
                        if !daring && form.leaves_time(entry, curve) {
                            why = Why::Deadline;
                            break 'levels;
                        }
                        if !daring {
                            form.give_up_late(curve, &mut self.dead);
                            continue;
                        }
                    }
                }
                if form.entries.is_empty() {
                    self.room.serve(sub);
                }
                form.add(self.room.take(sub, true));
                if form.rows >= form.limit {
                    why = Why::Full;
                    break 'levels;
                }
            }
        }
        let Form { entries, rows, .. } = form;
        if entries.is_empty() {
            self.recycled = entries;
            return None;
        }
        if self.draining && why == Why::Idle {
            why = Why::Flush;
        }
        let expected = curve.run(rows);
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

/// A batch that is being formed.
struct Form<T, K> {
    entries: Vec<Entry<T, K>>,
    rows: u32,
    /// Earliest deadline of the entries.
    earliest: Option<Instant>,
    /// Rows that it may reach.
    limit: u32,
    /// Rows with its key that waited when it was begun.
    waiting: u64,
    /// So much waits that the many go before the few.
    crowded: bool,
    now: Instant,
    /// Expected end of a run of that size: deadlines after it need no closer look.
    ends: Instant,
}

impl<T: Live, K> Form<T, K> {
    fn add(&mut self, entry: Entry<T, K>) {
        self.earliest = sooner(self.earliest, entry.deadline);
        self.rows += entry.rows;
        self.entries.push(entry);
    }

    /// Rows that it will have if all goes well.
    fn planned(&self) -> u32 {
        self.waiting.min(u64::from(self.limit)) as u32
    }

    fn is_dead(&self, entry: &Entry<T, K>) -> bool {
        entry.payload.is_cancelled() || entry.deadline.is_some_and(|deadline| deadline <= self.now)
    }

    /// True when a batch of the full size takes no more than half of the time that this entry had.
    fn suits(&self, entry: &Entry<T, K>) -> bool {
        entry.deadline.is_none()
            || self.ends.saturating_duration_since(self.now) <= budget(entry) / 2
    }

    /// True when a run of the full size would be in time for this entry and those before it.
    fn allows(&self, entry: &Entry<T, K>) -> bool {
        let in_time =
            |deadline: Option<Instant>| deadline.is_none_or(|deadline| deadline >= self.ends);
        entry.rows <= self.limit && in_time(entry.deadline) && in_time(self.earliest)
    }

    /// True when the run that counts for this entry would end too late for it.
    fn is_late(&self, entry: &Entry<T, K>, curve: &Curve) -> bool {
        let Some(deadline) = entry.deadline.filter(|_| !self.allows(entry)) else {
            return false;
        };
        let rows = if self.crowded {
            self.planned().max(entry.rows)
        } else {
            entry.rows
        };
        self.now + curve.run(rows) > deadline
    }

    /// True when adding this entry would make it or one of the batch late.
    fn makes_late(&self, entry: &Entry<T, K>, curve: &Curve) -> bool {
        if self.crowded || self.allows(entry) {
            return false;
        }
        let ends = self.now + curve.run(self.rows + entry.rows);
        sooner(self.earliest, entry.deadline).is_some_and(|bound| ends > bound)
    }

    /// True when the rest, of which this entry is the first, can well wait until the batch has run as it is.
    fn leaves_time(&self, entry: &Entry<T, K>, curve: &Curve) -> bool {
        let rest = self
            .waiting
            .saturating_sub(u64::from(self.rows))
            .clamp(1, u64::from(self.limit)) as u32;
        let ends = self.now + curve.run(self.rows) + curve.run(rest.max(entry.rows));
        entry.deadline.is_none_or(|deadline| ends <= deadline)
    }

    /// Gives up the entries that a batch of the planned size would answer too late.
    fn give_up_late(&mut self, curve: &Curve, dead: &mut Vec<Entry<T, K>>) {
        self.crowded = true;
        let ends = self.now + curve.run(self.planned());
        dead.extend(self.entries.extract_if(.., |entry| {
            entry.deadline.is_some_and(|deadline| deadline < ends)
        }));
        self.rows = self.entries.iter().map(|entry| entry.rows).sum();
        self.earliest = self.entries.iter().filter_map(|entry| entry.deadline).min();
    }
}

fn sooner(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

/// The time that an entry had when it came.
fn budget<T, K>(entry: &Entry<T, K>) -> Duration {
    entry.deadline.map_or(Duration::MAX, |deadline| {
        deadline.saturating_duration_since(entry.arrived)
    })
}
