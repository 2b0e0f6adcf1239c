"""A stack that serves the example models, as `make up` starts it; three doors, as in the integration tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace import Client
from tests.support.processes import Stack, detached_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
NAMES = ("efficientnet", "gbdt", "magika", "minilm", "silero_vad")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    missing = [name for name in NAMES if not (MODELS / name / "1" / "model.onnx").exists()]
    if missing:
        text = f"{MODELS} lacks {', '.join(missing)}: run `make models`"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    with detached_stack(tmp_path_factory.mktemp("examples"), MODELS) as running:
        yield running


@pytest.fixture(scope="session", params=["worker", "gateway", "envoy"])
def client(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Client]:
    """Our client at each door."""
    with Client({"worker": stack.worker, "gateway": stack.gateway, "envoy": stack.address}[request.param]) as made:
        yield made
