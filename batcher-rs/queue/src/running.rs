//! The batches that run now, and how long they still may take.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
struct Run {
    id: u64,
    started: Instant,
    ends: Instant,
    requests: usize,
    rows: u32,
}

/// Running batches in the order in which they are expected to end.
#[derive(Debug, Default)]
pub(crate) struct Running {
    runs: Vec<Run>,
    pub(crate) requests: usize,
    pub(crate) rows: u64,
}

impl Running {
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn start(
        &mut self,
        id: u64,
        now: Instant,
        expected: Duration,
        requests: usize,
        rows: u32,
    ) {
        let ends = now + expected;
        let at = self.runs.partition_point(|run| run.ends <= ends);
        self.runs.insert(
            at,
            Run {
                id,
                started: now,
                ends,
                requests,
                rows,
            },
        );
        self.requests += requests;
        self.rows += u64::from(rows);
    }

    /// Forgets a batch. False when it isn't known.
    pub(crate) fn finish(&mut self, id: u64) -> bool {
        let Some(at) = self.runs.iter().position(|run| run.id == id) else {
            return false;
        };
        let run = self.runs.remove(at);
        self.requests -= run.requests;
        self.rows -= u64::from(run.rows);
        true
    }

    /// Time until the instance that takes the batch after `ahead` others is free, where a batch takes `each`.
    pub(crate) fn wait(
        &self,
        ahead: u64,
        instances: u32,
        each: Duration,
        now: Instant,
    ) -> Duration {
        let instances = u64::from(instances.max(1)).max(self.runs.len() as u64);
        let rounds = u32::try_from(ahead / instances).unwrap_or(u32::MAX);
        let idle = instances - self.runs.len() as u64;
        let turn = ahead % instances;
        let first = match turn.checked_sub(idle) {
            None => Duration::ZERO,
            Some(busy) => self.runs[busy as usize].left(now),
        };
        first.saturating_add(each.saturating_mul(rounds))
    }
}

impl Run {
    /// Expected time to the end. A run that is overdue by some time is expected to take as much again: the longer it
    /// has overrun, the less its estimate says.
    fn left(&self, now: Instant) -> Duration {
        if now <= self.ends {
            return self.ends - now;
        }
        (now - self.ends).min(now.saturating_duration_since(self.started))
    }
}
