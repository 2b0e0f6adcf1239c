//! Cost of resolving a name and picking a replica with 10,000 models in the table.
#![allow(missing_docs, reason = "criterion's macros make items without any")]

use std::fmt::Write as _;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use headrace_route::{Choice, Table};

fn table(models: usize) -> Table {
    let mut json = String::from(r#"{"generation":1,"replicas":{"#);
    for replica in 0..8 {
        let comma = if replica > 0 { "," } else { "" };
        write!(
            json,
            r#"{comma}"w{replica}":{{"address":"127.0.0.1:{}"}}"#,
            9000 + replica
        )
        .expect("strings grow");
    }
    json.push_str(r#"},"models":{"#);
    for model in 0..models {
        let comma = if model > 0 { "," } else { "" };
        let ready =
            r#""replicas":["w0","w1","w2","w3","w4","w5","w6","w7"],"state":"READY","reason":"""#;
        write!(
            json,
            r#"{comma}"team/model-{model:05}":{{"default":{{"1":90,"2":10}},"versions":{{"1":{{{ready}}},"2":{{{ready}}}}},"sticky":null}}"#
        )
        .expect("strings grow");
    }
    json.push_str("}}");
    Table::from_json(&json).expect("a sound table")
}

fn is_optimized() -> bool {
    !cfg!(debug_assertions)
}

fn lookup(c: &mut Criterion) {
    assert!(
        is_optimized(),
        "a debug build measures nothing: use cargo bench"
    );
    let table = table(10_000);
    let names: Vec<String> = (0..10_000)
        .map(|model| format!("team/model-{:05}", model * 7919 % 10_000))
        .collect();
    let mut at = 0;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        at = (at + 1) % 10_000;
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (at, random)
    };
    let choice = Choice {
        excluded: None,
        is_ejected: |_| false,
        load: |replica| replica,
    };
    c.bench_function("resolve one of 10,000 models", |b| {
        b.iter(|| {
            let (at, random) = next();
            black_box(table.resolve(black_box(&names[at]), "", random).is_ok())
        });
    });
    c.bench_function("resolve and pick one of 8 replicas", |b| {
        b.iter(|| {
            let (at, random) = next();
            let route = table
                .resolve(black_box(&names[at]), "", random)
                .expect("it is ready");
            black_box(route.pick(random, &choice))
        });
    });
    c.bench_function("resolve and pick for a sticky key", |b| {
        b.iter(|| {
            let (at, random) = next();
            let route = table
                .resolve(black_box(&names[at]), "", random)
                .expect("it is ready");
            black_box(route.pick_sticky(names[at].as_bytes(), &choice))
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(std::time::Duration::from_secs(2)).warm_up_time(std::time::Duration::from_millis(500));
    targets = lookup
}
criterion_main!(benches);
