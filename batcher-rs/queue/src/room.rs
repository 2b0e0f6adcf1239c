//! Where entries wait, and who is next.
//!
//! Entries of one priority, flow and key form a sub-queue. Flows are ranked within their priority, and sub-queues within
//! their priority and key, so that finding the next key costs O(log flows) and filling a batch of one flow O(1) an entry.
//! An entry that leaves from the middle (cancelled, overdue) leaves a hole behind. Sub-queues, flows and keys that have run empty are
//! kept for the next entry and swept now and then, so that the steady state allocates nothing.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Instant;

use foldhash::fast::RandomState;

use crate::deadlines::{Deadlines, Place};
use crate::entry::{Entry, Flow, Live};
use crate::fair::{FlowState, Level, Ranking, Stretch};

/// What waits, altogether. Exact at all times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) requests: usize,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Slot<T, K> {
    seq: u64,
    entry: Option<Entry<T, K>>,
}

#[derive(Debug)]
pub(crate) struct Sub<T, K> {
    pub(crate) level: u32,
    pub(crate) flow: u32,
    pub(crate) key: u32,
    queue: VecDeque<Slot<T, K>>,
    pub(crate) live: usize,
    ranked: bool,
}

impl<T, K> Sub<T, K> {
    /// The oldest entry and its number.
    pub(crate) fn front(&self) -> Option<(u64, &Entry<T, K>)> {
        self.queue
            .iter()
            .find_map(|slot| slot.entry.as_ref().map(|entry| (slot.seq, entry)))
    }

    fn drop_holes(&mut self) {
        while self.queue.front().is_some_and(|slot| slot.entry.is_none()) {
            self.queue.pop_front();
        }
        if self.queue.len() > 2 * self.live + 32 {
            self.queue.retain(|slot| slot.entry.is_some());
        }
    }

    fn find(&self, seq: u64) -> Option<usize> {
        if self.queue.front().is_none_or(|slot| slot.seq > seq) {
            return None;
        }
        let at = self
            .queue
            .binary_search_by_key(&seq, |slot| slot.seq)
            .ok()?;
        self.queue[at].entry.is_some().then_some(at)
    }

    fn holds(&self, stretch: &Stretch) -> bool {
        let from = self.queue.partition_point(|slot| slot.seq < stretch.first);
        let within = self
            .queue
            .range(from..)
            .take_while(|slot| slot.seq <= stretch.last);
        within.into_iter().any(|slot| slot.entry.is_some())
    }
}

#[derive(Debug)]
struct KeyState<K> {
    key: Option<K>,
    entries: usize,
    rows: u64,
    /// Sub-queues with this key, by level.
    lanes: Vec<Ranking>,
}

/// Where the last entry went; the next one mostly goes there too.
#[derive(Clone, Copy, Debug)]
struct Last {
    priority: u32,
    flow: u32,
    sub: u32,
}

#[derive(Debug)]
pub(crate) struct Room<T, K> {
    subs: Vec<Sub<T, K>>,
    spare_subs: Vec<u32>,
    sub_at: HashMap<(u32, u32), u32, RandomState>,
    flows: Vec<FlowState>,
    spare_flows: Vec<u32>,
    flow_at: HashMap<(u32, u32), u32, RandomState>,
    keys: Vec<KeyState<K>>,
    spare_keys: Vec<u32>,
    key_at: HashMap<K, u32, RandomState>,
    live_keys: usize,
    levels: Vec<Level>,
    /// Levels, the most urgent first.
    urgency: Vec<u32>,
    last: Option<Last>,
    sweep_at: usize,
    next_seq: u64,
    waiting: Waiting,
    deadlines: Deadlines,
}

impl<T, K: Clone + Eq + Hash> Room<T, K> {
    pub(crate) fn new() -> Self {
        Self {
            subs: Vec::new(),
            spare_subs: Vec::new(),
            sub_at: HashMap::default(),
            flows: Vec::new(),
            spare_flows: Vec::new(),
            flow_at: HashMap::default(),
            keys: Vec::new(),
            spare_keys: Vec::new(),
            key_at: HashMap::default(),
            live_keys: 0,
            levels: Vec::new(),
            urgency: Vec::new(),
            last: None,
            sweep_at: 64,
            next_seq: 0,
            waiting: Waiting::default(),
            deadlines: Deadlines::default(),
        }
    }

    pub(crate) fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// Keys that have entries waiting.
    pub(crate) fn live_keys(&self) -> usize {
        self.live_keys
    }

    /// Rows of this key that wait, at any priority.
    pub(crate) fn rows_of(&self, key: u32) -> u64 {
        self.keys[key as usize].rows
    }

    pub(crate) fn key(&self, key: u32) -> &K {
        self.keys[key as usize]
            .key
            .as_ref()
            .expect("a key with entries has its value")
    }

    pub(crate) fn subs(&self) -> impl Iterator<Item = &Sub<T, K>> {
        self.subs.iter().filter(|sub| sub.live > 0)
    }

    pub(crate) fn priority_of(&self, sub: &Sub<T, K>) -> u32 {
        self.levels[sub.level as usize].priority
    }

    /// Requests and rows that go before a new entry: all of the more urgent priorities, and of its own what a flow with
    /// this backlog and weight has to let pass.
    pub(crate) fn ahead(&self, priority: u32, flow: Option<(Flow, u32)>) -> (u64, u64) {
        let (mut requests, mut rows) = (0_u64, 0_u64);
        for level in &self.levels {
            if level.entries == 0 || level.priority > priority {
                continue;
            }
            let mut share = 1.0;
            if let Some((flow, adds)) = flow.filter(|_| level.priority == priority) {
                share = self.share_ahead(level, flow, adds);
            }
            requests += (level.entries as f64 * share) as u64;
            rows += (level.rows as f64 * share) as u64;
        }
        (requests, rows)
    }

    /// Part of a level's rows that go before `adds` rows of this flow.
    fn share_ahead(&self, level: &Level, flow: Flow, adds: u32) -> f64 {
        let weight = u64::from(flow.weight.max(1));
        let alone = level.weights == weight;
        if alone
            && self
                .last
                .is_some_and(|last| last.flow == flow.id && last.priority == level.priority)
        {
            return 1.0;
        }
        let at = self
            .urgency
            .binary_search_by_key(&level.priority, |&at| self.levels[at as usize].priority);
        let known = at
            .ok()
            .and_then(|at| self.flow_at.get(&(self.urgency[at], flow.id)));
        let known = known
            .map(|&at| &self.flows[at as usize])
            .filter(|flow| flow.entries > 0);
        let weights = if known.is_some() {
            level.weights
        } else {
            level.weights + weight
        };
        let turns = known.map_or(0, |flow| flow.rows) + u64::from(adds);
        (turns as f64 * weights as f64 / weight as f64 / level.rows.max(1) as f64).min(1.0)
    }

    pub(crate) fn push(&mut self, entry: Entry<T, K>) {
        let at = self.locate(&entry);
        let sub = &mut self.subs[at as usize];
        let flow = &mut self.flows[sub.flow as usize];
        let level = &mut self.levels[sub.level as usize];
        let key = &mut self.keys[sub.key as usize];
        let seq = self.next_seq;
        self.next_seq += 1;
        let (rows, weight) = (u64::from(entry.rows), entry.flow.weight.max(1));

        if flow.entries == 0 {
            level.wake(flow, weight);
        } else if flow.weight != weight {
            level.weights = level.weights - u64::from(flow.weight) + u64::from(weight);
            flow.weight = weight;
        }
        flow.entries += 1;
        flow.rows += rows;
        level.entries += 1;
        level.rows += rows;
        self.live_keys += usize::from(key.entries == 0);
        key.entries += 1;
        key.rows += rows;
        self.waiting.requests += 1;
        self.waiting.rows += rows;
        self.waiting.bytes += entry.bytes;

        match flow.order.back_mut() {
            Some(stretch) if stretch.sub == at => stretch.last = seq,
            _ => flow.order.push_back(Stretch {
                sub: at,
                first: seq,
                last: seq,
            }),
        }
        if !flow.ranked {
            flow.ranked = true;
            level.flows.add(flow.tag, seq, sub.flow);
        }
        if !sub.ranked {
            sub.ranked = true;
            key.lanes[sub.level as usize].add(flow.tag, seq, at);
        }
        if let Some(deadline) = entry.deadline {
            self.deadlines.push(deadline, (seq, at));
        }
        sub.live += 1;
        sub.queue.push_back(Slot {
            seq,
            entry: Some(entry),
        });

        if flow.order.len() > 2 * flow.entries + 16 {
            let subs = &self.subs;
            flow.order
                .retain(|stretch| subs[stretch.sub as usize].holds(stretch));
        }
        if self.deadlines.is_stale(self.waiting.requests) {
            let subs = &self.subs;
            self.deadlines
                .retain(|(seq, sub)| subs[sub as usize].find(seq).is_some());
        }
    }

    /// The key that runs next: the most urgent priority, its flow that is furthest behind, that flow's oldest entry.
    pub(crate) fn pick(&mut self) -> Option<u32> {
        let Self {
            subs,
            flows,
            levels,
            urgency,
            ..
        } = self;
        let rank = urgency
            .iter()
            .position(|&at| levels[at as usize].entries > 0)?;
        let level = &mut levels[urgency[rank] as usize];
        let mut idle = Vec::new();
        let first = level.flows.first(
            |at| {
                let flow = &flows[at as usize];
                let seq = flow.order.front().map_or(0, |stretch| stretch.first);
                (flow.entries > 0).then_some((flow.tag, seq))
            },
            |at| idle.push(at),
        );
        for at in idle {
            flows[at as usize].ranked = false;
        }
        let flow =
            &mut flows[first.expect("a level with entries has a flow with entries") as usize];
        loop {
            let stretch = *flow
                .order
                .front()
                .expect("a flow with entries has them in its order");
            let sub = &mut subs[stretch.sub as usize];
            sub.drop_holes();
            if sub
                .queue
                .front()
                .is_some_and(|slot| slot.seq <= stretch.last)
            {
                return Some(sub.key);
            }
            flow.order.pop_front();
        }
    }

    /// Number of priorities; places in the order of urgency count from 0.
    pub(crate) fn ranks(&self) -> usize {
        self.urgency.len()
    }

    /// Moves the virtual time on to that of the flow that a batch is formed for.
    pub(crate) fn serve(&mut self, sub: u32) {
        let sub = &self.subs[sub as usize];
        let level = &mut self.levels[sub.level as usize];
        level.time = level.time.max(self.flows[sub.flow as usize].tag);
    }

    /// The sub-queue whose entry with this key is next at this place in the order of urgency, and that entry.
    pub(crate) fn next_of(&mut self, rank: usize, key: u32) -> Option<(u32, &Entry<T, K>)> {
        let Self {
            subs,
            flows,
            keys,
            urgency,
            ..
        } = self;
        let lane = keys[key as usize].lanes.get_mut(urgency[rank] as usize)?;
        let mut idle = Vec::new();
        let first = lane.first(
            |at| {
                let sub = &subs[at as usize];
                let seq = sub.queue.front().map_or(0, |slot| slot.seq);
                (sub.live > 0).then_some((flows[sub.flow as usize].tag, seq))
            },
            |at| idle.push(at),
        );
        for at in idle {
            subs[at as usize].ranked = false;
        }
        let at = first?;
        let sub = &mut subs[at as usize];
        sub.drop_holes();
        let entry = sub.queue.front().and_then(|slot| slot.entry.as_ref());
        Some((
            at,
            entry.expect("a sub-queue with live entries has one in front"),
        ))
    }

    /// Takes the first entry of a sub-queue. `billed`: its flow pays for it.
    pub(crate) fn take(&mut self, sub: u32, billed: bool) -> Entry<T, K> {
        let state = &mut self.subs[sub as usize];
        let entry = state
            .queue
            .pop_front()
            .and_then(|slot| slot.entry)
            .expect("next_of found an entry in front");
        if billed {
            let flow = &mut self.flows[state.flow as usize];
            self.levels[state.level as usize].bill(flow, entry.rows, entry.flow.weight);
        }
        self.left(sub, &entry);
        entry
    }

    /// Takes an entry from anywhere, if it is still there.
    fn remove(&mut self, (seq, sub): Place) -> Option<Entry<T, K>> {
        let state = &mut self.subs[sub as usize];
        let at = state.find(seq)?;
        let entry = state.queue[at].entry.take()?;
        self.left(sub, &entry);
        self.subs[sub as usize].drop_holes();
        Some(entry)
    }

    /// Keeps the books when an entry has left.
    fn left(&mut self, sub: u32, entry: &Entry<T, K>) {
        let sub = &mut self.subs[sub as usize];
        let flow = &mut self.flows[sub.flow as usize];
        let level = &mut self.levels[sub.level as usize];
        let key = &mut self.keys[sub.key as usize];
        let rows = u64::from(entry.rows);
        sub.live -= 1;
        flow.entries -= 1;
        flow.rows -= rows;
        level.entries -= 1;
        level.rows -= rows;
        key.entries -= 1;
        key.rows -= rows;
        self.waiting.requests -= 1;
        self.waiting.rows -= rows;
        self.waiting.bytes -= entry.bytes;
        if flow.entries == 0 {
            level.weights -= u64::from(flow.weight);
            flow.order.clear();
        }
        if level.entries == 0 {
            level.time = level.horizon;
        }
        self.live_keys -= usize::from(key.entries == 0);
        if self.waiting.requests == 0 {
            self.deadlines.clear();
        }
    }

    /// Takes out the entries whose deadline is not after `now`.
    pub(crate) fn take_overdue(&mut self, now: Instant, into: &mut Vec<Entry<T, K>>) {
        while let Some(place) = self.deadlines.pop_due(now) {
            into.extend(self.remove(place));
        }
    }

    /// The earliest deadline among the queued entries, perhaps of one that has left since.
    pub(crate) fn earliest_deadline(&self) -> Option<Instant> {
        self.deadlines.earliest().map(|(at, _)| at)
    }

    /// The entry with the earliest deadline: that deadline, its arrival and its key.
    pub(crate) fn most_pressed(&mut self) -> Option<(Instant, Instant, u32)> {
        loop {
            let (deadline, (seq, sub)) = self.deadlines.earliest()?;
            let state = &self.subs[sub as usize];
            if let Some(entry) = state
                .find(seq)
                .and_then(|at| state.queue[at].entry.as_ref())
            {
                return Some((deadline, entry.arrived, state.key));
            }
            self.deadlines.pop();
        }
    }

    /// Takes out the entries for which `unwanted` holds.
    pub(crate) fn take_if(
        &mut self,
        unwanted: impl Fn(&Entry<T, K>) -> bool,
        into: &mut Vec<Entry<T, K>>,
    ) {
        let before = into.len();
        for sub in 0..self.subs.len() as u32 {
            if self.subs[sub as usize].live == 0 {
                continue;
            }
            for at in 0..self.subs[sub as usize].queue.len() {
                let slot = &mut self.subs[sub as usize].queue[at];
                let Some(entry) = slot.entry.take_if(|entry| unwanted(entry)) else {
                    continue;
                };
                self.left(sub, &entry);
                into.push(entry);
            }
            if into.len() > before {
                self.subs[sub as usize].drop_holes();
            }
        }
    }

    /// Takes out everything, in order of arrival.
    pub(crate) fn take_all(&mut self, into: &mut Vec<Entry<T, K>>) {
        let mut all = Vec::with_capacity(self.waiting.requests);
        for sub in 0..self.subs.len() as u32 {
            while let Some(slot) = self.subs[sub as usize].queue.pop_front() {
                if let Some(entry) = slot.entry {
                    self.left(sub, &entry);
                    all.push((slot.seq, entry));
                }
            }
        }
        all.sort_unstable_by_key(|&(seq, _)| seq);
        into.extend(all.into_iter().map(|(_, entry)| entry));
    }

    /// The sub-queue for an entry, made if need be.
    fn locate(&mut self, entry: &Entry<T, K>) -> u32 {
        if let Some(last) = self.last
            && last.priority == entry.priority
            && last.flow == entry.flow.id
            && self.keys[self.subs[last.sub as usize].key as usize]
                .key
                .as_ref()
                == Some(&entry.key)
        {
            return last.sub;
        }
        if self.subs.len() - self.spare_subs.len() >= self.sweep_at {
            self.sweep();
        }
        let level = self.level(entry.priority);
        let flow = self.flow(level, entry.flow.id);
        let key = self.key_index(&entry.key);
        let sub = match self.sub_at.get(&(flow, key)) {
            Some(&sub) => sub,
            None => self.add_sub(level, flow, key),
        };
        self.last = Some(Last {
            priority: entry.priority,
            flow: entry.flow.id,
            sub,
        });
        sub
    }

    fn level(&mut self, priority: u32) -> u32 {
        let at = self
            .urgency
            .binary_search_by_key(&priority, |&at| self.levels[at as usize].priority);
        match at {
            Ok(at) => self.urgency[at],
            Err(at) => {
                self.levels.push(Level {
                    priority,
                    ..Level::default()
                });
                let level = self.levels.len() as u32 - 1;
                self.urgency.insert(at, level);
                level
            }
        }
    }

    fn flow(&mut self, level: u32, id: u32) -> u32 {
        if let Some(&at) = self.flow_at.get(&(level, id)) {
            return at;
        }
        let at = self.spare_flows.pop().unwrap_or_else(|| {
            self.flows.push(FlowState::default());
            self.flows.len() as u32 - 1
        });
        let flow = &mut self.flows[at as usize];
        (flow.id, flow.level, flow.tag) = (id, level, 0);
        self.flow_at.insert((level, id), at);
        at
    }

    fn key_index(&mut self, key: &K) -> u32 {
        if let Some(&at) = self.key_at.get(key) {
            return at;
        }
        let at = self.spare_keys.pop().unwrap_or_else(|| {
            self.keys.push(KeyState {
                key: None,
                entries: 0,
                rows: 0,
                lanes: Vec::new(),
            });
            self.keys.len() as u32 - 1
        });
        self.keys[at as usize].key = Some(key.clone());
        self.key_at.insert(key.clone(), at);
        at
    }

    fn add_sub(&mut self, level: u32, flow: u32, key: u32) -> u32 {
        let at = self.spare_subs.pop().unwrap_or_else(|| {
            let queue = VecDeque::new();
            self.subs.push(Sub {
                level,
                flow,
                key,
                queue,
                live: 0,
                ranked: false,
            });
            self.subs.len() as u32 - 1
        });
        let sub = &mut self.subs[at as usize];
        (sub.level, sub.flow, sub.key) = (level, flow, key);
        let lanes = &mut self.keys[key as usize].lanes;
        if lanes.len() <= level as usize {
            lanes.resize_with(level as usize + 1, Ranking::default);
        }
        self.sub_at.insert((flow, key), at);
        at
    }

    /// Forgets sub-queues, keys and flows that have nothing waiting. Flows in debt are kept until it is paid.
    fn sweep(&mut self) {
        let Self {
            subs,
            flows,
            keys,
            levels,
            ..
        } = self;
        for key in keys.iter_mut() {
            for lane in &mut key.lanes {
                lane.retain(|at| {
                    subs[at as usize].ranked = subs[at as usize].live > 0;
                    subs[at as usize].ranked
                });
            }
        }
        for level in levels.iter_mut() {
            level.flows.retain(|at| {
                flows[at as usize].ranked = flows[at as usize].entries > 0;
                flows[at as usize].ranked
            });
        }
        let spare = &mut self.spare_subs;
        self.sub_at.retain(|_, &mut at| {
            let sub = &mut subs[at as usize];
            if sub.live == 0 {
                sub.queue = VecDeque::new();
                spare.push(at);
            }
            sub.live > 0
        });
        let spare = &mut self.spare_flows;
        self.flow_at.retain(|_, &mut at| {
            let flow = &flows[at as usize];
            let kept = flow.entries > 0 || flow.tag > levels[flow.level as usize].time;
            if !kept {
                spare.push(at);
            }
            kept
        });
        let spare = &mut self.spare_keys;
        self.key_at.retain(|_, &mut at| {
            let key = &mut keys[at as usize];
            if key.entries == 0 {
                key.key = None;
                spare.push(at);
            }
            key.entries > 0
        });
        self.last = None;
        self.sweep_at = 64.max(2 * self.sub_at.len());
    }
}

impl<T: Live, K: Clone + Eq + Hash> Room<T, K> {
    /// Takes out the entries that nobody waits for.
    pub(crate) fn take_cancelled(&mut self, into: &mut Vec<Entry<T, K>>) {
        self.take_if(|entry| entry.payload.is_cancelled(), into);
    }
}
