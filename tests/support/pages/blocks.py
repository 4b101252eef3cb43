"""The blocks of code of a page, and what the comments in front of them say about running them.

An indented block is what a reader types into a shell; a fenced one is of the language that it names. Comments of HTML,
which no reader sees, say what differs (CONTRIBUTING.md has the list):

    <!-- not run: needs Docker -->
    <!-- prepare: mkdir old -->
    <!-- goes on until: healthy -->

        tandemmq run
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: What a comment may begin with, and whether something follows.
MARKS: Final = {
    "not run": True,
    "prepare": True,
    "goes on until": True,
    "ends with": True,
    "file": True,
    "output": False,
    "PID": True,
}
#: The languages of fenced blocks that are run, or looked at.
SHELL: Final = "sh"
PYTHON: Final = "python"
#: The comments around a generated list (tests.support.lists) are not about a block.
_COMMENT = re.compile(r"^ *<!-- (?!list: |end of list )([\w ]+?)(?:: (.*?))? -->[ \t]*\n", re.MULTILINE | re.DOTALL)


class PageError(Exception):
    """A comment that means nothing, with the place of its block."""


@dataclass(frozen=True, slots=True)
class Block:
    """One of them; ``language`` is empty where none is named."""

    line: int
    language: str
    text: str
    marks: Mapping[str, str]

    @property
    def is_run(self) -> bool:
        return self.language in (SHELL, PYTHON) and not self.marks.keys() & {"not run", "file"}


def blocks(page: Path) -> list[Block]:
    """In the order of the page. Raises PageError."""
    return list(_blocks(page.name, page.read_text().splitlines(keepends=True)))


def _blocks(name: str, lines: list[str]) -> Iterator[Block]:
    at = 0
    marks: dict[str, str] = {}
    is_paragraph = False  # an indented line behind text goes on with the text
    while at < len(lines):
        line = lines[at]
        if comment := _COMMENT.match("".join(lines[at:])):
            marks[_checked(comment, f"{name}:{at + 1}")] = (comment[2] or "").strip()
            at += comment[0].count("\n")
            is_paragraph = False
            continue
        end = at + 1
        if fence := re.match(r"( *)```(\w*)", line):
            while not lines[end].strip().startswith("```"):
                end += 1
            text = "".join(each.removeprefix(fence[1]) for each in lines[at + 1 : end])
            yield Block(at + 1, fence[2], text, marks)
            marks = {}
            end += 1
        elif line.startswith("    ") and not is_paragraph:
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "".join(each.removeprefix("    ") for each in lines[at:end]).rstrip() + "\n"
            yield Block(at + 1, SHELL, text, marks)
            marks = {}
        elif line.strip() and marks:
            raise PageError(f"{name}:{at + 1}: a comment about a block that does not follow: {marks}")
        is_paragraph = bool(line.strip()) and not line.startswith(("#", "    ", "```"))
        at = end


def _checked(comment: re.Match[str], place: str) -> str:
    mark, says = comment[1], comment[2]
    if mark not in MARKS or MARKS[mark] != bool(says):
        raise PageError(f"{place}: expected one of {', '.join(MARKS)}, got {comment[0].strip()}")
    return mark
