from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.tree import ROOT

CORE = "tandemmq.broker.core"


def modules() -> dict[str, Path]:
    """The files of broker/core, by the names of their modules."""
    found = {}
    for path in (ROOT / "broker" / "core").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(("tandemmq", *parts)).removesuffix(".__init__")] = path
    return found


def imported(path: Path, files: Container[str]) -> Iterator[str]:
    """Return those of ``files`` that the module imports, wherever the statement is: one under ``if TYPE_CHECKING``
    counts, too."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            each = (f"{node.module}.{name}" for name in names)
            names = [name if name in files else str(node.module) for name in each]
        yield from filter(files.__contains__, names)


def test_imports_in_the_core_point_one_way() -> None:
    files = modules()
    graph = {name: set(imported(path, files)) for name, path in files.items()}
    assert graph[f"{CORE}.queue.queue"] >= {f"{CORE}.delivery", f"{CORE}.queue.window"}, "imports are found"
    TopologicalSorter(graph).prepare()  # CycleError names the circle
