//! When requests are sent and which of them count; pure.

use std::time::{Duration, Instant};

use crate::config::Arrival;

/// Which answers count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    pub(crate) count_by: CountBy,
}

/// A closed loop counts what finished within the window: that is its throughput. An open loop, or one of a fixed number of requests,
/// counts what was meant to be sent within it, however late the answer: else the slowest would be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountBy {
    Finish,
    Start,
}

impl Window {
    pub(crate) fn counts(&self, started: Instant, finished: Instant) -> bool {
        let at = match self.count_by {
            CountBy::Finish => finished,
            CountBy::Start => started,
        };
        self.from <= at && at < self.to
    }
}

/// The moments at which an open loop means to send.
///
/// Each connection has its own: independent Poisson processes add up to a Poisson process of the summed rate.
#[derive(Debug)]
pub(crate) struct Pacer {
    start: Instant,
    next_s: f64,
    rate: f64,
    arrival: Arrival,
    random: u64,
}

impl Pacer {
    /// `rate` is a second; `phase` (0..1) shifts equal gaps, so that connections take turns.
    pub(crate) fn new(start: Instant, rate: f64, arrival: Arrival, phase: f64, seed: u64) -> Self {
        let mut pacer = Self {
            start,
            next_s: 0.0,
            rate,
            arrival,
            random: seed,
        };
        match arrival {
            Arrival::Constant => pacer.next_s = phase / rate,
            Arrival::Poisson => pacer.advance(),
        }
        pacer
    }

    /// When the next request is meant to be sent.
    pub(crate) fn next(&self) -> Instant {
        self.start + Duration::from_secs_f64(self.next_s)
    }

    pub(crate) fn advance(&mut self) {
        self.next_s += match self.arrival {
            Arrival::Constant => 1.0 / self.rate,
            Arrival::Poisson => -(1.0 - self.uniform()).ln() / self.rate,
        };
    }

    /// `SplitMix64`, cut to the 53 bits that a double holds: in 0..1.
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
        let start = Instant::now();
        let mut pacer = Pacer::new(start, 1000.0, Arrival::Poisson, 0.0, 7);
        let mut gaps = Vec::new();
        let mut last = start;
        for _ in 0..20_000 {
            gaps.push((pacer.next() - last).as_secs_f64() * 1000.0);
            last = pacer.next();
            pacer.advance();
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.03, "mean gap {mean} ms");
        assert!((variance - 1.0).abs() < 0.08, "variance {variance}");
    }

    #[test]
    fn constant_gaps_are_equal_and_shifted_by_the_phase() {
        let start = Instant::now();
        let mut pacer = Pacer::new(start, 100.0, Arrival::Constant, 0.5, 1);
        for turn in 0..50 {
            let meant = Duration::from_millis(5 + 10 * turn);
            assert!((pacer.next() - start).abs_diff(meant) < Duration::from_micros(1));
            pacer.advance();
        }
    }

    #[test]
    fn a_late_answer_counts_by_its_start_and_not_by_its_finish() {
        let from = Instant::now();
        let to = from + Duration::from_secs(1);
        let (early, within, late) = (
            from.checked_sub(Duration::from_millis(1)).unwrap(),
            from,
            to,
        );
        let by_finish = Window {
            from,
            to,
            count_by: CountBy::Finish,
        };
        assert!(by_finish.counts(early, within));
        assert!(!by_finish.counts(within, late));
        let by_start = Window {
            from,
            to,
            count_by: CountBy::Start,
        };
        assert!(by_start.counts(within, late));
        assert!(!by_start.counts(early, within));
    }
}
