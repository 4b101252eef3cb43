"""The code blocks of a page, and the comments before them about how to run them.

An indented block contains shell commands; a fenced one has the language that it names. HTML comments, which are not
visible on the page, define exceptions (CONTRIBUTING.md has the list):

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

#: Beginnings of comments, and whether they have a value.
MARKS: Final = {
    "not run": True,
    "prepare": True,
    "goes on until": True,
    "ends with": True,
    "file": True,
    "output": False,
    "PID": True,
}
#: Languages of fenced blocks that are run or checked.
SHELL: Final = "sh"
PYTHON: Final = "python"
#: Comments around a generated list (tests.support.lists), which are not about a block.
_COMMENT = re.compile(r"^ *<!-- (?!list: |end of list )([\w ]+?)(?:: (.*?))? -->[ \t]*\n", re.MULTILINE | re.DOTALL)


class PageError(Exception):
    """An invalid comment; the message has the place of its block."""


@dataclass(frozen=True, slots=True)
class Block:
    """A code block; ``language`` is empty if none is named."""

    line: int
    language: str
    text: str
    marks: Mapping[str, str]

    @property
    def is_run(self) -> bool:
        return self.language in (SHELL, PYTHON) and not self.marks.keys() & {"not run", "file"}


def blocks(page: Path) -> list[Block]:
    """Return the blocks in the order of the page. Raises PageError."""
    return list(_blocks(page.name, page.read_text().splitlines(keepends=True)))


def _blocks(name: str, lines: list[str]) -> Iterator[Block]:
    at = 0
    marks: dict[str, str] = {}
    is_paragraph = False  # an indented line after text continues the text
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
