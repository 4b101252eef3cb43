"""The tests of the compiled modules: those of the compiled leg of CI.

For each module that pyproject.toml names for compilation: the files that mirror it, `tests/unit/<path>/test_<module>*`,
and each file below tests/ that imports it directly, but for OTHERS. From the acceptance tests, `sample` takes some.
"""

from __future__ import annotations

import ast
import random
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.support.tree import ROOT

#: Number of acceptance tests that run compiled.
ACCEPTANCE_COUNT: Final = 30
#: Tests of other things that only use compiled modules for their fixtures, and files with almost only thorough tests or
#: tests that need services, which the leg leaves out.
OTHERS: Final = (
    "tests/unit/cli/", "tests/unit/config/", "tests/unit/pipeline/jobs/", "tests/unit/pipeline/local/",
    "tests/interop/", "tests/model/simulator/",
)  # fmt: skip


def compiled_modules(root: Path = ROOT) -> list[str]:
    """Return paths from the root, without the suffix: `broker/core/client`."""
    hook = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["hooks"]["custom"]
    return [module.rpartition(".")[0] for module in (*hook["modules"], *hook["native"])]


def files(root: Path = ROOT) -> list[str]:
    """Return the test files in order, without those of `tests/acceptance`."""
    modules = compiled_modules(root)
    names = {f"tandemmq.{module.replace('/', '.')}" for module in modules}
    mirrored = {f"tests/unit/{module}" for module in modules}
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(("tests/acceptance/", *OTHERS)):
            continue
        tested = f"{name.rpartition('/')[0]}/{path.stem.removeprefix('test_')}"
        if any(tested == each or tested.startswith(f"{each}_") for each in mirrored) or names & set(imports(path)):
            found.append(name)
    return found


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, and the names that it imports from them, as `module.name`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def sample(tests: Sequence[str], seed: int, count: int = ACCEPTANCE_COUNT) -> list[str]:
    """Return a sample of tests in their order, the same for the same seed."""
    chosen = set(random.Random(seed).sample(sorted(tests), min(count, len(tests))))
    return [test for test in tests if test in chosen]
