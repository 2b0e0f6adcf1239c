//! Where batches stop growing, learnt from what they take.

mod support;

use std::time::{Duration, Instant};

use headrace_queue::{BatchQueue, Next, Policy};
use support::{Call, Queue, entry, ms, policy, push, us};

/// Time of a batch from a list of sizes and microseconds, straight lines between them.
fn cost(points: &[(u32, u64)], rows: u32) -> Duration {
    let after = points
        .iter()
        .position(|&(size, _)| size >= rows)
        .unwrap_or(points.len() - 1);
    let (high, slow) = points[after];
    let (low, fast) = if after == 0 {
        (0, 0)
    } else {
        points[after - 1]
    };
    let share = f64::from(rows.saturating_sub(low)) / f64::from(high - low).max(1.0);
    Duration::from_secs_f64((fast as f64 + (slow as f64 - fast as f64) * share) * 1e-6)
}

/// A server that always has work enough for the largest batch.
struct Busy {
    queue: Queue,
    now: Instant,
    id: u64,
}

impl Busy {
    fn new(max_rows: u32) -> Self {
        let queue = BatchQueue::<Call, u32>::new(Policy {
            max_batch_rows: max_rows,
            ..Policy::default()
        });
        Self {
            queue,
            now: Instant::now(),
            id: 0,
        }
    }

    /// Runs this many batches; the rows per second.
    fn run(&mut self, batches: usize, points: &[(u32, u64)]) -> f64 {
        let (mut rows, begun) = (0, self.now);
        for batch in 0..batches {
            while self.queue.depth().rows < 2 * u64::from(self.queue.policy().max_batch_rows) {
                self.id += 1;
                push(&mut self.queue, entry(self.id, self.now), self.now);
            }
            let Next::Run(formed) = self.queue.poll(self.now) else {
                panic!("there is work")
            };
            rows += formed.rows;
            // Up to 4 % of noise, the same in each run.
            let noise = 1.0 + 0.04 * ((batch * 7919 % 101) as f64 / 101.0 - 0.5);
            self.now += cost(points, formed.rows).mul_f64(noise);
            self.queue.finished(formed.ticket, self.now, true);
        }
        f64::from(rows) / self.now.duration_since(begun).as_secs_f64()
    }

    fn seed(&mut self, points: &[(u32, u64)]) {
        for &(rows, took) in points {
            self.queue.seed_cost(rows, us(took));
        }
    }
}

/// Best rows per second that a fixed size reaches.
fn best(points: &[(u32, u64)], max_rows: u32) -> f64 {
    (1..=max_rows)
        .map(|rows| f64::from(rows) / cost(points, rows).as_secs_f64())
        .fold(0.0, f64::max)
}

const SLOWED: &[(u32, u64)] = &[(1, 5400), (8, 49_000), (32, 200_000)];
const RNN: &[(u32, u64)] = &[(1, 360), (8, 470), (32, 910)];
const DENSE: &[(u32, u64)] = &[(1, 120), (64, 2240)];
const SAGGING: &[(u32, u64)] = &[(1, 1000), (16, 2000), (64, 16_000)];

#[test]
fn a_model_that_batching_slows_is_not_batched() {
    for seeded in [true, false] {
        let mut server = Busy::new(32);
        if seeded {
            server.seed(SLOWED);
        }
        server.run(100, SLOWED);
        assert_eq!(server.queue.preferred_rows(&0), 1, "seeded: {seeded}");
        let rate = server.run(2000, SLOWED);
        let alone = 1.0 / cost(SLOWED, 1).as_secs_f64();
        assert!(
            rate > 0.97 * alone,
            "seeded: {seeded}, {rate:.1} rows/s against {alone:.1} unbatched"
        );
    }
}

#[test]
fn a_model_that_gains_to_the_end_is_batched_to_the_end() {
    let mut server = Busy::new(32);
    server.run(50, RNN);
    assert_eq!(server.queue.preferred_rows(&0), 32);
}

#[test]
fn learnt_sizes_come_close_to_the_best_fixed_one() {
    for (points, max_rows) in [(SLOWED, 32), (RNN, 32), (DENSE, 64), (SAGGING, 64)] {
        let mut server = Busy::new(max_rows);
        server.run(200, points);
        let share = server.run(2000, points) / best(points, max_rows);
        assert!(share > 0.94, "{share:.3} of the best for {points:?}");
    }
}

#[test]
fn a_curve_that_changes_its_shape_is_found_again() {
    let mut server = Busy::new(64);
    server.run(500, DENSE);
    for (name, points) in [("slowed", SAGGING), ("gaining again", DENSE)] {
        server.run(1500, points);
        let share = server.run(1500, points) / best(points, 64);
        assert!(share > 0.9, "{name}: {share:.3} of the best");
    }
}

#[test]
fn one_slow_batch_among_many_changes_little() {
    let mut server = Busy::new(64);
    server.run(300, DENSE);
    let before = server.queue.estimate(1, 2, server.now);
    server.run(1, &[(1, 30_000), (64, 60_000)]);
    assert!(server.queue.preferred_rows(&0) >= 40);
    let after = server.queue.estimate(1, 2, server.now);
    assert!(after < before.mul_f64(1.6), "{before:?} became {after:?}");
    server.run(5, DENSE);
}

#[test]
fn without_learning_batches_always_grow_to_the_limit() {
    let mut queue = Queue::new(policy(32));
    queue.seed_cost(1, us(5400));
    queue.seed_cost(32, ms(200));
    assert_eq!(queue.preferred_rows(&0), 32);
}

#[test]
fn seeds_hold_for_every_key_until_its_own_batches_have_run() {
    let mut now = Instant::now();
    let mut queue = Queue::new(Policy {
        max_batch_rows: 8,
        ..Policy::default()
    });
    queue.seed_cost(1, ms(5));
    queue.seed_cost(8, ms(40));
    assert_eq!((queue.preferred_rows(&1), queue.preferred_rows(&2)), (1, 1));
    for key in [1, 1, 1] {
        push(
            &mut queue,
            support::Request {
                key,
                ..entry(0, now)
            },
            now,
        );
        let batch = support::run(&mut queue, now);
        now += ms(5);
        queue.finished(batch.ticket, now, true);
    }
    for id in 0..200 {
        for row in 0..16 {
            push(
                &mut queue,
                support::Request {
                    key: 2,
                    ..entry(id * 16 + row, now)
                },
                now,
            );
        }
        while let Next::Run(batch) = queue.poll(now) {
            now += ms(5);
            queue.finished(batch.ticket, now, true);
        }
    }
    assert_eq!(
        (queue.preferred_rows(&1), queue.preferred_rows(&2)),
        (1, 8),
        "each key has its own curve"
    );
}

#[test]
fn any_number_of_keys_costs_bounded_memory_and_the_busy_one_keeps_its_curve() {
    let mut now = Instant::now();
    let mut queue = Queue::new(Policy {
        max_batch_rows: 8,
        ..Policy::default()
    });
    for id in 0..20_000_u32 {
        let key = if id % 2 == 0 { 0 } else { id };
        push(
            &mut queue,
            support::Request {
                key,
                ..entry(u64::from(id), now)
            },
            now,
        );
        let batch = support::run(&mut queue, now);
        now += if key == 0 { ms(1) } else { ms(50) };
        queue.finished(batch.ticket, now, true);
    }
    push(&mut queue, entry(0, now), now);
    let _busy = support::run(&mut queue, now).ticket;
    let hurried = support::Request {
        deadline: Some(now + ms(8)),
        ..entry(1, now)
    };
    push(&mut queue, hurried, now);
}

#[test]
fn estimates_for_sizes_that_do_not_run_stay_where_they_are() {
    let mut now = Instant::now();
    let mut queue = Queue::new(Policy {
        max_batch_rows: 64,
        ..Policy::default()
    });
    for (rows, micros) in [(1, 100), (8, 160), (64, 700)] {
        queue.seed_cost(rows, us(micros));
    }
    let before = queue.estimate(64, 1, now);
    // One row at a time for long, four in five at 100 µs and the fifth at 40: the middle is not the mean.
    for id in 0..20_000_u64 {
        push(&mut queue, entry(id, now), now);
        let batch = support::run(&mut queue, now);
        now += us(if id % 5 == 0 { 40 } else { 100 });
        queue.finished(batch.ticket, now, true);
    }
    let after = queue.estimate(64, 1, now);
    assert!(
        after > before / 3 && after < before * 3,
        "{before:?} became {after:?}"
    );
}

#[test]
fn a_first_batch_that_takes_a_thousand_times_too_long_refuses_nobody_who_can_be_served() {
    let mut now = Instant::now();
    let mut queue = Queue::new(Policy {
        max_batch_rows: 8,
        ..Policy::default()
    });
    for (rows, micros) in [(1, 20), (2, 22), (4, 25), (8, 30)] {
        queue.seed_cost(rows, us(micros));
    }
    push(&mut queue, entry(0, now), now);
    let batch = support::run(&mut queue, now);
    now += ms(40);
    queue.finished(batch.ticket, now, true);
    now += ms(1);
    for id in 1..=8 {
        let hurried = support::Request {
            deadline: Some(now + ms(20)),
            ..entry(id, now)
        };
        push(&mut queue, hurried, now);
    }
}
