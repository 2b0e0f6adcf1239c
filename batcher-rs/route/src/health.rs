//! Whether one replica gets requests.
//!
//! A replica that fails several times in a row, or most of the time, is ejected; after a while it is probed, and taken back
//! when the probe succeeds. Each failed probe, and each ejection soon after the last, makes the while longer.
//! An answer that says "overloaded" is an answer: ejecting a replica for it would give its load to the others.

use std::time::{Duration, Instant};

/// When a replica is ejected, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Ejection {
    /// Failures in a row that eject it.
    pub consecutive: u32,
    /// Share of failures among its latest outcomes that ejects it, 0 to 1.
    pub share: f64,
    /// Outcomes that the share is taken over, roughly; with fewer it isn't looked at.
    pub over: u32,
    /// Time to the first probe.
    pub base: Duration,
    /// Longest time between probes.
    pub longest: Duration,
    /// Times grow no longer from before once it has served for so long.
    pub forgiven_after: Duration,
}

impl Default for Ejection {
    fn default() -> Self {
        Self {
            consecutive: 3,
            share: 0.5,
            over: 50,
            base: Duration::from_millis(250),
            longest: Duration::from_secs(10),
            forgiven_after: Duration::from_secs(30),
        }
    }
}

/// What became of a request, as far as it tells about the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It answered; errors that are the request's own fault are answers.
    Answered,
    /// It answered that it is full, or can't meet the deadline.
    Overloaded,
    /// It couldn't be reached, broke off, or failed within itself.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Standing {
    In,
    Out {
        since: Instant,
        until: Instant,
        probing: bool,
    },
}

/// The health of one replica.
#[derive(Clone, Debug)]
pub struct Health {
    rules: Ejection,
    standing: Standing,
    consecutive: u32,
    outcomes: u32,
    /// Moving share of failures.
    failing: f64,
    /// Ejections and failed probes that count for the next time.
    strikes: u32,
    /// End of the last ejection's time.
    released: Option<Instant>,
}

impl Default for Health {
    fn default() -> Self {
        Self::new(Ejection::default())
    }
}

impl Health {
    /// A replica that nothing bad is known of.
    pub fn new(rules: Ejection) -> Self {
        Self {
            rules,
            standing: Standing::In,
            consecutive: 0,
            outcomes: 0,
            failing: 0.0,
            strikes: 0,
            released: None,
        }
    }

    /// Takes in what became of a request.
    pub fn record(&mut self, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Answered | Outcome::Overloaded => self.success(),
            Outcome::Failed => self.failure(now),
        }
    }

    /// It answered. While ejected, only the answer to a probe takes it back: late answers to older requests say nothing new.
    pub fn success(&mut self) {
        match self.standing {
            Standing::In => {
                self.consecutive = 0;
                self.count(0.0);
            }
            Standing::Out {
                until,
                probing: true,
                ..
            } => {
                self.standing = Standing::In;
                self.released = Some(until);
                self.consecutive = 0;
                self.outcomes = 0;
                self.failing = 0.0;
            }
            Standing::Out { .. } => {}
        }
    }

    /// It couldn't be reached or broke off.
    pub fn failure(&mut self, now: Instant) {
        match self.standing {
            Standing::In => {
                self.consecutive = self.consecutive.saturating_add(1);
                self.count(1.0);
                let often = self.outcomes >= self.rules.over && self.failing > self.rules.share;
                if self.consecutive >= self.rules.consecutive || often {
                    let forgiven =
                        |at| now.saturating_duration_since(at) >= self.rules.forgiven_after;
                    if self.released.is_none_or(forgiven) {
                        self.strikes = 0;
                    }
                    self.eject(now, now);
                }
            }
            Standing::Out {
                since,
                probing: true,
                ..
            } => self.eject(since, now),
            Standing::Out { .. } => {}
        }
    }

    fn count(&mut self, failed: f64) {
        self.outcomes = self.outcomes.saturating_add(1);
        let over = f64::from(self.outcomes.min(self.rules.over.max(1)));
        self.failing += (failed - self.failing) / over;
    }

    fn eject(&mut self, since: Instant, now: Instant) {
        let pause = self
            .rules
            .base
            .saturating_mul(2_u32.saturating_pow(self.strikes))
            .min(self.rules.longest);
        self.strikes = self.strikes.saturating_add(1);
        self.standing = Standing::Out {
            since,
            until: now + pause,
            probing: false,
        };
    }

    /// True while it gets no requests but probes.
    pub fn is_ejected(&self) -> bool {
        matches!(self.standing, Standing::Out { .. })
    }

    /// True when a probe should be sent now. Whoever is told so sends it and reports [`success`](Self::success) or
    /// [`failure`](Self::failure); nobody else is told until that or, should the report never come, the longest time between probes has passed.
    pub fn probe_is_due(&mut self, now: Instant) -> bool {
        match self.standing {
            Standing::Out { since, until, .. } if now >= until => {
                self.standing = Standing::Out {
                    since,
                    until: now + self.rules.longest,
                    probing: true,
                };
                true
            }
            _ => false,
        }
    }

    /// How long it has been ejected.
    pub fn ejected_for(&self, now: Instant) -> Option<Duration> {
        match self.standing {
            Standing::In => None,
            Standing::Out { since, .. } => Some(now.saturating_duration_since(since)),
        }
    }
}
