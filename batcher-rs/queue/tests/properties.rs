//! What holds whatever happens in whatever order.

mod support;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use headrace_queue::{Flow, Next, Policy, Refusal, Ticket};
use proptest::prelude::*;
use support::{Call, Queue, Request, ms, us};

#[derive(Clone, Debug)]
enum Step {
    Push {
        key: u32,
        rows: u32,
        priority: u32,
        flow: u32,
        weight: u32,
        deadline: Option<u64>,
    },
    Poll,
    Finish {
        which: usize,
        ok: bool,
    },
    Cancel {
        which: usize,
    },
    RemoveCancelled,
    Expire,
    Pass {
        micros: u64,
    },
    TakeAll,
}

fn step() -> impl Strategy<Value = Step> {
    let deadline = proptest::option::weighted(0.5, 0_u64..20_000);
    let push = (0_u32..4, 1_u32..6, 1_u32..4, 0_u32..4, 1_u32..4, deadline).prop_map(
        |(key, rows, priority, flow, weight, deadline)| Step::Push {
            key,
            rows,
            priority,
            flow,
            weight,
            deadline,
        },
    );
    prop_oneof![
        12 => push,
        6 => Just(Step::Poll),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(which, ok)| Step::Finish { which, ok }),
        2 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        1 => Just(Step::RemoveCancelled),
        1 => Just(Step::Expire),
        3 => (0_u64..5_000).prop_map(|micros| Step::Pass { micros }),
        1 => Just(Step::TakeAll),
    ]
}

fn policies() -> impl Strategy<Value = Policy> {
    (
        1_u32..10,
        0_u64..3,
        any::<bool>(),
        any::<bool>(),
        1_usize..40,
        1_u32..3,
    )
        .prop_map(
            |(max_batch_rows, delay, batching, learn_costs, max_queue_requests, instances)| {
                Policy {
                    max_batch_rows,
                    max_queue_delay: ms(delay),
                    max_queue_rows: 60,
                    max_queue_bytes: 500,
                    max_queue_requests,
                    batching,
                    learn_costs,
                    instances,
                }
            },
        )
}

/// A queue beside plain lists of what should be in it.
struct Model {
    queue: Queue,
    policy: Policy,
    now: Instant,
    waiting: HashMap<u64, Request>,
    running: Vec<Ticket<u32>>,
    handles: Vec<Call>,
    next: u64,
}

impl Model {
    fn new(policy: Policy) -> Self {
        let queue = Queue::new(policy.clone());
        let (waiting, running, handles) = (HashMap::new(), Vec::new(), Vec::new());
        Self {
            queue,
            policy,
            now: Instant::now(),
            waiting,
            running,
            handles,
            next: 0,
        }
    }

    fn left(&mut self, entries: &[Request]) {
        for entry in entries {
            assert!(
                self.waiting.remove(&entry.id).is_some(),
                "entry {} came out twice or from nowhere",
                entry.id
            );
        }
    }

    fn died(&mut self, entries: &[Request]) {
        for entry in entries {
            let overdue = entry.deadline.is_some_and(|deadline| deadline <= self.now);
            let cancelled = entry.payload.0.get();
            // What has a deadline may also be given up before it.
            assert!(
                overdue || cancelled || entry.deadline.is_some(),
                "entry {} was alive",
                entry.id
            );
        }
        self.left(entries);
    }

    fn ran(&mut self, entries: &[Request], rows: u32) {
        assert_eq!(rows, entries.iter().map(|entry| entry.rows).sum::<u32>());
        assert!(!entries.is_empty());
        if self.policy.batching {
            assert!(rows <= self.policy.max_batch_rows, "{rows} rows in a batch");
        } else {
            assert_eq!(entries.len(), 1);
        }
        assert!(
            entries.iter().all(|entry| entry.key == entries[0].key),
            "keys are mixed"
        );
        assert!(
            entries.is_sorted_by_key(|entry| entry.priority),
            "the urgent ones go first"
        );
        let class = |entry: &Request| (entry.flow.id, entry.priority, entry.key);
        for entry in entries {
            assert!(!entry.payload.0.get(), "a cancelled entry runs");
            assert!(
                entry.deadline.is_none_or(|deadline| deadline > self.now),
                "an overdue entry runs"
            );
        }
        self.left(entries);
        for entry in entries {
            let passed = self.waiting.values().find(|other| {
                let same = class(other) == class(entry) && other.id < entry.id;
                same && !other.payload.0.get() && other.deadline.is_none()
            });
            assert!(passed.is_none(), "{} overtook {passed:?}", entry.id);
        }
        let order: Vec<_> = entries
            .iter()
            .map(|entry| (class(entry), entry.id))
            .collect();
        for (at, (one, first)) in order.iter().enumerate() {
            assert!(
                order[at..]
                    .iter()
                    .all(|(other, second)| other != one || second >= first)
            );
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Push {
                key,
                rows,
                priority,
                flow,
                weight,
                deadline,
            } => {
                let (id, now) = (self.next, self.now);
                self.next += 1;
                let flow = Flow { id: flow, weight };
                let deadline = deadline.map(|left| now + us(left));
                let payload = Call::default();
                self.handles.push(payload.clone());
                let bytes = u64::from(rows) * 10;
                let entry = Request {
                    id,
                    payload,
                    key,
                    rows,
                    bytes,
                    priority,
                    flow,
                    arrived: now,
                    deadline,
                };
                match self.queue.push(entry.clone(), now) {
                    Ok(()) => {
                        self.waiting.insert(id, entry);
                    }
                    Err(refused) => {
                        assert_eq!(refused.entry.id, id);
                        if let Refusal::QueueFull { limit, .. } = refused.why {
                            self.was_full(limit, rows);
                        }
                    }
                }
            }
            Step::Poll => match self.queue.poll(self.now) {
                Next::Run(batch) => {
                    let skipped = self.queue.skipped();
                    self.died(&skipped);
                    self.ran(&batch.entries, batch.rows);
                    assert_eq!(
                        (batch.ticket.rows, batch.ticket.key),
                        (batch.rows, batch.entries[0].key)
                    );
                    self.running.push(batch.ticket);
                }
                Next::Expire(entries) => {
                    assert!(!entries.is_empty());
                    self.died(&entries);
                }
                Next::WaitUntil(at) => {
                    assert!(
                        !self.policy.max_queue_delay.is_zero(),
                        "nothing waits without a delay"
                    );
                    assert!(at > self.now && at <= self.now + self.policy.max_queue_delay);
                }
                Next::Idle => assert!(
                    self.waiting.is_empty(),
                    "idle with {} waiting",
                    self.waiting.len()
                ),
            },
            Step::Finish { which, ok } if !self.running.is_empty() => {
                let ticket = self.running.swap_remove(which % self.running.len());
                self.queue.finished(ticket, self.now, ok);
            }
            Step::Cancel { which } if !self.handles.is_empty() => {
                self.handles[which % self.handles.len()].0.set(true);
            }
            Step::Finish { .. } | Step::Cancel { .. } => {}
            Step::RemoveCancelled => {
                let entries = self.queue.remove_cancelled();
                self.died(&entries);
                assert!(self.waiting.values().all(|entry| !entry.payload.0.get()));
            }
            Step::Expire => {
                let entries = self.queue.expire(self.now);
                self.died(&entries);
                let due =
                    |entry: &Request| entry.deadline.is_some_and(|deadline| deadline <= self.now);
                assert!(!self.waiting.values().any(due), "an overdue entry stays");
            }
            Step::Pass { micros } => self.now += us(micros),
            Step::TakeAll => {
                let entries = self.queue.take_all();
                self.left(&entries);
                assert!(self.waiting.is_empty());
            }
        }
    }

    /// A refusal is only right if the limit is really reached by what waits.
    fn was_full(&self, limit: &str, rows: u32) {
        let alive: Vec<_> = self.waiting.values().collect();
        let sum: u32 = alive.iter().map(|entry| entry.rows).sum();
        match limit {
            "requests" => assert!(alive.len() >= self.policy.max_queue_requests),
            "rows" => assert!(u64::from(sum + rows) > self.policy.max_queue_rows),
            _ => assert!(u64::from(sum + rows) * 10 > self.policy.max_queue_bytes),
        }
    }

    fn check(&self) {
        let depth = self.queue.depth();
        assert!(depth.requests <= self.policy.max_queue_requests);
        assert!(
            depth.rows <= self.policy.max_queue_rows && depth.bytes <= self.policy.max_queue_bytes
        );
        assert!(
            depth.requests <= self.waiting.len(),
            "what is dead and not handed out yet no longer counts"
        );
        let earliest = self
            .waiting
            .values()
            .filter_map(|entry| entry.deadline)
            .min();
        assert!(
            earliest.is_none_or(|at| self.queue.next_deadline().is_some_and(|next| next <= at))
        );
        assert_eq!(
            depth.running_rows,
            self.running
                .iter()
                .map(|ticket| u64::from(ticket.rows))
                .sum::<u64>()
        );
    }

    /// Empties the queue the ordinary way; everything must come out.
    fn finish(mut self) {
        self.queue.drain();
        for _ in 0..10_000 {
            match self.queue.poll(self.now) {
                Next::Run(batch) => {
                    let skipped = self.queue.skipped();
                    self.died(&skipped);
                    self.ran(&batch.entries, batch.rows);
                    self.queue.finished(batch.ticket, self.now, true);
                }
                Next::Expire(entries) => self.died(&entries),
                Next::WaitUntil(_) => panic!("a draining queue doesn't wait"),
                Next::Idle => break,
            }
        }
        assert!(self.waiting.is_empty(), "lost: {:?}", self.waiting.keys());
        let depth = self.queue.depth();
        assert_eq!(
            (depth.requests, depth.rows, depth.bytes, depth.oldest),
            (0, 0, 0, None)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn nothing_is_lost_doubled_mixed_split_overtaken_or_over_a_limit(
        policy in policies(), steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut model = Model::new(policy);
        for step in steps {
            model.step(&step);
            model.check();
        }
        model.finish();
    }

    #[test]
    fn flows_that_always_have_work_get_rows_by_weight(
        flows in proptest::collection::vec((1_u32..5, 1_u32..5), 2..5), max_rows in 4_u32..12,
    ) {
        let now = Instant::now();
        let policy = Policy { max_batch_rows: max_rows, max_queue_rows: 1 << 30, max_queue_requests: 1 << 20,
            max_queue_bytes: 1 << 30, learn_costs: false, ..Policy::default() };
        let mut queue = Queue::new(policy);
        for turn in 0..400_u64 {
            for (id, &(rows, weight)) in flows.iter().enumerate() {
                let flow = Flow { id: id as u32, weight };
                support::push(&mut queue, Request { rows, flow, ..support::entry(turn, now) }, now);
            }
        }
        let mut served = vec![0_f64; flows.len()];
        let mut rows = 0;
        while rows < 250 {
            let batch = support::run(&mut queue, now);
            rows += batch.rows;
            for entry in batch.entries {
                served[entry.flow.id as usize] += f64::from(entry.rows);
            }
        }
        // Start-time fair queueing: no two flows are further apart than one entry of each, counted in rows / weight.
        for (one, &(rows_one, weight_one)) in flows.iter().enumerate() {
            for (two, &(rows_two, weight_two)) in flows.iter().enumerate() {
                let (weight_one, weight_two) = (f64::from(weight_one), f64::from(weight_two));
                let apart = (served[one] / weight_one - served[two] / weight_two).abs();
                let bound = f64::from(rows_one) / weight_one + f64::from(rows_two) / weight_two + 0.01;
                prop_assert!(apart <= bound, "{served:?} for {flows:?}");
            }
        }
    }
}

#[test]
fn any_number_of_keys_and_flows_passes_through_without_being_kept() {
    let now = Instant::now();
    let mut queue = Queue::new(support::policy(4));
    let mut seen = HashSet::new();
    for id in 0..50_000_u64 {
        let flow = Flow {
            id: (id % 1000) as u32,
            weight: 1,
        };
        support::push(
            &mut queue,
            Request {
                key: id as u32,
                flow,
                ..support::entry(id, now)
            },
            now,
        );
        if id % 7 == 6 {
            for _ in 0..7 {
                seen.extend(support::ids(&support::run(&mut queue, now).entries));
            }
        }
    }
    while let Next::Run(batch) = queue.poll(now) {
        seen.extend(support::ids(&batch.entries));
    }
    assert_eq!(seen.len(), 50_000);
}
