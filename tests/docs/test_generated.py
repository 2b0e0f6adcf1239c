"""The tables that follow from the code are what the code says; `python docs/generate.py` mends them."""

import importlib.util
from types import ModuleType

import pytest

from headrace_core import errors
from tests.docs.conftest import ROOT


@pytest.fixture
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_page_has_drifted(generate: ModuleType) -> None:
    assert generate.drifted() == []


def test_every_part_stands_in_a_page(generate: ModuleType) -> None:
    text = "".join(page.read_text("utf-8") for page in generate.DOCS.glob("*.md"))
    for name in generate.PARTS:
        assert f"<!-- generated: {name} -->" in text


def test_a_changed_table_is_noticed(generate: ModuleType) -> None:
    page = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    changed = page.replace("| `QUEUE_FULL` | `RESOURCE_EXHAUSTED` |", "| `QUEUE_FULL` | `UNAVAILABLE` |")
    assert changed != page
    assert generate.filled(changed) == page


def test_every_reason_is_in_the_table_of_errors(generate: ModuleType) -> None:
    table = "\n".join(generate.error_table())
    for reason, code in errors.table().items():
        assert f"| `{reason}` | `{code.name}` |" in table
