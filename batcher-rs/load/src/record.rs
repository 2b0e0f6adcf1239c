//! What one thread of the generator counts.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use crate::{
    answer::Failure,
    schedule::{CountBy, Window},
};

/// Longest latency that is told apart; longer ones count as this.
const LONGEST_US: u64 = 600_000_000;

/// Microseconds to three significant digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, 3).expect("constant bounds are valid")
}

pub(crate) struct Record {
    window: Window,
    /// Deadline of each request; an OK after it is no goodput.
    timeout: Option<Duration>,
    /// Every request that ended, warm-up included.
    pub(crate) all: u64,
    pub(crate) ok: u64,
    pub(crate) within_deadline: u64,
    pub(crate) failed: u64,
    pub(crate) errors: BTreeMap<&'static str, u64>,
    pub(crate) reasons: BTreeMap<String, u64>,
    pub(crate) messages: BTreeMap<String, String>,
    pub(crate) latency: Histogram<u64>,
    pub(crate) error_latency: Histogram<u64>,
    pub(crate) lag: Histogram<u64>,
    pub(crate) dropped: u64,
    pub(crate) mismatches: u64,
    pub(crate) reconnects: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) last_finish: Option<Instant>,
}

/// A request that ended.
pub(crate) struct Finished<'a> {
    /// When it was meant to be sent.
    pub(crate) meant: Instant,
    pub(crate) at: Instant,
    pub(crate) failure: Option<&'a Failure>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) mismatch: bool,
}

impl Record {
    pub(crate) fn new(window: Window, timeout: Option<Duration>) -> Self {
        Self {
            window,
            timeout,
            all: 0,
            ok: 0,
            within_deadline: 0,
            failed: 0,
            errors: BTreeMap::new(),
            reasons: BTreeMap::new(),
            messages: BTreeMap::new(),
            latency: histogram(),
            error_latency: histogram(),
            lag: histogram(),
            dropped: 0,
            mismatches: 0,
            reconnects: 0,
            bytes_in: 0,
            bytes_out: 0,
            last_finish: None,
        }
    }

    pub(crate) fn finished(&mut self, done: &Finished<'_>) {
        self.all += 1;
        // A request without an answer has no finish of its own; it counts if it was meant to be sent in time.
        let counts = match done.failure {
            Some(failure) if failure.reason == "CLIENT_UNANSWERED" => Window {
                count_by: CountBy::Start,
                ..self.window
            }
            .counts(done.meant, done.at),
            _ => self.window.counts(done.meant, done.at),
        };
        if !counts {
            return;
        }
        let took = done.at.saturating_duration_since(done.meant);
        let took_us = took.as_micros() as u64;
        self.bytes_in += done.bytes_in;
        self.bytes_out += done.bytes_out;
        self.last_finish = self.last_finish.max(Some(done.at));
        let Some(failure) = done.failure else {
            self.ok += 1;
            self.within_deadline += u64::from(self.timeout.is_none_or(|timeout| took <= timeout));
            self.mismatches += u64::from(done.mismatch);
            self.latency.saturating_record(took_us.max(1));
            return;
        };
        self.failed += 1;
        *self.errors.entry(failure.code).or_default() += 1;
        if !failure.reason.is_empty() {
            *self.reasons.entry(failure.reason.clone()).or_default() += 1;
        }
        let key = if failure.reason.is_empty() {
            failure.code
        } else {
            &failure.reason
        };
        if !self.messages.contains_key(key) {
            self.messages
                .insert(key.to_owned(), failure.message.clone());
        }
        self.error_latency.saturating_record(took_us.max(1));
    }

    /// A request that was due and not sent, because too many were outstanding already.
    pub(crate) fn dropped(&mut self, meant: Instant) {
        self.dropped += u64::from(self.window.from <= meant && meant < self.window.to);
    }

    /// How late the generator itself was.
    pub(crate) fn lagged(&mut self, meant: Instant, sent: Instant) {
        if self.window.from <= meant && meant < self.window.to {
            self.lag.saturating_record(
                (sent.saturating_duration_since(meant).as_micros() as u64).max(1),
            );
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.all += other.all;
        self.ok += other.ok;
        self.within_deadline += other.within_deadline;
        self.failed += other.failed;
        for (code, count) in other.errors {
            *self.errors.entry(code).or_default() += count;
        }
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        for (key, message) in other.messages {
            self.messages.entry(key).or_insert(message);
        }
        for (mine, others) in [
            (&mut self.latency, &other.latency),
            (&mut self.error_latency, &other.error_latency),
            (&mut self.lag, &other.lag),
        ] {
            mine.add(others)
                .expect("all histograms have the same bounds");
        }
        self.dropped += other.dropped;
        self.mismatches += other.mismatches;
        self.reconnects += other.reconnects;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.last_finish = self.last_finish.max(other.last_finish);
    }
}
