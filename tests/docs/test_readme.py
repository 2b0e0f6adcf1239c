"""Every block of the documentation runs as it stands, and prints what the page says; every link leads somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.conftest import ROOT
from tests.docs.pages import Block

PAGES = ["README.md", "examples/grpcurl.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
LINKED = [
    *PAGES,
    "CONTRIBUTING.md",
    "bench/gpu/README.md",
    "examples/models/README.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs/adr").glob("*.md"))),
]
DEFAULT = "127.0.0.1:8001"


def is_covered_elsewhere(block: Block) -> bool:
    """`make …` is what got us here; performance pages name commands that take minutes."""
    verbs = [line for line in block.text.splitlines() if line.strip()]
    return all(line.startswith(("make ", "cargo ", "pip ")) for line in verbs) or block.page == "docs/performance.md"


BLOCKS = [
    block for page in PAGES for block in pages.runnable(ROOT / page, name=page) if not is_covered_elsewhere(block)
]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_runs_as_it_stands(block: Block, address: str, environment: dict[str, str], tmp_path: Path) -> None:
    text = block.text if address == DEFAULT else block.text.replace(DEFAULT, address)
    # Whoever runs this twice at once shares no folder.
    text = text.replace("/tmp/headrace-readme", str(tmp_path / "state"))
    elsewhere = environment if address == DEFAULT else environment | {"HEADRACE_URL": address}
    command = [sys.executable, "-c", text] if block.language == "python" else ["bash", "-euc", text]
    ran = subprocess.run(command, cwd=ROOT, env=elsewhere, capture_output=True, text=True, timeout=100, check=False)
    assert (ran.returncode != 0) is block.fails, f"{ran.stdout}\n{ran.stderr}"
    if block.prints is not None:
        printed = ran.stdout + ran.stderr
        assert pages.agrees(printed, block.prints), printed


def test_the_two_commands_come_first() -> None:
    first = pages.runnable(ROOT / "README.md", name="README.md")[0]
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == ["make up", "make test"]


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_somewhere(page: str) -> None:
    source = ROOT / page
    for target in pages.links(source):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (source.parent / path).resolve() if path else source
        assert linked.exists(), target
        assert not anchor or anchor in pages.anchors(linked), target


@pytest.mark.parametrize("page", LINKED)
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    named = re.findall(
        r"`((?:tests|batcher-rs|bench|docs|examples|protos|services|client|deploy|tools)/[\w./-]+\.\w+)`", text
    )
    assert not [name for name in named if not (ROOT / name).exists()]


def test_commands_in_the_table_of_promises_name_what_exists() -> None:
    table = [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if re.match(r"\| \d \|", line)]
    assert len(table) == 8
    for command in re.findall(r"`([^`]+)`", "\n".join(table)):
        if command.startswith("cargo test -p headrace-"):
            crate, rest = re.match(r"cargo test -p headrace-(\w+)(.*)", command).groups()  # type: ignore[union-attr]
            tests = ROOT / "batcher-rs" / crate / "tests"
            for name in re.findall(r"--test (\w+)", rest):
                assert (tests / f"{name}.rs").exists(), command
            for name in re.findall(r" (\w+_\w+)$", rest):
                assert any(f"fn {name}" in source.read_text("utf-8") for source in tests.rglob("*.rs")), command
        elif command.startswith("make "):
            assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), command
        elif command.startswith(("python ", "pytest ")):
            assert (ROOT / command.split()[1]).exists(), command
