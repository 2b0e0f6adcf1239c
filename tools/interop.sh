#!/usr/bin/env bash
# Makes the environments that hold other servers' packages (`.venv-kserve`, `.venv-mlserver`), as locked.
# Neither can be installed beside our own development packages, nor beside the other.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/step.sh

install() {  # install NAME: an environment with what requirements/interop-NAME.txt names
    rm -rf ".venv-$1" &&
        .venv/bin/uv venv --quiet --python .venv/bin/python ".venv-$1" &&
        .venv/bin/uv pip install --python ".venv-$1/bin/python" --require-hashes -r "requirements/interop-$1.txt"
}

for name in kserve mlserver; do
    print=$(cksum "requirements/interop-$name.txt")
    if ! unchanged "interop-$name" "$print" || [ ! -x ".venv-$name/bin/python" ]; then
        step "Install $name in .venv-$name" install "$name"
        mark "interop-$name" "$print"
    fi
done
