"""Reads a page of documentation: its fenced blocks, what they should print, its links and headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_NUMBER = re.compile(r"-?\d+\.\d+")


@dataclass(frozen=True)
class Block:
    """A block that a reader would run. `prints`: the text block that follows it, if one does."""

    page: str
    line: int
    language: str
    text: str
    prints: str | None

    @property
    def fails(self) -> bool:
        """Whether it shows what a mistake gets."""
        return self.prints is not None and self.prints.startswith("ERROR")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def runnable(page: Path, *, name: str) -> list[Block]:
    """The shell and Python blocks of a page."""
    text = page.read_text("utf-8")
    fences = list(_FENCE.finditer(text))
    blocks = []
    for fence, after in zip_longest(fences, fences[1:]):
        if fence["language"] not in ("sh", "bash", "python"):
            continue
        between = text[fence.end() : after.start()] if after is not None else "–"
        blocks.append(
            Block(
                page=name,
                line=text.count("\n", 0, fence.start()) + 2,
                language=fence["language"],
                text=fence["text"],
                prints=after["text"] if after and after["language"] == "text" and not between.strip() else None,
            )
        )
    return blocks


def links(page: Path) -> Iterator[str]:
    """Targets of links, outside of blocks."""
    for match in _LINK.finditer(_FENCE.sub("", page.read_text("utf-8"))):
        yield match["target"]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    prose = _FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def agrees(printed: str, promised: str) -> bool:
    """Whether a command printed what its page says: numbers within a hundredth, `…` for whatever follows."""
    shown, open_end = promised.rstrip(), promised.rstrip().endswith("…")
    want = shown.removesuffix("…").split()
    got = printed.split()
    if open_end:
        got = got[: len(want)]
    return len(got) == len(want) and all(_same(one, other) for one, other in zip(got, want, strict=True))


def _same(one: str, other: str) -> bool:
    numbers, wanted = _NUMBER.findall(one), _NUMBER.findall(other)
    near = len(numbers) == len(wanted) and all(
        abs(float(number) - float(want)) <= 0.01 * max(1.0, abs(float(want)))
        for number, want in zip(numbers, wanted, strict=True)
    )
    return near and _NUMBER.sub("#", one) == _NUMBER.sub("#", other)
