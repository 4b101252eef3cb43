"""Lines that carry a safety argument, as they are marked in the source.

    files.publish(self._broker, first)  # prove: fence-by-link
    self.sync()  # prove: sync-before-fence-check order fence-check-after-sync
    f"{self._is_one_of(known_as)} AND {said.time} > {now}",  # prove: renew-before-end " AND {said.time} > {now}"
    self._proof = self._proof_since(known_at)  # prove: proof-from-before "known_at" -> "self.clock.now()"

A mark stands at the end of the line that it is about, or, where that gets too long, alone above it. It has a name of
its own: words of the field, with hyphens. By itself it is about the statement, or of a statement of several lines about
the operand, the condition or the keyword argument that ends there. `order` names a later mark of the same block: the
two have to stay in this order. A text in quotes is a part of the line that has to be there, or what it must not be
instead. changes.py says what is made of each.

A file with many marks names their subject once, on a line of its own:

    # proofs: journal-end

The tests that prove a mark declare its name or its subject (declared.py). So neither a source file nor a test file is
named by its path, and both can be moved.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import tree

#: Where marks are looked for: the product, and the rules by which CI judges.
DIRECTORIES = (*tree.DIRECTORIES, "tests/support/ci")

_BEGIN = re.compile(r"#\s*prove\b")
_NAME = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_MARK = re.compile(
    rf'# prove: (?P<name>{_NAME})(?: order (?P<order>{_NAME})| "(?P<part>[^"]+)"(?: -> "(?P<instead>[^"]+)")?)?'
)
_SUBJECT = re.compile(rf"# proofs: (?P<name>{_NAME})")


class MarkError(Exception):
    """A mark that says nothing, or something that cannot be."""


@dataclass(frozen=True, slots=True)
class Mark:
    """``path`` is from the root of the tree, with slashes. ``order`` is the mark that has to stay behind this one.
    ``subject`` is that of its file."""

    name: str
    path: str
    line: int
    order: str | None = None
    part: str | None = None
    instead: str | None = None
    subject: str | None = None

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


def marks_in(path: str, source: str) -> Iterator[Mark]:
    """The marks of one file from top to bottom. Raises MarkError."""
    subject = None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if named := _SUBJECT.fullmatch(token.string):
            subject = named["name"]
        if not _BEGIN.match(token.string):
            continue
        line = token.start[0]
        match = _MARK.fullmatch(token.string)
        if match is None:
            raise MarkError(f"{path}:{line}: this is no mark: {token.string}")
        is_alone = not token.line[: token.start[1]].strip()
        yield Mark(match["name"], path, line + is_alone, match["order"], match["part"], match["instead"], subject)


def marks_of(root: Path) -> list[Mark]:
    """All marks of a tree, by file and line. Raises MarkError."""
    found: list[Mark] = []
    for directory in (*DIRECTORIES, "tandemmq"):
        for file in sorted((root / directory).rglob("*.py")):  # it follows no links, of which `tandemmq` has many
            source = file.read_text(encoding="utf-8")
            if "# prove" in source:
                found += marks_in(file.relative_to(root).as_posix(), source)
    return found
