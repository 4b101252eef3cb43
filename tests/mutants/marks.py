"""Marks in the source, of lines that carry a safety argument.

    files.publish(self._broker, first)  # prove: fence-by-link
    self.sync()  # prove: sync-before-fence-check order fence-check-after-sync
    f"{self._is_one_of(known_as)} AND {said.time} > {now}",  # prove: renew-before-end " AND {said.time} > {now}"
    self._proof = self._proof_since(known_at)  # prove: proof-from-before "known_at" -> "self.clock.now()"

A mark is at the end of the line that it is about, or, if the line would be too long, alone above it. Its name is
unique: words of the field, with hyphens. A mark is about the statement; in a statement of several lines it is about the
operand, the condition or the keyword argument that ends on that line. `order` names a later mark of the same block: the
two must stay in this order. A quoted text is a part of the line that must exist; a second one, after the arrow, must
not replace it. changes.py lists the mutants of each kind.

In C a mark is a whole comment, `// prove: name` or `/* prove: name */`.

A file with many marks names their subject once, on a line of its own:

    # proofs: journal-end

The tests that prove a mark declare its name or its subject (declared.py). Neither a source file nor a test file is
named by its path, so that both can be moved.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import tree

#: Directories that are searched for marks: the product, and the checks of CI.
DIRECTORIES = (*tree.DIRECTORIES, "tests/support/ci")

#: Suffixes of the files that are searched.
SUFFIXES = (".c", ".py")

_BEGIN = re.compile(r"#\s*prove\b")
_NAME = r"[a-z0-9]+(?:-[a-z0-9]+)*"
_MARK = re.compile(
    rf'# prove: (?P<name>{_NAME})(?: order (?P<order>{_NAME})| "(?P<part>[^"]+)"(?: -> "(?P<instead>[^"]+)")?)?'
)
_SUBJECT = re.compile(rf"# proofs: (?P<name>{_NAME})")


class MarkError(Exception):
    """A mark that cannot be read, or does not fit its line."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark. ``path``: from the root of the tree, with slashes. ``order``: name of the mark that must stay after this
    one. ``subject``: that of its file."""

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


# A comment at the end of a line of C
_C_COMMENT = re.compile(r"(?P<code>.*?)(?://|/\*) *(?P<text>(?:prove|proofs)\b.*?)(?: *\*/)?")


def marks_in(path: str, source: str) -> Iterator[Mark]:
    """Yield the marks of one file, from top to bottom. Raises MarkError."""
    subject = None
    for line, is_alone, comment in (_comments_of_c if path.endswith(".c") else _comments)(source):
        if named := _SUBJECT.fullmatch(comment):
            subject = named["name"]
        if not _BEGIN.match(comment):
            continue
        match = _MARK.fullmatch(comment)
        if match is None:
            raise MarkError(f"{path}:{line}: not a valid mark: {comment}")
        yield Mark(match["name"], path, line + is_alone, match["order"], match["part"], match["instead"], subject)


def _comments(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield the line of each comment, whether it is alone on that line, and its text."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], not token.line[: token.start[1]].strip(), token.string


def _comments_of_c(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield the same for the comments of C that may be marks, with the text that they would have in Python."""
    for number, line in enumerate(source.splitlines(), 1):
        if match := _C_COMMENT.fullmatch(line.rstrip()):
            yield number, not match["code"].strip(), f"# {match['text']}"


def marks_of(root: Path) -> list[Mark]:
    """Return all marks of a tree, by file and line. Raises MarkError."""
    found: list[Mark] = []
    for directory in (*DIRECTORIES, "tandemmq"):
        files = (root / directory).rglob("*")  # rglob follows no links; `tandemmq` has many
        for file in sorted(each for each in files if each.suffix in SUFFIXES):
            source = file.read_text(encoding="utf-8")
            if re.search(r"(#|//|/\*) *prove\b", source):
                found += marks_in(file.relative_to(root).as_posix(), source)
    return found
