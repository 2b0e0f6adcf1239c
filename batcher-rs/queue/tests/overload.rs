//! Twice the load that the server can take: what it runs is answered in time, at any setting.
//!
//! A simulation: requests arrive evenly at twice the capacity, one instance runs batches at a cost of `fixed + each * rows`,
//! and the timer and the clock are exact. Nothing about the server is told to the queue.

mod support;

use std::time::{Duration, Instant};

use headrace_queue::{BatchQueue, Next, Policy};
use support::{Call, entry, ms, us};

#[derive(Clone, Copy)]
struct Server {
    fixed: Duration,
    each: Duration,
    max_rows: u32,
}

impl Server {
    fn takes(self, rows: u32, slowdown: u32) -> Duration {
        (self.fixed + self.each * rows) * slowdown
    }

    /// Rows per second.
    fn capacity(self, slowdown: u32) -> f64 {
        f64::from(self.max_rows) / self.takes(self.max_rows, slowdown).as_secs_f64()
    }
}

struct Load {
    requests: usize,
    deadline: Option<Duration>,
    /// Arrivals per second.
    rate: f64,
    lasts: Duration,
    /// How much slower the model is at this time.
    slowdown: fn(Duration) -> u32,
    /// What becomes of a run's time on a machine that others use too, by the batch's number.
    noise: fn(u64) -> f64,
    /// How long after a run its answers arrive.
    delivery: Duration,
}

fn quiet(_: u64) -> f64 {
    1.0
}

/// Half to nearly twice the time, and now and then the processor is taken away: four times.
fn noisy(batch: u64) -> f64 {
    let random = batch
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
        .wrapping_mul(0xBF58_476D_1CE4_E5B9)
        >> 40;
    let share = random as f64 / f64::from(1 << 24);
    if share > 0.95 { 4.0 } else { 0.5 + 1.3 * share }
}

/// Times since the start at which an answer came in time.
fn simulate(server: Server, load: &Load) -> Vec<Duration> {
    let start = Instant::now();
    let policy = Policy {
        max_batch_rows: server.max_rows,
        max_queue_requests: load.requests,
        ..Policy::default()
    };
    let mut queue = BatchQueue::<Call, u32>::new(policy);
    let gap = Duration::from_secs_f64(1.0 / load.rate);
    let (mut arrival, mut id) = (start, 0);
    let mut running: Option<(Instant, headrace_queue::Batch<Call, u32>)> = None;
    let mut good = Vec::new();
    let mut batches = 0;
    loop {
        let next = running
            .as_ref()
            .map_or(arrival, |(ends, _)| arrival.min(*ends));
        if next > start + load.lasts {
            return good;
        }
        if let Some((ends, batch)) = running.take_if(|(ends, _)| *ends == next) {
            let in_time = batch
                .entries
                .iter()
                .filter(|one| one.deadline.is_none_or(|at| ends + load.delivery <= at));
            good.extend(in_time.map(|_| ends.duration_since(start)));
            queue.finished(batch.ticket, ends, true);
        } else {
            let deadline = load.deadline.map(|left| next + left);
            let _ = queue.push(
                support::Request {
                    deadline,
                    ..entry(id, next)
                },
                next,
            );
            id += 1;
            arrival += gap;
        }
        queue.expire(next);
        while running.is_none() {
            match queue.poll(next) {
                Next::Run(batch) => {
                    let took =
                        server.takes(batch.rows, (load.slowdown)(next.duration_since(start)));
                    let ends = next + took.mul_f64((load.noise)(batches));
                    batches += 1;
                    running = Some((ends, batch));
                }
                Next::Expire(_) => {}
                Next::WaitUntil(_) | Next::Idle => break,
            }
        }
    }
}

/// Share of `capacity` (rows per second) that was answered in time between two moments.
fn goodput(good: &[Duration], from: Duration, to: Duration, capacity: f64) -> f64 {
    let count = good.iter().filter(|&&at| from <= at && at < to).count();
    count as f64 / (to.saturating_sub(from).as_secs_f64() * capacity)
}

const SERVERS: [Server; 3] = [
    Server {
        fixed: us(1000),
        each: us(50),
        max_rows: 64,
    },
    Server {
        fixed: us(100),
        each: us(15),
        max_rows: 64,
    },
    Server {
        fixed: us(500),
        each: us(400),
        max_rows: 16,
    },
];

#[test]
fn twice_the_load_keeps_the_capacity_as_goodput_at_any_limit_and_deadline() {
    for server in SERVERS {
        for deadline in [Some(ms(20)), Some(ms(100)), Some(ms(1000)), None] {
            for requests in [64, 4096] {
                let load = Load {
                    requests,
                    deadline,
                    rate: 2.0 * server.capacity(1),
                    lasts: ms(3000),
                    slowdown: |_| 1,
                    noise: quiet,
                    delivery: Duration::ZERO,
                };
                let good = simulate(server, &load);
                let share = goodput(&good, ms(500), ms(3000), server.capacity(1));
                println!(
                    "{deadline:?}, {requests} requests, {:?} a row: {share:.3}",
                    server.each
                );
                assert!(
                    share >= 0.95,
                    "{share:.3} at {deadline:?}, {requests}, {:?} a row",
                    server.each
                );
            }
        }
    }
}

#[test]
fn a_model_that_turns_three_times_slower_and_back_is_followed_within_a_second() {
    for server in SERVERS {
        for deadline in [Some(ms(40)), Some(ms(100)), Some(ms(1000)), None] {
            for requests in [64, 4096] {
                let load = Load {
                    noise: quiet,
                    delivery: Duration::ZERO,
                    requests,
                    deadline,
                    rate: 2.0 * server.capacity(1),
                    lasts: ms(6000),
                    slowdown: |at| {
                        if (ms(2000)..ms(4000)).contains(&at) {
                            3
                        } else {
                            1
                        }
                    },
                };
                let good = simulate(server, &load);
                let slow = goodput(&good, ms(2900), ms(4000), server.capacity(3));
                let fast = goodput(&good, ms(4900), ms(6000), server.capacity(1));
                println!(
                    "{deadline:?}, {requests} requests, {:?} a row: {slow:.3}, {fast:.3}",
                    server.each
                );
                assert!(
                    slow >= 0.9,
                    "slow {slow:.3} at {deadline:?}, {requests}, {:?} a row",
                    server.each
                );
                assert!(
                    fast >= 0.95,
                    "fast again {fast:.3} at {deadline:?}, {requests}, {:?} a row",
                    server.each
                );
            }
        }
    }
}

#[test]
fn a_model_that_was_too_slow_for_every_deadline_is_tried_again() {
    let server = Server {
        fixed: us(8000),
        each: us(10),
        max_rows: 8,
    };
    let load = Load {
        noise: quiet,
        delivery: Duration::ZERO,
        requests: 4096,
        deadline: Some(ms(20)),
        rate: 500.0,
        lasts: ms(6000),
        slowdown: |at| {
            if (ms(1000)..ms(3000)).contains(&at) {
                10
            } else {
                1
            }
        },
    };
    let good = simulate(server, &load);
    let after = goodput(&good, ms(4000), ms(6000), 500.0);
    assert!(
        after >= 0.95,
        "{after:.3} of what is offered is answered after the recovery"
    );
}

#[test]
fn below_capacity_nothing_is_refused_or_late() {
    for server in SERVERS {
        let rate = 0.7 * server.capacity(1);
        let load = Load {
            requests: 4096,
            deadline: Some(ms(50)),
            rate,
            lasts: ms(3000),
            slowdown: |_| 1,
            noise: quiet,
            delivery: Duration::ZERO,
        };
        let good = simulate(server, &load);
        let share = goodput(&good, ms(500), ms(3000), rate);
        assert!(
            share >= 0.99,
            "{share:.3} of what is offered at {:?} a row",
            server.each
        );
    }
}

#[test]
fn a_machine_that_others_use_too_still_answers_most_of_its_capacity_in_time() {
    for server in SERVERS {
        let load = |deadline, rate| Load {
            requests: 4096,
            deadline,
            rate,
            lasts: ms(6000),
            slowdown: |_| 1,
            noise: noisy,
            delivery: ms(1),
        };
        let rate = 2.0 * server.capacity(1);
        let all = simulate(server, &load(None, rate));
        let capacity = goodput(&all, ms(500), ms(6000), 1.0);
        for deadline in [ms(50), ms(100), ms(1000)] {
            let good = simulate(server, &load(Some(deadline), rate));
            let share = goodput(&good, ms(500), ms(6000), capacity);
            println!("{deadline:?}, {:?} a row: {share:.3}", server.each);
            assert!(
                share >= 0.9,
                "{share:.3} at {deadline:?}, {:?} a row",
                server.each
            );
        }
    }
}

/// The weights are what a run takes its time for: one row costs as much as thirty. Half of the deadline is hardly enough for
/// a run of one, and that is no reason to run one at a time.
#[test]
fn batches_stay_large_where_a_single_row_takes_half_of_the_deadline() {
    let server = Server {
        fixed: us(9_900),
        each: us(40),
        max_rows: 64,
    };
    for slower in [1.0, 1.1] {
        let load = Load {
            requests: 4096,
            deadline: Some(ms(20).div_f64(slower)),
            rate: 2.0 * server.capacity(1),
            lasts: ms(4000),
            slowdown: |_| 1,
            noise: quiet,
            delivery: Duration::ZERO,
        };
        let good = simulate(server, &load);
        let share = goodput(&good, ms(1000), ms(4000), server.capacity(1));
        println!("{slower}: {share:.3}");
        assert!(share >= 0.6, "{share:.3} at {slower}");
    }
}

#[test]
fn noise_does_not_make_batches_small_where_rows_cost_little() {
    let server = Server {
        fixed: us(8_000),
        each: us(150),
        max_rows: 128,
    };
    let load = |deadline, rate| Load {
        requests: 4096,
        deadline,
        rate,
        lasts: ms(6000),
        slowdown: |_| 1,
        noise: noisy,
        delivery: ms(1),
    };
    let rate = 2.0 * server.capacity(1);
    let all = simulate(server, &load(None, rate));
    let capacity = goodput(&all, ms(500), ms(6000), 1.0);
    for (deadline, least) in [(ms(50), 0.55), (ms(100), 0.85), (ms(300), 0.9)] {
        let good = simulate(server, &load(Some(deadline), rate));
        let share = goodput(&good, ms(500), ms(6000), capacity);
        println!("{deadline:?}: {share:.3}");
        assert!(share >= least, "{share:.3} at {deadline:?}");
    }
}
