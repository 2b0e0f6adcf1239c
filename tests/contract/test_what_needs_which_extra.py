"""`import headrace` needs the distribution's own requirements and no extra; each extra is declared for what imports it."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Refuses to find the modules named on the command line, as if they were not installed.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""

OF_EXTRAS = [
    *("headrace_batcher", "headrace_gateway", "headrace_worker"),
    *("PIL", "grpc_health", "grpc_reflection", "jinja2", "ml_dtypes", "nats", "onnx", "onnxruntime", "psutil"),
    *("pydantic_settings", "rich", "tokenizers", "typer", "yaml"),
]


def test_the_client_imports_without_any_extra() -> None:
    code = WITHOUT + "import headrace, headrace.aio, headrace.errors\nheadrace.Client('127.0.0.1:1').close()"
    done = subprocess.run([sys.executable, "-c", code, *OF_EXTRAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_and_rust_agree_on_the_version() -> None:
    def version(path: str, *keys: str) -> object:
        found: object = tomllib.loads((ROOT / path).read_text())
        for key in keys:
            assert isinstance(found, dict)
            found = found[key]
        return found

    ours = version("pyproject.toml", "project", "version")
    assert version("batcher-rs/python/pyproject.toml", "project", "version") == ours
    assert version("Cargo.toml", "workspace", "package", "version") == ours
    extras = version("pyproject.toml", "project", "optional-dependencies", "service")
    assert isinstance(extras, list)
    assert f"headrace-batcher=={ours}" in extras


def test_lock_files_name_no_index_and_pin_every_package_by_hash() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "://" not in text, lock.name
        assert "--index" not in text, lock.name
        pins = [block for block in text.replace("\\\n", " ").splitlines() if "==" in block and block[0] not in " #"]
        assert pins, lock.name
        assert all("--hash=sha256:" in pin for pin in pins), lock.name
