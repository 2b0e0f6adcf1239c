//! What queueing costs an entry: pushed, taken in batches of 64, the batch learnt from.
#![allow(missing_docs, reason = "criterion's macros make items without any")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use headrace_queue::{BatchQueue, Entry, Flow, Live, Next, Policy};

/// About what a front hangs on an entry.
struct Call([u64; 8]);

impl Live for Call {
    fn is_cancelled(&self) -> bool {
        self.0[0] == u64::MAX
    }
}

struct Shape {
    name: &'static str,
    keys: u32,
    flows: u32,
    deadline: Option<Duration>,
}

fn is_optimized() -> bool {
    !cfg!(debug_assertions)
}

fn queue(c: &mut Criterion) {
    assert!(
        is_optimized(),
        "a debug build measures nothing: use cargo bench"
    );
    let plain = Shape {
        name: "",
        keys: 1,
        flows: 1,
        deadline: None,
    };
    let shapes = [
        Shape {
            name: "one key, one flow",
            ..plain
        },
        Shape {
            name: "one key, one flow, deadlines of 1 s",
            deadline: Some(Duration::from_secs(1)),
            ..plain
        },
        Shape {
            name: "100 keys",
            keys: 100,
            ..plain
        },
        Shape {
            name: "100 flows",
            flows: 100,
            ..plain
        },
    ];
    let mut group = c.benchmark_group("push and poll 64, per entry");
    group.throughput(Throughput::Elements(64));
    for shape in shapes {
        let start = Instant::now();
        let mut queue = BatchQueue::<Call, u32>::new(Policy::default());
        queue.seed_cost(64, Duration::from_micros(500));
        let (mut now, mut id) = (start, 0_u64);
        group.bench_function(shape.name, |b| {
            b.iter_batched(
                || (),
                |()| {
                    for _ in 0..64 {
                        id += 1;
                        let entry = Entry {
                            id,
                            payload: Call([id; 8]),
                            key: (id % u64::from(shape.keys)) as u32,
                            rows: 1,
                            bytes: 256,
                            priority: 2,
                            flow: Flow {
                                id: (id % u64::from(shape.flows)) as u32,
                                weight: 1,
                            },
                            arrived: now,
                            deadline: shape.deadline.map(|left| now + left),
                        };
                        assert!(queue.push(entry, now).is_ok());
                    }
                    while let Next::Run(batch) = queue.poll(now) {
                        now += Duration::from_micros(500);
                        queue.finished(batch.ticket, now, true);
                        queue.recycle(black_box(batch.entries));
                    }
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
    targets = queue
}
criterion_main!(benches);
