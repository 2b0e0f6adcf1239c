#!/usr/bin/env bash
# Fuzzes every target of batcher-rs/fuzz for some seconds each: tools/fuzz.sh [SECONDS] [TARGET…].
# What crashes a target is kept in batcher-rs/fuzz/artifacts; make a test of it.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/step.sh

cargo fuzz --version >/dev/null 2>&1 || stop "fuzzing needs cargo-fuzz; run: cargo install cargo-fuzz."
cargo +nightly --version >/dev/null 2>&1 || stop "fuzzing needs a nightly compiler; run: rustup toolchain install nightly."

seconds=${1:-60}
shift || true
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(cargo fuzz list --fuzz-dir batcher-rs/fuzz)
for target in "${targets[@]}"; do
    step "Build fuzz target $target" cargo +nightly fuzz build --fuzz-dir batcher-rs/fuzz "$target"
    # What it finds goes to the first folder; the seeds are only read.
    corpora=("batcher-rs/fuzz/corpus/$target")
    mkdir -p "${corpora[0]}"
    [ ! -d "batcher-rs/fuzz/seeds/$target" ] || corpora+=("batcher-rs/fuzz/seeds/$target")
    step "Fuzz $target for $seconds s" cargo +nightly fuzz run --fuzz-dir batcher-rs/fuzz "$target" "${corpora[@]}" \
        -- -max_total_time="$seconds" -rss_limit_mb=2048
done
