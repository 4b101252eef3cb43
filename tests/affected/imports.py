"""The imports between the files of the tree, found in the sources without running them.

A Python file needs the modules that it imports, also inside functions, and what a text of it names: a module
(``"tandemmq.locker.memory"``), any module of a package (``f"tandemmq.locker.{kind}"``), a file by its path or by its
unique name (``"docs/operations.md"``, ``"bare_jms.c"``), or all files of a pattern (``"*.md"``). A test needs the
``conftest.py`` of its directory and of those above.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Final

from tests.support.tree import DIRECTORIES, ROOT

CACHE: Final = ".pytest_cache/affected.json"
_MODULE = re.compile(r"(?:tandemmq|tests)(?:\.\w+)+")
_PACKAGE = re.compile(r"((?:tandemmq|tests)(?:\.\w+)+)\.")
_PATTERN = re.compile(r"[\w./*-]*\*\.(?!py)\w+")
_FILE = re.compile(r"[\w./-]+\.\w+")
_TEXT_MAX = 4000


def is_test(path: str) -> bool:
    return path.startswith("tests/") and PurePosixPath(path).name.startswith("test_") and path.endswith(".py")


def is_product(path: str) -> bool:
    return path.split("/")[0] in (*DIRECTORIES, "tandemmq")


@dataclass(frozen=True)
class Graph:
    """``needs``: of each file, those that it needs directly. Paths are from the root, with slashes."""

    root: Path
    needs: Mapping[str, frozenset[str]]

    @cached_property
    def needed_by(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for path, needed in self.needs.items():
            for each in needed:
                found[each].add(path)
        return {path: frozenset(users) for path, users in found.items()}

    def distances(self, path: str) -> dict[str, int]:
        """Return all files that need ``path``, each with its distance: 0 is ``path`` itself, 1 a direct import."""
        found = {path: 0}
        edge = [path]
        while edge:
            nearer, edge = edge, []
            for each in nearer:
                for user in self.needed_by.get(each, ()):
                    if user not in found:
                        found[user] = found[each] + 1
                        edge.append(user)
        return found


def files_of(root: Path) -> list[str]:
    """Return the files that git tracks, and new ones that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(path for path in set(listed) if (root / path).is_file() and not (root / path).is_symlink())


def graph_of(root: Path) -> Graph:
    """Read all sources; those that did not change since the last time are not parsed again."""
    files = files_of(root)
    cache = ROOT / CACHE
    known = json.loads(cache.read_text(encoding="utf-8")) if cache.exists() else {}
    names: dict[str, list[str]] = {}
    resolver = _Resolver(files)
    needs = dict.fromkeys(files, frozenset[str]())
    for path in files:
        if path.endswith(".py"):
            source = (root / path).read_bytes()
            key = hashlib.sha256(source).hexdigest()[:16]
            names[key] = known[key] if key in known else sorted(set(_named(source.decode())))
            needs[path] = frozenset({*resolver.files(names[key]), *resolver.conftests(path)} - {path})
    if root == ROOT:
        cache.parent.mkdir(exist_ok=True)
        cache.write_text(json.dumps(names), encoding="utf-8")
    return Graph(root, needs)


def _named(source: str) -> Iterator[str]:
    """Yield the names in a source by kind: ``module a.b``, ``package a.b``, ``file c/d.e``, ``pattern *.e``."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"module {each.name}" for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield f"module {module}"
                yield from (f"module {module}.{each.name}" for each in names)
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if found := _PACKAGE.fullmatch(text):
                yield f"package {found[1]}"
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                values = [each.value if isinstance(each, ast.Constant) else None for each in elements]
                if ("-m", "tandemmq") in pairwise(values):
                    yield "module tandemmq.__main__"
            case ast.Constant(value=str(text)) if id(node) not in docstrings and len(text) <= _TEXT_MAX:
                yield from (f"module {each}" for each in _MODULE.findall(text))
                yield from (f"file {each}" for each in _FILE.findall(text))
                if _PATTERN.fullmatch(text):
                    yield f"pattern {text}"


class _Resolver:
    """Turns what a source names into files of the tree."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
        by_name: dict[str, list[str]] = defaultdict(list)
        for path in self._files:
            if not path.endswith(".py"):
                by_name[PurePosixPath(path).name].append(path)
        self._unique = {name: paths[0] for name, paths in by_name.items() if len(paths) == 1}

    def files(self, names: Iterable[str]) -> Iterator[str]:
        for kind, _, name in (each.partition(" ") for each in names):
            if kind == "module":
                yield from self._modules(name)
            elif kind == "package":
                yield from self._matching(f"{self._place(name)}/*.py")
            elif kind == "pattern":
                yield from self._matching(name)
            elif name in self._files:
                yield name
            elif name in self._unique:
                yield self._unique[name]

    def _modules(self, name: str) -> Iterator[str]:
        if name.startswith(("tandemmq.", "tests.")):
            place = self._place(name)
            yield from (path for path in (f"{place}.py", f"{place}/__init__.py") if path in self._files)

    def _place(self, module: str) -> str:
        parts = module.split(".")
        return "/".join(parts[1:] if parts[0] == "tandemmq" and parts[1] in DIRECTORIES else parts)

    @cache  # noqa: B019 - it lives as long as the program
    def _matching(self, pattern: str) -> list[str]:
        return fnmatch.filter(self._files, pattern)

    def conftests(self, path: str) -> Iterator[str]:
        for directory in PurePosixPath(path).parents:
            if (conftest := f"{directory}/conftest.py") in self._files and conftest != path:
                yield conftest
