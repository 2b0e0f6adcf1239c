//! Each rule of the queue by itself.

mod support;

use std::time::Instant;

use headrace_queue::{BatchQueue, Flow, Next, Policy, Refusal, Why};
use support::{entry, expired, ids, measure, ms, policy, push, refusal, run, us};

#[test]
fn an_idle_instance_takes_a_single_request_without_waiting() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    push(&mut queue, entry(1, now), now);
    let batch = run(&mut queue, now);
    assert_eq!((ids(&batch.entries), batch.why), (vec![1], Why::Idle));
    assert!(matches!(queue.poll(now), Next::Idle));
}

#[test]
fn three_row_requests_are_never_split_and_a_batch_never_exceeds_its_rows() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    for id in 0..6 {
        push(
            &mut queue,
            support::Request {
                rows: 3,
                ..entry(id, now)
            },
            now,
        );
    }
    for expected in [[0, 1], [2, 3], [4, 5]] {
        let batch = run(&mut queue, now);
        assert_eq!((ids(&batch.entries), batch.rows), (expected.to_vec(), 6));
    }
    let why = refusal(
        &mut queue,
        support::Request {
            rows: 9,
            ..entry(9, now)
        },
        now,
    );
    assert_eq!(why, Refusal::TooManyRows { limit: 8 });
}

#[test]
fn a_batch_that_reaches_its_rows_is_full_and_one_whose_next_entry_does_not_fit_is_too() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(4));
    for (id, rows) in [(0, 4), (1, 3), (2, 2)] {
        push(
            &mut queue,
            support::Request {
                rows,
                ..entry(id, now)
            },
            now,
        );
    }
    assert_eq!(run(&mut queue, now).why, Why::Full);
    assert_eq!(run(&mut queue, now).why, Why::Full);
    assert_eq!(run(&mut queue, now).why, Why::Idle);
}

#[test]
fn an_unbatched_model_gets_each_request_alone() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(Policy {
        batching: false,
        ..policy(1)
    });
    for id in 0..3 {
        push(
            &mut queue,
            support::Request {
                rows: 7,
                ..entry(id, now)
            },
            now,
        );
    }
    for id in 0..3 {
        assert_eq!(ids(&run(&mut queue, now).entries), [id]);
    }
}

#[test]
fn a_batch_holds_one_key_and_the_oldest_key_goes_first() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    for (id, key) in [(0, 5), (1, 6), (2, 5), (3, 7), (4, 6)] {
        push(
            &mut queue,
            support::Request {
                key,
                ..entry(id, now)
            },
            now,
        );
    }
    assert_eq!(ids(&run(&mut queue, now).entries), [0, 2]);
    assert_eq!(ids(&run(&mut queue, now).entries), [1, 4]);
    assert_eq!(ids(&run(&mut queue, now).entries), [3]);
}

#[test]
fn urgent_entries_go_first_and_others_of_their_key_fill_the_batch_up() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(3));
    for (id, priority, key) in [(0, 3, 0), (1, 2, 0), (2, 1, 0), (3, 2, 1), (4, 1, 0)] {
        push(
            &mut queue,
            support::Request {
                priority,
                key,
                ..entry(id, now)
            },
            now,
        );
    }
    assert_eq!(ids(&run(&mut queue, now).entries), [2, 4, 1]);
    assert_eq!(ids(&run(&mut queue, now).entries), [3]);
    assert_eq!(ids(&run(&mut queue, now).entries), [0]);
}

#[test]
fn flows_share_by_weight_and_an_idle_flow_saves_nothing_up() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(1));
    let flow = |id, weight| Flow { id, weight };
    for id in 0..100 {
        push(
            &mut queue,
            support::Request {
                flow: flow(1, 1),
                ..entry(id, now)
            },
            now,
        );
    }
    for _ in 0..40 {
        let _ = run(&mut queue, now);
    }
    for id in 1000..1100 {
        push(
            &mut queue,
            support::Request {
                flow: flow(2, 3),
                ..entry(id, now)
            },
            now,
        );
    }
    let taken: Vec<u64> = (0..40)
        .flat_map(|_| ids(&run(&mut queue, now).entries))
        .collect();
    let second = taken.iter().filter(|&&id| id >= 1000).count();
    assert!(
        (29..=31).contains(&second),
        "weight 3 of 4 took {second} of 40"
    );
    let of_first: Vec<_> = taken.iter().filter(|&&id| id < 1000).collect();
    assert!(of_first.is_sorted(), "first in, first out within a flow");
}

#[test]
fn limits_stay_exact_after_waves_of_refusals_and_cancels() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(Policy {
        max_queue_requests: 10,
        ..policy(1)
    });
    for wave in 0..4 {
        let mut handles = Vec::new();
        let mut admitted = 0;
        for id in 0..50 {
            let one = entry(wave * 100 + id, now);
            handles.push(one.payload.clone());
            match queue.push(one, now) {
                Ok(()) => admitted += 1,
                Err(refused) => assert!(matches!(
                    refused.why,
                    Refusal::QueueFull {
                        limit: "requests",
                        ..
                    }
                )),
            }
        }
        assert_eq!(admitted, 10, "wave {wave}");
        assert_eq!(queue.depth().requests, 10);
        handles[1].0.set(true);
        handles[2].0.set(true);
        assert_eq!(queue.remove_cancelled().len(), 2);
        assert_eq!(
            (
                queue.depth().requests,
                queue.depth().rows,
                queue.depth().bytes
            ),
            (8, 8, 80)
        );
        while let Next::Run(batch) = queue.poll(now) {
            now += ms(1);
            queue.finished(batch.ticket, now, true);
        }
        assert_eq!(queue.depth(), headrace_queue::Depth::default());
    }
}

#[test]
fn rows_and_bytes_have_limits_of_their_own() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(Policy {
        max_queue_rows: 5,
        max_queue_bytes: 35,
        ..policy(8)
    });
    push(
        &mut queue,
        support::Request {
            rows: 3,
            ..entry(0, now)
        },
        now,
    );
    let why = refusal(
        &mut queue,
        support::Request {
            rows: 3,
            ..entry(1, now)
        },
        now,
    );
    assert!(matches!(why, Refusal::QueueFull { limit: "rows", .. }));
    push(&mut queue, entry(2, now), now);
    push(
        &mut queue,
        support::Request {
            bytes: 15,
            ..entry(3, now)
        },
        now,
    );
    let why = refusal(
        &mut queue,
        support::Request {
            rows: 0,
            bytes: 1,
            ..entry(4, now)
        },
        now,
    );
    assert!(matches!(why, Refusal::QueueFull { limit: "bytes", .. }));
}

#[test]
fn cancelled_entries_give_their_places_up_when_the_queue_is_full() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(Policy {
        max_queue_requests: 2,
        ..policy(8)
    });
    let first = entry(0, now);
    first.payload.0.set(true);
    push(&mut queue, first, now);
    push(&mut queue, entry(1, now), now);
    push(&mut queue, entry(2, now), now);
    assert_eq!(expired(&mut queue, now), [0]);
    assert_eq!(ids(&run(&mut queue, now).entries), [1, 2]);
}

#[test]
fn dead_entries_are_passed_over_while_a_batch_fills_and_not_counted() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(2));
    for id in 0..5 {
        let one = entry(id, now);
        one.payload.0.set(id < 2 || id == 3);
        push(&mut queue, one, now);
    }
    let batch = run(&mut queue, now);
    assert_eq!(
        (ids(&batch.entries), batch.rows, batch.why),
        (vec![2, 4], 2, Why::Full)
    );
    assert!(
        queue.next_deadline().is_some_and(|at| at <= now),
        "the driver's timer is due at once"
    );
    assert_eq!(ids(&queue.skipped()), [0, 1, 3]);
    assert_eq!(queue.depth().requests, 0);
}

#[test]
fn a_queue_with_only_dead_entries_hands_them_out_instead_of_a_batch() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(2));
    let one = entry(7, now);
    one.payload.0.set(true);
    push(&mut queue, one, now);
    assert_eq!(expired(&mut queue, now), [7]);
    assert!(matches!(queue.poll(now), Next::Idle));
}

#[test]
fn overdue_entries_leave_on_the_timer_while_the_instance_is_busy() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(1));
    push(&mut queue, entry(0, now), now);
    let busy = run(&mut queue, now);
    push(&mut queue, entry(1, now), now);
    push(
        &mut queue,
        support::Request {
            deadline: Some(now + ms(500)),
            ..entry(2, now)
        },
        now,
    );
    assert_eq!(queue.next_deadline(), Some(now + ms(500)));
    assert!(queue.expire(now + ms(499)).is_empty());
    assert_eq!(ids(&queue.expire(now + ms(500))), [2]);
    queue.finished(busy.ticket, now + ms(10_000), true);
    assert_eq!(ids(&run(&mut queue, now + ms(10_000)).entries), [1]);
}

#[test]
fn overdue_entries_come_out_before_anything_runs() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    push(
        &mut queue,
        support::Request {
            deadline: Some(now + ms(1)),
            ..entry(0, now)
        },
        now,
    );
    push(&mut queue, entry(1, now), now);
    assert_eq!(expired(&mut queue, now + ms(1)), [0]);
    assert_eq!(ids(&run(&mut queue, now + ms(1)).entries), [1]);
}

#[test]
fn an_entry_whose_deadline_has_passed_is_refused() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    let late = support::Request {
        deadline: Some(now),
        ..entry(0, now)
    };
    assert_eq!(refusal(&mut queue, late, now), Refusal::Expired);
}

#[test]
fn a_deadline_that_the_backlog_makes_impossible_is_refused_at_the_door() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(policy(1));
    measure(&mut queue, 1, ms(10), &mut now);
    for id in 0..10 {
        push(&mut queue, entry(id, now), now);
    }
    let hurried = support::Request {
        deadline: Some(now + ms(50)),
        ..entry(99, now)
    };
    let Refusal::CannotMeetDeadline { estimated, left } = refusal(&mut queue, hurried, now) else {
        panic!("refused for another reason");
    };
    assert_eq!((estimated, left), (ms(110), ms(50)));
    push(
        &mut queue,
        support::Request {
            deadline: Some(now + ms(127)),
            ..entry(98, now)
        },
        now,
    );
    // What is less urgent doesn't stand before it.
    push(
        &mut queue,
        support::Request {
            priority: 1,
            deadline: Some(now + ms(50)),
            ..entry(97, now)
        },
        now,
    );
}

#[test]
fn more_instances_and_what_runs_on_them_enter_the_estimate() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(Policy {
        instances: 2,
        ..policy(1)
    });
    measure(&mut queue, 1, ms(10), &mut now);
    assert_eq!(queue.estimate(1, 2, now), ms(10));
    push(&mut queue, entry(0, now), now);
    let _first = run(&mut queue, now).ticket;
    assert_eq!(
        queue.estimate(1, 2, now),
        ms(10),
        "the other instance is free"
    );
    push(&mut queue, entry(1, now), now);
    let _second = run(&mut queue, now + ms(4)).ticket;
    assert_eq!(
        queue.estimate(1, 2, now + ms(4)),
        ms(16),
        "the first one is free in 6 ms"
    );
    push(&mut queue, entry(2, now), now);
    assert_eq!(
        queue.estimate(1, 2, now + ms(4)),
        ms(20),
        "then the second one in 10"
    );
    push(&mut queue, entry(3, now), now);
    assert_eq!(
        queue.estimate(1, 2, now + ms(4)),
        ms(26),
        "then the first one again"
    );
}

#[test]
fn a_run_that_overruns_is_expected_to_take_longer_yet() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(policy(1));
    measure(&mut queue, 1, ms(10), &mut now);
    push(&mut queue, entry(0, now), now);
    let _stuck = run(&mut queue, now).ticket;
    assert_eq!(queue.estimate(1, 2, now + ms(510)), ms(510));
}

#[test]
fn an_idle_queue_admits_whatever_a_stale_estimate_says() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(policy(1));
    for _ in 0..10 {
        measure(&mut queue, 1, ms(30), &mut now);
    }
    let hurried = |now| support::Request {
        deadline: Some(now + ms(20)),
        ..entry(1, now)
    };
    let why = refusal(&mut queue, hurried(now), now);
    assert!(
        matches!(why, Refusal::CannotMeetDeadline { .. }),
        "a fresh measurement is believed"
    );
    now += ms(700);
    push(&mut queue, hurried(now), now);
    let batch = run(&mut queue, now);
    now += ms(10);
    queue.finished(batch.ticket, now, true);
    // It was wrong, so it isn't believed until it has settled.
    push(&mut queue, hurried(now), now);
    assert_eq!(run(&mut queue, now).rows, 1);
}

#[test]
fn a_thousand_hopeless_requests_run_next_to_nothing() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    for _ in 0..10 {
        measure(&mut queue, 1, ms(200), &mut now);
    }
    let mut ran = 0;
    for id in 0..1000 {
        let _ = queue.push(
            support::Request {
                deadline: Some(now + ms(1)),
                ..entry(id, now)
            },
            now,
        );
        if let Next::Run(batch) = queue.poll(now) {
            ran += 1;
            queue.finished(batch.ticket, now + ms(200), true);
        }
        now += us(500);
        queue.expire(now);
    }
    assert_eq!(ran, 0);
    now += ms(1);
    queue.expire(now);
    assert_eq!(queue.depth().requests, 0);
    push(&mut queue, entry(5000, now), now);
    assert_eq!(run(&mut queue, now).rows, 1);
}

#[test]
fn a_batch_stops_growing_where_it_would_make_its_first_entry_late() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    queue.seed_cost(1, ms(10));
    queue.seed_cost(8, ms(80));
    measure(&mut queue, 1, ms(10), &mut now);
    push(
        &mut queue,
        support::Request {
            deadline: Some(now + ms(65)),
            ..entry(0, now)
        },
        now,
    );
    let at = now + ms(30);
    for id in 1..5 {
        push(&mut queue, entry(id, at), at);
    }
    let batch = run(&mut queue, at);
    assert_eq!((ids(&batch.entries), batch.why), (vec![0, 1, 2], Why::Full));
    let _ = queue.take_all();
    queue.finished(batch.ticket, at + ms(30), true);
    now = at + ms(30);
    push(&mut queue, entry(10, now), now);
    push(
        &mut queue,
        support::Request {
            deadline: Some(now + ms(25)),
            ..entry(11, now)
        },
        now,
    );
    push(&mut queue, entry(12, now), now);
    let batch = run(&mut queue, now);
    assert_eq!(
        (ids(&batch.entries), batch.why),
        (vec![10, 11], Why::Deadline)
    );
}

#[test]
fn a_queue_delay_is_only_a_cap() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(Policy {
        max_queue_delay: ms(5),
        ..policy(2)
    });
    push(&mut queue, entry(0, now), now);
    let Next::WaitUntil(at) = queue.poll(now) else {
        panic!("it waits for company")
    };
    assert_eq!(at, now + ms(5));
    assert_eq!(run(&mut queue, at).why, Why::Delay);
    for id in 1..3 {
        push(&mut queue, entry(id, now), now);
    }
    assert_eq!(
        run(&mut queue, now).why,
        Why::Full,
        "a full batch doesn't wait"
    );
    for (id, key) in [(3, 1), (4, 2), (5, 2)] {
        push(
            &mut queue,
            support::Request {
                key,
                ..entry(id, now)
            },
            now,
        );
    }
    assert_eq!(
        ids(&run(&mut queue, now).entries),
        [4, 5],
        "nor does one behind another key that waits"
    );
}

#[test]
fn a_deadline_ends_the_queue_delay_in_time_for_the_run() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    measure(&mut queue, 1, ms(10), &mut now);
    queue.set_policy(Policy {
        max_queue_delay: ms(500),
        ..policy(8)
    });
    push(
        &mut queue,
        support::Request {
            deadline: Some(now + ms(100)),
            ..entry(0, now)
        },
        now,
    );
    let Next::WaitUntil(at) = queue.poll(now) else {
        panic!("it waits for company")
    };
    assert_eq!(at, now + ms(89));
    assert_eq!(run(&mut queue, at).why, Why::Deadline);
}

#[test]
fn draining_refuses_the_new_and_runs_the_old_without_delay() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(Policy {
        max_queue_delay: ms(500),
        ..policy(8)
    });
    push(&mut queue, entry(0, now), now);
    queue.drain();
    assert_eq!(refusal(&mut queue, entry(1, now), now), Refusal::Draining);
    assert_eq!(run(&mut queue, now).why, Why::Flush);
}

#[test]
fn take_all_gives_everything_in_order_of_arrival() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(8));
    for (id, key, priority) in [(0, 1, 2), (1, 0, 1), (2, 1, 1)] {
        push(
            &mut queue,
            support::Request {
                key,
                priority,
                ..entry(id, now)
            },
            now,
        );
    }
    assert_eq!(ids(&queue.take_all()), [0, 1, 2]);
    assert!(matches!(queue.poll(now), Next::Idle));
    push(&mut queue, entry(3, now), now);
    assert_eq!(
        ids(&run(&mut queue, now).entries),
        [3],
        "it goes on after that"
    );
}

#[test]
fn depth_tells_what_waits_and_what_runs() {
    let now = Instant::now();
    let mut queue = BatchQueue::new(policy(2));
    for id in 0..3 {
        let at = now + ms(id);
        push(&mut queue, entry(id, at), at);
    }
    let batch = run(&mut queue, now + ms(3));
    let depth = queue.depth();
    assert_eq!((depth.requests, depth.rows, depth.bytes), (1, 1, 10));
    assert_eq!((depth.running_requests, depth.running_rows), (2, 2));
    assert_eq!(depth.oldest, Some(now + ms(2)));
    queue.finished(batch.ticket, now + ms(9), false);
    assert_eq!(queue.depth().running_requests, 0);
}

#[test]
fn a_light_flow_is_not_refused_for_a_heavy_ones_backlog() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(policy(1));
    measure(&mut queue, 1, ms(10), &mut now);
    for id in 0..100 {
        push(&mut queue, entry(id, now), now);
    }
    let light = support::Request {
        flow: Flow { id: 9, weight: 1 },
        deadline: Some(now + ms(50)),
        ..entry(500, now)
    };
    push(&mut queue, light, now);
    let early: Vec<_> = (0..3)
        .flat_map(|_| ids(&run(&mut queue, now).entries))
        .collect();
    assert!(early.contains(&500), "served within its share: {early:?}");
}

#[test]
fn a_failed_run_says_nothing_about_the_cost() {
    let mut now = Instant::now();
    let mut queue = BatchQueue::new(policy(1));
    measure(&mut queue, 1, ms(10), &mut now);
    push(&mut queue, entry(0, now), now);
    let batch = run(&mut queue, now);
    queue.finished(batch.ticket, now + us(1), false);
    assert_eq!(queue.estimate(1, 2, now), ms(10));
}
