//! How many requests may be sent a second time, so that retries never become the load (`design`: a full server refuses, and
//! a refusal that is retried everywhere is what turns overload into collapse).

use std::time::{Duration, Instant};

const SLOTS: usize = 10;

/// Retries allowed: a share of the recent requests, and a few a second whatever the traffic.
#[derive(Clone, Debug)]
pub struct Budget {
    share: f64,
    floor: f64,
    slot: Duration,
    counts: [(u32, u32); SLOTS],
    /// Slot in use and when it began.
    current: usize,
    began: Option<Instant>,
}

impl Default for Budget {
    /// A fifth of the requests of the last ten seconds, and one a second.
    fn default() -> Self {
        Self::new(0.2, 1.0, Duration::from_secs(10))
    }
}

impl Budget {
    /// `share`: retries per request. `floor`: retries per second that are always allowed. `window`: how long requests
    /// and retries count.
    pub fn new(share: f64, floor: f64, window: Duration) -> Self {
        let slot = (window / SLOTS as u32).max(Duration::from_millis(1));
        Self {
            share,
            floor,
            slot,
            counts: [(0, 0); SLOTS],
            current: 0,
            began: None,
        }
    }

    fn advance(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began).as_nanos() / self.slot.as_nanos();
        if passed == 0 {
            return;
        }
        for _ in 0..passed.min(SLOTS as u128) {
            self.current = (self.current + 1) % SLOTS;
            self.counts[self.current] = (0, 0);
        }
        // A whole number of slots on, so that they keep their length.
        self.began = Some(if passed < SLOTS as u128 {
            began + self.slot * passed as u32
        } else {
            now
        });
    }

    /// A request came (not a retry).
    pub fn request(&mut self, now: Instant) {
        self.advance(now);
        let requests = &mut self.counts[self.current].0;
        *requests = requests.saturating_add(1);
    }

    /// Takes one retry out of the budget; false when it is spent.
    pub fn try_retry(&mut self, now: Instant) -> bool {
        self.advance(now);
        let (requests, retries) = self
            .counts
            .iter()
            .fold((0_u64, 0_u64), |sum, &(requests, retries)| {
                (sum.0 + u64::from(requests), sum.1 + u64::from(retries))
            });
        let window = self.slot.as_secs_f64() * SLOTS as f64;
        let allowed = self.share * requests as f64 + self.floor * window;
        let granted = (retries + 1) as f64 <= allowed;
        self.counts[self.current].1 += u32::from(granted);
        granted
    }
}
