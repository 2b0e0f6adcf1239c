#!/usr/bin/env bash
# The checks of style and types, all of them even if one fails. `make lint`; a part of `make test`.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/step.sh
failed=()

check() {  # check TITLE COMMAND…
    step "$@" || failed+=("$1")
}

buf() (
    cd protos && ../.venv/bin/buf lint && ../.venv/bin/buf format --diff --exit-code
)

check "Python: style (ruff)" .venv/bin/ruff check .
check "Python: format (ruff)" .venv/bin/ruff format --check --diff .
check "Python: types (mypy)" .venv/bin/mypy
check "Python: direction of imports" .venv/bin/lint-imports --no-cache
check "Extension: its stub (stubtest)" env MYPYPATH=batcher-rs/python \
    .venv/bin/stubtest headrace_batcher --allowlist tools/stubtest-allowlist.txt --ignore-unused-allowlist
check "Protocol: style (buf)" buf
check "Protocol: generated stubs" .venv/bin/python protos/generate.py --check
check "Rust: format" cargo fmt --all --check
check "Rust: clippy" cargo clippy --workspace --all-targets --locked --quiet -- --deny warnings

if [ ${#failed[@]} -gt 0 ]; then
    say "Lint failed: $(printf '%s; ' "${failed[@]}")"
    exit 1
fi
