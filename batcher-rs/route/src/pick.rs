//! One of several replicas.
//!
//! Two are drawn at random and the one with less to do is taken: nearly as even as asking all of them, and no herd runs to
//! the one that looked best a moment ago (Mitzenmacher 2001). Sticky keys go by rendezvous hashing: when a replica comes or goes only
//! the keys move that it gains or loses (Thaler and Ravishankar 1998).

use crate::hash::{below, mix, stable};
use crate::table::{Member, ReplicaIndex, Route};

/// What is known about the replicas at this moment.
#[derive(Clone, Copy, Debug)]
pub struct Choice<E, L> {
    /// One that has been tried and must not be taken again.
    pub excluded: Option<ReplicaIndex>,
    /// Whether a replica gets no requests at present.
    pub is_ejected: E,
    /// How much a replica has to do: requests that wait for it here plus the queue that it reported.
    pub load: L,
}

impl<E: Fn(ReplicaIndex) -> bool, L: Fn(ReplicaIndex) -> u32> Choice<E, L> {
    fn allows(&self, member: &Member) -> bool {
        self.excluded != Some(member.replica) && !(self.is_ejected)(member.replica)
    }
}

impl Route<'_> {
    /// The replicas of the version.
    pub fn replicas(&self) -> impl ExactSizeIterator<Item = ReplicaIndex> {
        self.members.iter().map(|member| member.replica)
    }

    /// The less loaded of two replicas that `random` draws; None when none is allowed.
    pub fn pick<E, L>(&self, random: u64, choice: &Choice<E, L>) -> Option<ReplicaIndex>
    where
        E: Fn(ReplicaIndex) -> bool,
        L: Fn(ReplicaIndex) -> u32,
    {
        let count = self.members.len() as u64;
        let (first, second) = two_of(random, count)?;
        let (first, second) = (&self.members[first], &self.members[second]);
        if choice.allows(first) && choice.allows(second) {
            return Some(less_loaded(first, second, choice));
        }
        let mut allowed = self.members.iter().filter(|member| choice.allows(member));
        let (first, second) = two_of(random, allowed.clone().count() as u64)?;
        let (low, high) = (first.min(second), first.max(second));
        let lower = allowed.nth(low)?;
        let higher = if high > low {
            allowed.nth(high - low - 1)?
        } else {
            lower
        };
        // In the order drawn, so that equal loads are split evenly.
        let (first, second) = if first <= second {
            (lower, higher)
        } else {
            (higher, lower)
        };
        Some(less_loaded(first, second, choice))
    }

    /// The replica for a sticky key: the same one as long as it is there and allowed, through every gateway.
    pub fn pick_sticky<E, L>(&self, key: &[u8], choice: &Choice<E, L>) -> Option<ReplicaIndex>
    where
        E: Fn(ReplicaIndex) -> bool,
        L: Fn(ReplicaIndex) -> u32,
    {
        let key = stable(key);
        let allowed = self.members.iter().filter(|member| choice.allows(member));
        allowed
            .max_by_key(|member| (mix(key ^ member.hash), member.hash))
            .map(|member| member.replica)
    }
}

fn less_loaded<E, L: Fn(ReplicaIndex) -> u32>(
    first: &Member,
    second: &Member,
    choice: &Choice<E, L>,
) -> ReplicaIndex {
    if first.replica != second.replica
        && (choice.load)(second.replica) < (choice.load)(first.replica)
    {
        second.replica
    } else {
        first.replica
    }
}

/// Two different places below `count`, or twice the same if there is only one.
fn two_of(random: u64, count: u64) -> Option<(usize, usize)> {
    if count < 2 {
        return (count == 1).then_some((0, 0));
    }
    let first = below(random, count);
    // The caller's random number is one; mixed it serves as a second.
    let second = below(mix(random ^ 0x9e37_79b9_7f4a_7c15), count - 1);
    Some((
        first as usize,
        (second + u64::from(second >= first)) as usize,
    ))
}
