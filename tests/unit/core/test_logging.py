"""One line an event, whatever it carries."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from headrace_core import logging as logs


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_carry_facts_and_whole_errors() -> None:
    stream = io.StringIO()
    logs.configure(style="json", stream=stream)
    logging.getLogger("x").error("failed", exc_info=ValueError("two\nlines"), extra={"model": "m", "path": object})
    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert (told["message"], told["level"], told["model"]) == ("failed", "error", "m")
    assert "ValueError: two" in told["error"]


def test_readable_lines_stay_one_line() -> None:
    stream = io.StringIO()
    logs.configure(style="auto", stream=stream)
    logs.configure(style="text", stream=stream)
    logging.getLogger("x").error("a\nb", exc_info=ValueError("two\nlines"), extra={"model": "m\r"})
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: two\\nlines" in line


def test_the_level_changes_at_run_time() -> None:
    stream = io.StringIO()
    logs.configure(level="warning", style="json", stream=stream)
    logging.getLogger("x").info("unheard")
    logs.set_level("info")
    logging.getLogger("x").info("heard")
    assert "unheard" not in stream.getvalue()
    assert "heard" in stream.getvalue()
    assert logs.get_level() == "info"


def test_a_process_without_standard_error_logs_to_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    logs.configure()
    logging.getLogger("x").error("nobody hears this")
    sys.stderr.close()
