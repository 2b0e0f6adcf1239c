//! Placeholder replaced before the benchmark's commit.
fn main() {}
