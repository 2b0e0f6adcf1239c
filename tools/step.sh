# Sourced by the scripts beside it: one legible line for each thing done, the whole output only when it fails.

# Where rustup puts cargo; shells that were not restarted since lack it.
command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

say() { printf '%s\n' "$*" >&2; }

# stop MESSAGE…: one sentence of what is wrong and what to do, then the end.
stop() {
    say "headrace: $*"
    exit 1
}

# step TITLE COMMAND…: runs the command with its output in build/logs, and prints the title with the time it took.
step() {
    local title=$1 log began took
    shift
    mkdir -p build/logs
    log="build/logs/$(tr -cs 'a-z0-9\n' '-' <<<"${title,,}").log"
    began=$(date +%s%N)
    if "$@" >"$log" 2>&1 </dev/null; then
        took=$(($(date +%s%N) - began))
        printf '  %-44s %4d.%d s\n' "$title" $((took / 1000000000)) $((took / 100000000 % 10)) >&2
    else
        local status=$?
        printf '  %-44s failed\n\n' "$title" >&2
        tail -n "${STEP_LINES:-60}" "$log" >&2
        say ""
        say "The whole output is in $log."
        return $status
    fi
}

# unchanged NAME FINGERPRINT: whether `mark` was called with both after the thing was last done.
unchanged() { [ "$(cat ".venv/stamps/$1" 2>/dev/null)" = "$2" ]; }
mark() { mkdir -p .venv/stamps && printf '%s\n' "$2" >".venv/stamps/$1"; }

# fingerprint PATH…: changes when any file under the paths changes, is added, moved or removed.
fingerprint() {
    find "$@" -type d \( -name target -o -name __pycache__ \) -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 cksum | cksum
}
