//! Closed loops against servers that answer, refuse, stay silent, say goodbye and vanish: every request is accounted for.

mod support;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use headrace_load::{LoadError, Payload, Report, run};
use support::{Does, REPLY_BYTES, config, serve};

fn total(report: &Report) -> u64 {
    report.ok + report.errors.values().sum::<u64>()
}

#[test]
fn a_refused_connection_names_the_address() {
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = run(&config(free), &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, LoadError::Connect { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains(&format!("connection refused by {free}")),
        "{error}"
    );
}

#[test]
fn a_vanished_connection_costs_its_requests_and_not_the_run() {
    let server = serve(Does::DropsAt(10), 100);
    let mut config = config(server.address);
    config.requests = Some(500);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.requests, total(&report));
    assert!(report.requests >= 500, "{report:?}");
    assert!(report.reconnects >= 20, "{report:?}");
    assert!(
        report.reasons["CLIENT_CONNECTION_LOST"] >= report.reconnects,
        "{report:?}"
    );
    assert_eq!(report.errors.keys().collect::<Vec<_>>(), ["UNAVAILABLE"]);
}

#[test]
fn a_goodbye_is_followed_by_a_new_connection() {
    let server = serve(Does::SaysGoodbyeAfter(50), 100);
    let mut config = config(server.address);
    config.requests = Some(400);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.requests, total(&report));
    assert!(report.reconnects >= 4, "{report:?}");
    assert!(server.connections.load(Ordering::SeqCst) > 4);
    assert!(
        report.ok >= 350,
        "what the server accepted was answered: {report:?}"
    );
}

#[test]
fn refusals_are_counted_by_code_and_reason_with_their_message() {
    let server = serve(Does::Refuses, 100);
    let mut config = config(server.address);
    config.requests = Some(200);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!((report.requests, report.ok), (200, 0));
    assert_eq!(report.errors["RESOURCE_EXHAUSTED"], 200);
    assert_eq!(report.reasons["QUEUE_FULL"], 200);
    assert_eq!(report.messages["QUEUE_FULL"], "4096 rows are queued");
    assert_eq!(
        (report.latency_us.count, report.error_latency_us.count),
        (0, 200)
    );
}

#[test]
fn every_answer_is_counted_over_any_layout() {
    let server = serve(Does::Answers, 100);
    for (connections, concurrency, threads) in [(1, 1, 1), (1, 64, 1), (16, 16, 2), (5, 12, 3)] {
        let mut config = config(server.address);
        (config.connections, config.concurrency, config.threads) =
            (connections, concurrency, threads);
        config.requests = Some(600);
        let report = run(&config, &AtomicBool::new(false)).unwrap();
        assert_eq!(
            (report.requests, report.ok, report.latency_us.count),
            (600, 600, 600),
            "{report:?}"
        );
        assert_eq!(
            (report.bytes_in, report.bytes_out),
            (600 * REPLY_BYTES, 600 * 10)
        );
    }
}

#[test]
fn a_server_that_allows_fewer_streams_than_asked_for_is_not_overrun() {
    let server = serve(Does::AnswersAfter(Duration::from_millis(1)), 3);
    let mut config = config(server.address);
    config.requests = Some(100);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!((report.requests, report.ok), (100, 100), "{report:?}");
}

#[test]
fn a_deadline_is_sent_and_a_silent_server_given_up_at_it() {
    let server = serve(Does::Nothing, 100);
    let mut config = config(server.address);
    config.timeout_us = Some(20_000);
    config.requests = Some(16);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.errors["DEADLINE_EXCEEDED"], 16, "{report:?}");
    assert_eq!(report.reasons["CLIENT_DEADLINE"], 16);
    assert!(report.error_latency_us.min >= 20_000, "{report:?}");
    let timeouts = server.timeouts.lock().unwrap();
    assert_eq!(timeouts.len(), 16);
    assert!(
        timeouts
            .iter()
            .all(|timeout| timeout == "20000u" || timeout == "20m"),
        "{timeouts:?}"
    );
}

#[test]
fn goodput_leaves_out_what_came_after_the_deadline() {
    let server = serve(Does::AnswersAfter(Duration::from_millis(40)), 100);
    let mut config = config(server.address);
    config.timeout_us = Some(10_000);
    config.cancel_at_deadline = false;
    config.requests = Some(16);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.ok, 16);
    assert!(report.rps > 0.0 && report.goodput_rps == 0.0, "{report:?}");
}

#[test]
fn stopping_ends_a_run_against_a_silent_server() {
    let server = serve(Does::Nothing, 100);
    let mut config = config(server.address);
    config.duration_ms = 60_000;
    config.drain_ms = 10;
    let begun = Instant::now();
    let report = run(&config, &AtomicBool::new(true)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(report.ok, 0);
    assert_eq!(report.requests, total(&report));
}

#[test]
fn unanswered_requests_of_a_timed_run_are_reported() {
    let server = serve(Does::Nothing, 100);
    let mut config = config(server.address);
    (config.duration_ms, config.drain_ms) = (50, 10);
    let report = run(&config, &AtomicBool::new(false)).unwrap();
    assert_eq!(report.reasons["CLIENT_UNANSWERED"], 8, "{report:?}");
}

#[test]
fn a_wrong_output_is_a_mismatch_and_the_right_one_is_not() {
    let server = serve(Does::Answers, 100);
    let mut config = config(server.address);
    config.requests = Some(50);
    config.expect = vec![Payload::Base64("AQIDBA==".to_owned())];
    assert_eq!(run(&config, &AtomicBool::new(false)).unwrap().mismatches, 0);
    config.expect = vec![Payload::Base64("AQIDBQ==".to_owned())];
    assert_eq!(
        run(&config, &AtomicBool::new(false)).unwrap().mismatches,
        50
    );
}

#[test]
fn settings_that_make_no_sense_are_refused_before_anything_is_sent() {
    let server = serve(Does::Answers, 100);
    let mut config = config(server.address);
    config.connections = 9;
    let error = run(&config, &AtomicBool::new(false))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`concurrency` 8 is less than `connections` 9"),
        "{error}"
    );
    let unknown = r#"{"url": "127.0.0.1:1", "payloads": [], "concurency": 4}"#;
    assert!(serde_json::from_str::<headrace_load::Config>(unknown).is_err());
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}
