//! What a batch costs at each size, learnt from the batches that ran.
//!
//! Sizes are grouped in buckets (1 to 8 singly, then four an octave). A bucket keeps a moving average of its own time per
//! row and of nothing else: no measurement moves a bucket that it does not belong to, or estimates of sizes that do not
//! run would drift with the noise of those that do. A bucket that has never run is guessed from what was measured at load
//! (or learnt for other keys), times how far the buckets that did run are from that guess. An average follows quickly while
//! its last measurements agree that it is off, or when it has not run for long, and slowly otherwise: a machine that gets
//! three times slower is known after a few batches, and a single hiccup moves little.

use std::time::{Duration, Instant};

/// Sizes within this share of the best rate count as the best.
const GOOD_ENOUGH: f64 = 0.97;
/// A larger size is no longer tried for growth after this many runs.
const TRIALS: u32 = 3;
/// One in so many batches with enough company tries another size.
const EXPLORE_EVERY: u32 = 64;
/// Sizes below this share of the best rate are tried again in only one of so many turns.
const POOR: (f64, u32) = (0.9, 8);
/// The same for the first few such batches after the curve has moved as a whole.
const EXPLORE_IN_DOUBT_EVERY: u32 = 8;
/// Other sizes that are tried after the curve has moved.
const DOUBTS: u32 = 12;
/// A deviation, as a logarithm, that means the curve has moved.
const MOVED: f64 = 0.3;
/// A bucket that hasn't run in so many batches is stale.
const STALE: u32 = 16;
/// Part of its deviation that a stale bucket is corrected by.
const STALE_GAIN: f64 = 0.7;
/// The same for a bucket whose last three measurements agree that it is off.
const MOVED_GAIN: f64 = 0.5;
/// The same otherwise, once there are enough measurements for it.
const STEADY_GAIN: f64 = 0.15;
/// A batch that takes up to so much longer than one row alone is not cut shorter for a deadline.
const HARDLY_LONGER: f64 = 1.5;
/// Largest step, as a logarithm, that a single measurement is believed to be off by.
const LARGEST_STEP: f64 = 1.4;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Nanoseconds per row; zero: not known.
    per_row: f64,
    /// Nanoseconds per row as it was guessed before the bucket ran; zero: nothing was.
    guess: f64,
    samples: u32,
    /// Value of the curve's count of samples when it ran last.
    seen: u32,
}

impl Bucket {
    fn known(&self) -> bool {
        self.per_row > 0.0
    }
}

/// Cost of batches of one key (or of all).
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    max_rows: u32,
    buckets: Vec<Bucket>,
    /// Nanoseconds per row in every bucket, gaps filled from the neighbours. Zero: nothing is known.
    filled: Vec<f64>,
    preferred: u32,
    trial: Option<u32>,
    samples: u32,
    seeded: bool,
    residuals: [f64; 3],
    spread: f64,
    measured: Option<Instant>,
    turn: u32,
    since_turn: u32,
    since_dare: u32,
    doubts: u32,
}

/// Index of the bucket that holds `rows`.
fn bucket(rows: u32) -> usize {
    let rows = rows.max(1);
    if rows <= 8 {
        return rows as usize - 1;
    }
    let below = rows - 1;
    let octave = below.ilog2();
    let quarter = (below >> (octave - 2)) & 3;
    8 + (octave as usize - 3) * 4 + quarter as usize
}

/// Largest size in a bucket.
fn largest(bucket: usize) -> u32 {
    if bucket < 8 {
        return bucket as u32 + 1;
    }
    let octave = 3 + (bucket as u32 - 8) / 4;
    let quarter = (bucket as u32 - 8) % 4;
    let size = (1_u64 << octave) + (u64::from(quarter + 1) << (octave - 2));
    u32::try_from(size).unwrap_or(u32::MAX)
}

impl Curve {
    pub(crate) fn new(max_rows: u32) -> Self {
        let mut curve = Self {
            max_rows: max_rows.max(1),
            buckets: vec![Bucket::default(); bucket(max_rows) + 1],
            filled: Vec::new(),
            preferred: 1,
            trial: None,
            samples: 0,
            seeded: false,
            residuals: [0.0; 3],
            spread: 0.0,
            measured: None,
            turn: 0,
            since_turn: 0,
            since_dare: 0,
            doubts: 0,
        };
        curve.settle();
        curve
    }

    /// The same knowledge as a guess for something else: the first measurement overrules it.
    pub(crate) fn as_prior(&self) -> Self {
        let mut prior = self.clone();
        prior.samples = 0;
        prior.measured = None;
        prior.residuals = [0.0; 3];
        for (bucket, &guess) in prior.buckets.iter_mut().zip(&self.filled) {
            *bucket = Bucket {
                per_row: if bucket.known() { guess } else { 0.0 },
                guess: if bucket.known() { guess } else { 0.0 },
                ..Bucket::default()
            };
        }
        prior.settle();
        prior
    }

    pub(crate) fn resize(&mut self, max_rows: u32) {
        self.max_rows = max_rows.max(1);
        self.buckets.resize(bucket(max_rows) + 1, Bucket::default());
        self.settle();
    }

    /// Takes in a measurement made before there was any load.
    pub(crate) fn seed(&mut self, rows: u32, took: Duration) {
        if rows == 0 || rows > self.max_rows || took.is_zero() {
            return;
        }
        let per_row = took.as_nanos() as f64 / f64::from(rows);
        let at = &mut self.buckets[bucket(rows)];
        if at.samples == 0 {
            at.guess = if at.guess > 0.0 {
                f64::midpoint(at.guess, per_row)
            } else {
                per_row
            };
            at.per_row = at.guess;
        }
        self.seeded = true;
        self.settle();
    }

    /// Takes in what a batch took.
    pub(crate) fn observe(&mut self, rows: u32, took: Duration, now: Instant) {
        let per_row = took.as_nanos().max(1) as f64 / f64::from(rows.max(1));
        let index = bucket(rows).min(self.buckets.len() - 1);
        let at = self.buckets[index];
        if at.known() {
            let off = (per_row / at.per_row)
                .ln()
                .clamp(-LARGEST_STEP, LARGEST_STEP);
            self.residuals.rotate_left(1);
            self.residuals[2] = off;
            let moved = self.agreed().abs() > MOVED;
            if moved {
                self.doubts = DOUBTS;
            }
            let mut gain = (1.0 / f64::from(at.samples + 1)).max(STEADY_GAIN);
            if moved {
                gain = gain.max(MOVED_GAIN);
            }
            // A guess weighs as much as one measurement would: the very first batch may be the hiccup.
            if at.samples == 0 || at.seen < self.samples.saturating_sub(STALE) {
                gain = STALE_GAIN;
            }
            self.buckets[index].per_row *= (gain * off).exp();
            self.spread = 0.9 * self.spread + 0.1 * off.abs();
        } else {
            self.buckets[index].per_row = per_row;
        }
        self.samples = self.samples.saturating_add(1);
        self.buckets[index].samples = at.samples.saturating_add(1);
        self.buckets[index].seen = self.samples;
        self.measured = Some(now);
        self.guess_again();
        self.settle();
    }

    /// Brings the guesses for sizes that have never run to the height of those that have.
    fn guess_again(&mut self) {
        let (mut sum, mut count) = (0.0, 0.0);
        for bucket in &self.buckets {
            if bucket.samples > 0 && bucket.guess > 0.0 {
                sum += (bucket.per_row / bucket.guess).ln();
                count += 1.0;
            }
        }
        if count > 0.0 {
            let height = (sum / count).exp();
            for bucket in &mut self.buckets {
                if bucket.samples == 0 && bucket.guess > 0.0 {
                    bucket.per_row = bucket.guess * height;
                }
            }
        }
    }

    /// The middle one of the last three deviations.
    fn agreed(&self) -> f64 {
        let [a, b, c] = self.residuals;
        a.max(b).min(a.min(b).max(c))
    }

    /// Expected time of a batch of `rows`; zero when nothing is known.
    pub(crate) fn run(&self, rows: u32) -> Duration {
        self.times(rows, 1.0)
    }

    /// [`run`](Self::run) with room for the usual deviation.
    pub(crate) fn run_at_worst(&self, rows: u32) -> Duration {
        self.times(rows, 1.0 + self.spread.min(0.5))
    }

    fn times(&self, rows: u32, factor: f64) -> Duration {
        let at = bucket(rows).min(self.filled.len() - 1);
        Duration::from_nanos((self.filled[at] * f64::from(rows.max(1)) * factor) as u64)
    }

    /// Size where batches stop growing: the preferred one, or one to be tried because it isn't known well enough yet.
    pub(crate) fn limit(&self) -> u32 {
        self.trial.unwrap_or(self.preferred)
    }

    /// True when entries may be given up because of what this curve says: enough has been measured (or seeded), the last
    /// batch took about what was expected, and it isn't long ago. Without the last condition a wrong estimate that
    /// stops everything would never be corrected; the interval bounds the time given to checking to a twentieth.
    pub(crate) fn is_trusted(&self, now: Instant) -> bool {
        let Some(measured) = self.measured else {
            return false;
        };
        let fresh = Duration::from_millis(250).max(self.run(1) * 20);
        (self.seeded || self.samples >= 8)
            && self.residuals[2].abs() < 0.3
            && now.saturating_duration_since(measured) < fresh
    }

    /// Largest size up to `limit` whose run takes no longer than `within`, or hardly longer than a single row's: where rows cost
    /// next to nothing beside the run itself, cutting a batch short saves no time and makes everybody behind it late.
    pub(crate) fn fit(&self, limit: u32, within: Duration) -> u32 {
        let within = within.max(self.run(1).mul_f64(HARDLY_LONGER));
        if self.run(limit) <= within {
            return limit;
        }
        let sizes = (0..=bucket(limit)).rev().map(|b| largest(b).min(limit));
        sizes
            .into_iter()
            .find(|&size| self.run(size) <= within)
            .unwrap_or(1)
    }

    /// True when a batch of this size hasn't run for long, so that a decision against it should be checked, and it is time to
    /// check one: else an estimate that is too high would keep itself from being corrected.
    pub(crate) fn dares(&mut self, rows: u32) -> bool {
        let at = self.buckets[bucket(rows).min(self.buckets.len() - 1)];
        if at.seen + STALE >= self.samples {
            return false;
        }
        self.since_dare += 1;
        let dares = self.since_dare >= EXPLORE_IN_DOUBT_EVERY;
        if dares {
            self.since_dare = 0;
        }
        dares
    }

    /// Size for the next batch when `waiting` rows could join it. Now and then another size than the preferred one, so
    /// that a curve that has changed is noticed.
    pub(crate) fn next_size(&mut self, waiting: u64) -> u32 {
        let preferred = self.preferred;
        if let Some(trial) = self.trial.filter(|_| waiting > u64::from(preferred)) {
            return trial;
        }
        if waiting < u64::from(preferred) || self.max_rows == 1 {
            return preferred;
        }
        self.since_turn += 1;
        let every = if self.doubts > 0 {
            EXPLORE_IN_DOUBT_EVERY
        } else {
            EXPLORE_EVERY
        };
        if self.since_turn < every {
            return preferred;
        }
        let turn = self.turn.wrapping_add(1);
        let doubtful = self.doubts > 0;
        let at = bucket(preferred);
        let other = match turn % 4 {
            0 => largest(at + 1),
            1 => preferred / 2,
            2 => preferred.saturating_mul(2),
            _ => at.checked_sub(1).map_or(1, largest),
        };
        let other = other.clamp(1, self.max_rows);
        if waiting < u64::from(other) {
            return preferred;
        }
        self.turn = turn;
        self.since_turn = 0;
        self.doubts = self.doubts.saturating_sub(1);
        let known = self.buckets[bucket(other)];
        let rate = self.buckets[at].per_row / known.per_row.max(f64::MIN_POSITIVE);
        let poor = !doubtful && known.samples >= TRIALS && rate < POOR.0;
        if poor && !(turn / 4).is_multiple_of(POOR.1) {
            preferred
        } else {
            other
        }
    }

    /// Size that the next batch may reach, for estimates. While the preferred one is in doubt that is a larger one too:
    /// who is refused because batches don't pay can't show that they do.
    pub(crate) fn reach(&self) -> u32 {
        let doubted = if self.doubts > 0 {
            self.preferred.saturating_mul(2)
        } else {
            self.preferred
        };
        self.trial.unwrap_or(doubted).min(self.max_rows)
    }

    /// Works out what depends on the measurements.
    fn settle(&mut self) {
        self.fill_gaps();
        let known = || (0..self.buckets.len()).filter(|&b| self.buckets[b].known());
        let best = known()
            .map(|b| self.buckets[b].per_row)
            .fold(f64::INFINITY, f64::min);
        let chosen = known().find(|&b| self.buckets[b].per_row * GOOD_ENOUGH <= best);
        let Some(chosen) = chosen else {
            self.preferred = 1;
            self.trial = None;
            return;
        };
        self.preferred = largest(chosen).min(self.max_rows);
        let next = self.preferred.saturating_mul(2).min(self.max_rows);
        let ahead = self.buckets[bucket(next)];
        // Between known sizes a try must look promising; beyond them it always does.
        let promising = self.filled[bucket(next)] <= GOOD_ENOUGH * self.buckets[chosen].per_row;
        let untested = if ahead.known() {
            (1..TRIALS).contains(&ahead.samples)
        } else {
            promising
        };
        self.trial = (next > self.preferred && untested).then_some(next);
    }

    fn fill_gaps(&mut self) {
        let mut filled = std::mem::take(&mut self.filled);
        filled.clear();
        filled.resize(self.buckets.len(), 0.0);
        let mut last: Option<usize> = None;
        for index in 0..self.buckets.len() {
            if !self.buckets[index].known() {
                continue;
            }
            let here = self.buckets[index].per_row;
            filled[index] = here;
            let (to, total) = (f64::from(largest(index)), here * f64::from(largest(index)));
            let start = last.map_or(0, |l| l + 1);
            for (gap, cost) in filled[start..index].iter_mut().enumerate() {
                let size = f64::from(largest(start + gap));
                let time = match last {
                    // Between two known sizes: a straight line.
                    Some(l) => {
                        let from = f64::from(largest(l));
                        let base = self.buckets[l].per_row * from;
                        base + (total - base) * (size - from) / (to - from)
                    }
                    // Below the smallest known one: half of its time is taken to be fixed.
                    None => total * (0.5 + 0.5 * size / to),
                };
                *cost = time.max(1.0) / size;
            }
            last = Some(index);
        }
        // Beyond the largest known one: the next doubling is taken to be free, so that it is tried, and the rest in proportion.
        if let Some(last) = last {
            let size = f64::from(largest(last));
            let total = self.buckets[last].per_row * size;
            for (gap, cost) in filled[last + 1..].iter_mut().enumerate() {
                let larger = f64::from(largest(last + 1 + gap));
                *cost = total / larger * (larger / (2.0 * size)).max(1.0);
            }
        }
        self.filled = filled;
    }
}
