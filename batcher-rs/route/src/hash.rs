//! Hashes that are the same in every gateway, so that a sticky key goes to the same place through any of them.

/// FNV-1a, finished with the mixer of `SplitMix64`.
pub(crate) fn stable(bytes: &[u8]) -> u64 {
    let folded = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(folded)
}

/// The mixer of `SplitMix64`: each bit of the result depends on each bit of `value`.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Maps a draw evenly to `0..bound`.
pub(crate) fn below(draw: u64, bound: u64) -> u64 {
    ((u128::from(draw) * u128::from(bound)) >> 64) as u64
}

/// The draw to give to [`Table::resolve`](crate::Table::resolve) for a sticky key in place of a random number: a key then
/// stays on one version as long as the split stays.
pub fn sticky_draw(key: &[u8]) -> u64 {
    // Not the hash that ranks replicas: a version's keys would all share a part of its range.
    mix(stable(key) ^ 0x5bd1_e995_7b7c_1d4d)
}
