//! Open loops: the rate is kept, and what the server or the generator delays shows in the latency.

mod support;

use std::{sync::atomic::AtomicBool, time::Duration};

use headrace_load::{Arrival, run};
use support::{Does, config, serve};

#[test]
fn latency_runs_from_the_moment_at_which_a_request_was_meant_to_be_sent() {
    // One stream at a time, each 20 ms: at 100 a second every request waits for all before it, inside the generator. Measured from
    // the moment of sending they would all take 20 ms.
    let server = serve(Does::AnswersAfter(Duration::from_millis(20)), 1);
    let mut config = config(server.address);
    (config.rate, config.arrival) = (Some(100.0), Arrival::Constant);
    config.duration_ms = 600;
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.requests, 60, "{report:?}");
    assert!(report.latency_us.max >= 400_000, "{report:?}");
    assert!(report.latency_us.p50 >= 150_000, "{report:?}");
    assert!(report.lag_us.max >= 300_000, "{report:?}");
}

#[test]
fn requests_beyond_the_bound_are_dropped_and_counted() {
    let server = serve(Does::Nothing, 1000);
    let mut config = config(server.address);
    (config.rate, config.arrival) = (Some(1000.0), Arrival::Constant);
    (config.max_outstanding, config.duration_ms, config.drain_ms) = (10, 200, 10);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.reasons["CLIENT_UNANSWERED"], 10, "{report:?}");
    assert_eq!(report.requests + report.dropped, 200, "{report:?}");
}

#[test]
fn a_slow_server_does_not_slow_the_arrivals() {
    let server = serve(Does::AnswersAfter(Duration::from_millis(100)), 1000);
    let mut config = config(server.address);
    (config.rate, config.connections, config.threads) = (Some(500.0), 4, 2);
    config.duration_ms = 800;
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.requests, report.ok);
    // Four standard deviations of a Poisson count of 400.
    assert!((320..=480).contains(&report.requests), "{report:?}");
    assert!(report.latency_us.min >= 100_000, "{report:?}");
}

#[test]
fn what_was_due_while_the_server_was_gone_counts_as_failed() {
    let server = serve(Does::DropsAt(1), 100);
    let mut config = config(server.address);
    (config.rate, config.arrival) = (Some(200.0), Arrival::Constant);
    config.duration_ms = 500;
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!((report.requests, report.ok), (100, 0), "{report:?}");
    assert_eq!(report.errors.get("UNAVAILABLE"), Some(&100), "{report:?}");
    assert!(
        report.reasons.contains_key("CLIENT_NOT_CONNECTED"),
        "{report:?}"
    );
}
