#!/usr/bin/env bash
# Prepares this checkout: `tools/setup.sh local` for serving, `tools/setup.sh dev` for working on it as well.
#
# Checks what the machine must bring, makes `.venv`, installs what is locked, builds the Rust extension in release and
# the example models. Whatever is there already and unchanged is left alone, so that a second call takes a moment.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/step.sh
set_of_packages=${1:-local}

usable_python() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null
}

missing=()

# Sets `python` to one that can make the environment.
find_python() {
    local candidates=(python3.13 python3.12 python3.11 python3.14 python3 python)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for python in "${candidates[@]}"; do
        usable_python "$python" && return
    done
    for python in python3.14 python3.13 python3.12 python3.11 python3; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            missing+=("the venv module of $python (Debian, Ubuntu: apt install python3-venv)")
            return
        fi
    done
    missing+=("Python 3.11 to 3.14 (Debian, Ubuntu: apt install python3 python3-venv; one elsewhere: make PYTHON=/path/to/python3)")
}

check_rust() {
    local version minor
    if ! version=$(cargo --version 2>/dev/null); then
        missing+=("Rust 1.88 or newer (from https://rustup.rs)")
        return
    fi
    version=${version#cargo }
    minor=${version#*.}
    minor=${minor%%.*}
    if [ "${version%%.*}" -eq 1 ] && [ "$minor" -lt 88 ]; then
        missing+=("Rust 1.88 or newer, as ${version%% *} is too old (rustup update stable)")
    fi
    command -v cc >/dev/null || missing+=("a C compiler (Debian, Ubuntu: apt install build-essential)")
}

check_machine() {
    usable_python .venv/bin/python || find_python
    check_rust
    [ ${#missing[@]} -eq 0 ] && return
    say "headrace: this machine lacks"
    printf '  - %s\n' "${missing[@]}" >&2
    exit 1
}

make_environment() {
    usable_python .venv/bin/python || step "Make .venv with $("$python" --version)" "$python" -m venv --clear .venv
}

install_packages() {
    local lock="requirements/$set_of_packages.txt" print
    print=$(cksum "$lock" requirements/bootstrap.txt)
    # What serves a developer serves `make up`: its set holds the smaller one.
    unchanged "$set_of_packages" "$print" || unchanged dev "$(cksum requirements/dev.txt requirements/bootstrap.txt)" || {
        [ -x .venv/bin/uv ] ||
            step "Install uv" .venv/bin/python -m pip install --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
        step "Install packages ($set_of_packages)" .venv/bin/uv pip install --python .venv/bin/python --require-hashes -r "$lock"
        mark "$set_of_packages" "$print"
    }
    print=$(cksum pyproject.toml)
    unchanged headrace "$print" || {
        step "Install headrace (editable)" \
            .venv/bin/uv pip install --python .venv/bin/python --no-deps --no-build-isolation --editable .
        mark headrace "$print"
    }
}

build_extension() {
    rm -rf build/wheels &&
        .venv/bin/maturin build --release --locked --manifest-path batcher-rs/python/Cargo.toml \
            --interpreter .venv/bin/python --out build/wheels &&
        .venv/bin/uv pip install --python .venv/bin/python --no-deps --force-reinstall build/wheels/*.whl
}

install_extension() {
    local print
    print=$(fingerprint Cargo.toml Cargo.lock batcher-rs)
    unchanged extension "$print" || {
        step "Build the Rust extension" build_extension
        mark extension "$print"
    }
}

build_models() {
    local print
    print=$(fingerprint examples/models requirements/models.txt)
    { unchanged models "$print" && [ -d models ]; } || {
        step "Build the example models" .venv/bin/python examples/models/build.py --out models
        mark models "$print"
    }
}

check_machine
mkdir -p build
# Two calls at once in one checkout take turns; the second then finds all done.
exec 9>build/setup.lock
flock 9
make_environment
install_packages
install_extension
build_models
