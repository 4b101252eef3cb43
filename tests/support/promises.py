"""The promises of the product and the tests that prove them.

docs/proofs.md has the list: the name and the sentence of each promise are written there by hand. A test proves a
promise when it has the mark ``@pytest.mark.promise("name")``. To fill in the tests of the list:
``python -m tests.support.promises``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.support.tree import ROOT, TESTS

PAGE: Final = ROOT / "docs" / "proofs.md"
_ROW: Final = re.compile(r"^\| `([a-z-]+)` \| ([^|]+) \|.*\|$", re.MULTILINE)
PROMISES: Final[Mapping[str, str]] = dict(_ROW.findall(PAGE.read_text(encoding="utf-8")))
_NEEDS_ZOOKEEPER: Final = "A set of processes needs ZooKeeper, which pip does not install."
#: Promises whose proof in the default run has no broker process, with the reason.
IN_ONE_PROCESS: Final[Mapping[str, str]] = {
    "bytes-are-activemqs": "ActiveMQ is not installed by pip; the vectors are its bytes.",
    "quorum-keeps-confirmed": _NEEDS_ZOOKEEPER,
    "set-has-one-master": _NEEDS_ZOOKEEPER,
    "set-is-managed": _NEEDS_ZOOKEEPER,
    "set-settles-as-a-volume": _NEEDS_ZOOKEEPER,
    "simulator-finds-nothing": "The simulator is one process.",
    "upgrade-loses-nothing": "Two wheels are built for it, which takes longer than the rest of the promises.",
    "waits-are-bounded": "A system call that hangs needs a library from a compiler.",
}
#: Marks of tests that are not in the default run.
_LEFT_OUT: Final = frozenset({"service", "thorough", "proof_only"})


@dataclass(frozen=True, slots=True)
class Proof:
    """A mark of a promise. ``test`` is empty if the mark holds for the whole file."""

    promise: str
    file: str
    test: str
    is_default: bool

    @property
    def is_of_the_default_run(self) -> bool:
        return self.is_default and (self.file.startswith("tests/acceptance/") or self.promise in IN_ONE_PROCESS)

    @property
    def name(self) -> str:
        return f"`{self.file}::{self.test}`" if self.test else f"`{self.file}`"


@functools.cache
def proofs() -> list[Proof]:
    """Return all marks of promises in the tests, by file and line."""
    found: list[Proof] = []
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.promise(" in text:
            module = ast.parse(text)
            of_all = [each.value for each in module.body if _is_pytestmark(each)]  # type: ignore[attr-defined]
            found += _in(f"tests/{path.relative_to(TESTS).as_posix()}", "", of_all, module.body, is_default=True)
    return found


def _in(file: str, test: str, marks: list[ast.expr], body: list[ast.stmt], is_default: bool) -> Iterator[Proof]:
    """Yield the marks of a module, class or function, and of the definitions in it."""
    plain = [mark for mark in marks if not _is_call(mark, "parametrize")]
    is_default = is_default and not _LEFT_OUT & _attributes(plain)
    for name in _promises(plain):
        yield Proof(name, file, test, is_default)
    for case in (node for mark in marks if mark not in plain for node in ast.walk(mark) if _is_call(node, "param")):
        for name in _promises([case]):
            yield Proof(name, file, test, is_default and not _LEFT_OUT & _attributes([case]))
    for each in body:
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = each.body if isinstance(each, ast.ClassDef) else []
            yield from _in(file, each.name, each.decorator_list, inner, is_default)


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def _attributes(nodes: list[ast.expr]) -> set[str]:
    return {each.attr for node in nodes for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def _promises(nodes: list[ast.expr]) -> Iterator[str]:
    for call in (each for node in nodes for each in ast.walk(node) if _is_call(each, "promise")):
        yield from (str(arg.value) for arg in call.args if isinstance(arg, ast.Constant))  # type: ignore[attr-defined]


def filled_in(page: str) -> str:
    """Return the page with the tests of each promise."""
    marked = proofs()

    def row(match: re.Match[str]) -> str:
        name, sentence = match.groups()
        mine = [proof for proof in marked if proof.promise == name]
        default = dict.fromkeys(proof.name for proof in mine if proof.is_of_the_default_run)
        further = dict.fromkeys(f"`{proof.file}`" for proof in mine if not proof.is_of_the_default_run)
        return f"| `{name}` | {sentence} | {'<br>'.join(default)} | {'<br>'.join(further)} |"

    return _ROW.sub(row, page)


if __name__ == "__main__":
    PAGE.write_text(filled_in(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
