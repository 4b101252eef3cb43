"""The files of a change, and the new lines of each."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
_EVERY: Final = range(1, 1 << 20)
#: A shorter name is in nearly every file.
_NAME_LENGTH_MIN: Final = 4


@dataclass(frozen=True, slots=True)
class Change:
    """``ranges`` are the lines that are new, or where lines were removed."""

    path: str
    ranges: tuple[range, ...]

    def touches(self, first: int, last: int) -> bool:
        return any(each.start <= last and first < each.stop for each in self.ranges)


def changes_of(root: Path, base: str = "HEAD") -> list[Change]:
    """Since ``base``: all that is not committed, too. Of a range ``A..B``: between the two."""
    found: dict[str, list[range]] = {}
    ranges: list[range] = []
    for line in _git(root, "diff", "--unified=0", "--no-renames", "--no-color", base, "--"):
        if line.startswith("diff --git "):
            ranges = found.setdefault(line.rpartition(" b/")[2], [])
        elif match := _HUNK.match(line):
            start, count = int(match[1]), int(match[2] or 1)
            ranges.append(range(start, start + max(count, 1)))
    changed = [Change(path, tuple(ranges)) for path, ranges in found.items()]
    if ".." not in base:
        new = _git(root, "ls-files", "--others", "--exclude-standard")
        changed += [Change(path, (_EVERY,)) for path in new]
    return changed


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True, errors="replace")
    return done.stdout.splitlines()


def functions_in(root: Path, change: Change) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions that a change touches, each with its qualified name, as in the id of a test."""
    file = root / change.path
    if change.path.endswith(".py") and file.is_file():
        yield from _functions(ast.parse(file.read_text(encoding="utf-8")), "", change)


def _functions(
    tree: ast.AST, prefix: str, change: Change
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if change.touches(first, node.end_lineno or first):
                if not isinstance(node, ast.ClassDef):
                    yield f"{prefix}{node.name}", node
                else:
                    yield from _functions(node, f"{prefix}{node.name}::", change)


def names_in(root: Path, change: Change) -> set[str]:
    """Return the names that a test of a change may use: its functions, their classes, and the names in its lines."""
    names: set[str] = set()
    for qualified, function in functions_in(root, change):
        names.update(qualified.split("::"))
        for node in ast.walk(function):
            if isinstance(node, ast.Name | ast.Attribute) and change.touches(node.lineno, node.end_lineno or 0):
                names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return {name.lstrip("_") for name in names if len(name.lstrip("_")) >= _NAME_LENGTH_MIN}
