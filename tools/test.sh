#!/usr/bin/env bash
# Everything that CI checks, in the order of what fails fastest. Every part runs; the summary at the end names what failed.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/step.sh
failed=()

part() {  # part TITLE COMMAND…: its output is shown as it comes
    local title=$1 began=$SECONDS
    shift
    say "" && say "── $title"
    if "$@"; then
        summary+=("$(printf '  %-24s %5d s' "$title" $((SECONDS - began)))")
    else
        summary+=("$(printf '  %-24s %5d s  failed' "$title" $((SECONDS - began)))")
        failed+=("$title")
    fi
}

rust_tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --locked --cargo-quiet && cargo test --workspace --locked --quiet --doc
    else
        cargo test --workspace --locked --quiet
    fi
}

summary=()
part "Lint" tools/lint.sh
part "Rust tests" rust_tests
part "Interop environments" tools/interop.sh
part "Python tests" .venv/bin/python -m pytest -q -m "not slow"  # make soak runs those

say "" && printf '%s\n' "${summary[@]}"
if [ ${#failed[@]} -gt 0 ]; then
    say "FAILED: $(printf '%s; ' "${failed[@]}")"
    exit 1
fi
say "All checks passed."
