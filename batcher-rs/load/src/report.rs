//! What a load test found, as JSON carries it.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::record::Record;

/// The result of a load test. `requests` = `ok` + the sum of `errors`; what was dropped was never sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Requests that ended and count: those of the warm-up don't.
    pub requests: u64,
    /// Requests that ended, those of the warm-up and after the end included: what server CPU time is to be divided by.
    pub all_requests: u64,
    /// Those answered with OK.
    pub ok: u64,
    /// OK a second.
    pub rps: f64,
    /// OK within the deadline, a second; equal to `rps` where there is no deadline.
    pub goodput_rps: f64,
    /// Failed requests by gRPC code.
    pub errors: BTreeMap<String, u64>,
    /// Failed requests by `headrace-reason`, or by a reason of ours that starts with `CLIENT_`.
    pub reasons: BTreeMap<String, u64>,
    /// The first message for each reason (or code, where there is no reason).
    pub messages: BTreeMap<String, String>,
    /// Latency of those answered with OK. Open loop: from the moment at which they were meant to be sent.
    pub latency_us: Latency,
    /// Latency of the failed ones.
    pub error_latency_us: Latency,
    /// Open loop: how much later than meant the generator sent. If its p99 isn't small, the generator is the bottleneck.
    pub lag_us: Latency,
    /// Open loop: requests that were due while `max_outstanding` were outstanding, and so were not sent.
    pub dropped: u64,
    /// OK answers whose output is not the expected one.
    pub mismatches: u64,
    /// Connections that ended during the run and were made anew.
    pub reconnects: u64,
    /// Body bytes received, prefixes included.
    pub bytes_in: u64,
    /// Body bytes sent, prefixes included.
    pub bytes_out: u64,
    /// Seconds over which was counted.
    pub seconds: f64,
    /// CPU time of the generator for each request, in microseconds; warm-up included in both.
    pub client_cpu_us_per_request: f64,
    /// CPU time of the generator's busiest thread for each second of the run; near 1 the generator is the bottleneck.
    pub client_busy: f64,
}

/// Percentiles in microseconds; all zero where nothing was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub struct Latency {
    pub count: u64,
    pub min: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p95: u64,
    pub p99: u64,
    #[serde(rename = "p99.9")]
    pub p99_9: u64,
    pub max: u64,
}

impl From<&Histogram<u64>> for Latency {
    fn from(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            count: histogram.len(),
            min: histogram.min(),
            mean: (histogram.mean() * 10.0).round() / 10.0,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max(),
        }
    }
}

/// CPU time of the generator's threads.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClientCost {
    pub(crate) total: Duration,
    pub(crate) busiest: Duration,
    /// Wall time and requests over which it was spent, warm-up included.
    pub(crate) wall: Duration,
    pub(crate) requests: u64,
}

impl Report {
    pub(crate) fn new(record: &Record, counted: Duration, cost: ClientCost) -> Self {
        let seconds = counted.as_secs_f64();
        let rate = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        Self {
            requests: record.ok + record.failed,
            all_requests: record.all,
            ok: record.ok,
            rps: rate(record.ok),
            goodput_rps: rate(record.within_deadline),
            errors: record
                .errors
                .iter()
                .map(|(code, count)| ((*code).to_owned(), *count))
                .collect(),
            reasons: record.reasons.clone(),
            messages: record.messages.clone(),
            latency_us: (&record.latency).into(),
            error_latency_us: (&record.error_latency).into(),
            lag_us: (&record.lag).into(),
            dropped: record.dropped,
            mismatches: record.mismatches,
            reconnects: record.reconnects,
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
            seconds,
            client_cpu_us_per_request: cost.total.as_secs_f64() * 1e6
                / (cost.requests.max(1) as f64),
            client_busy: cost.busiest.as_secs_f64() / cost.wall.as_secs_f64().max(1e-9),
        }
    }
}
