"""The checked-in stubs are what `protos/generate.py` writes, and all of them live in our own descriptor pool."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from headrace_protos.pool import POOL

ROOT = Path(__file__).parents[2]
MODULES = ["inference.grpc_service_pb2", "inference.model_config_pb2", "control.v1.control_pb2"]


def test_they_have_not_drifted_from_the_definitions() -> None:
    generator = ROOT / "protos" / "generate.py"
    done = subprocess.run([sys.executable, generator, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_their_messages_are_in_our_pool_and_not_in_the_global_one(module: str) -> None:
    file = importlib.import_module(f"headrace_protos.{module}").DESCRIPTOR
    assert POOL.FindFileByName(file.name) is file
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName(file.name)


def test_every_definition_has_stubs() -> None:
    definitions = {path.stem for path in (ROOT / "protos").rglob("*.proto")}
    assert definitions == {module.rsplit(".", 1)[-1].removesuffix("_pb2") for module in MODULES}
