//! Cost curves by key: a bounded number of them, and one over all keys for the rest.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use crate::curve::Curve;

/// Keys with a curve of their own. Keys come from callers' shapes, so there may be any number of them.
const TRACKED: usize = 64;

#[derive(Debug)]
struct Tracked<K> {
    key: K,
    curve: Curve,
    used: u64,
}

/// What batches cost.
#[derive(Debug)]
pub(crate) struct Costs<K> {
    all: Curve,
    tracked: Vec<Tracked<K>>,
    index: HashMap<K, usize, RandomState>,
    clock: u64,
}

impl<K: Clone + Eq + Hash> Costs<K> {
    pub(crate) fn new(max_rows: u32) -> Self {
        Self {
            all: Curve::new(max_rows),
            tracked: Vec::new(),
            index: HashMap::default(),
            clock: 0,
        }
    }

    pub(crate) fn resize(&mut self, max_rows: u32) {
        self.all.resize(max_rows);
        for tracked in &mut self.tracked {
            tracked.curve.resize(max_rows);
        }
    }

    pub(crate) fn seed(&mut self, rows: u32, took: Duration) {
        self.all.seed(rows, took);
    }

    fn place(&self, key: &K) -> Option<usize> {
        // Most models have one key.
        match self.tracked.first() {
            Some(first) if first.key == *key => Some(0),
            _ => self.index.get(key).copied(),
        }
    }

    pub(crate) fn curve(&self, key: &K) -> &Curve {
        self.place(key)
            .map_or(&self.all, |at| &self.tracked[at].curve)
    }

    pub(crate) fn curve_mut(&mut self, key: &K) -> &mut Curve {
        match self.place(key) {
            Some(at) => &mut self.tracked[at].curve,
            None => &mut self.all,
        }
    }

    /// The curve over all keys.
    pub(crate) fn overall(&self) -> &Curve {
        &self.all
    }

    pub(crate) fn observe(&mut self, key: &K, rows: u32, took: Duration, now: Instant) {
        self.clock += 1;
        let at = self.place(key).unwrap_or_else(|| self.track(key));
        self.tracked[at].used = self.clock;
        self.tracked[at].curve.observe(rows, took, now);
        self.all.observe(rows, took, now);
    }

    /// Gives a key its own curve, if need be in place of the one that ran longest ago.
    fn track(&mut self, key: &K) -> usize {
        let fresh = Tracked {
            key: key.clone(),
            curve: self.all.as_prior(),
            used: self.clock,
        };
        if self.tracked.len() < TRACKED {
            self.tracked.push(fresh);
            self.index.insert(key.clone(), self.tracked.len() - 1);
            return self.tracked.len() - 1;
        }
        let oldest = (0..self.tracked.len())
            .min_by_key(|&at| self.tracked[at].used)
            .expect("TRACKED isn't zero");
        let gone = std::mem::replace(&mut self.tracked[oldest], fresh);
        self.index.remove(&gone.key);
        self.index.insert(key.clone(), oldest);
        oldest
    }
}
