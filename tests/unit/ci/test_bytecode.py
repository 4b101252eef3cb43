"""A copy of the tree starts with the bytecode that the tree has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bytecode import copy_bytecode

TEST = "import helper\n\ndef test_one(): assert helper.ONE == 1\n"


def compiled_by(tree: Path, prefix: Path) -> set[str]:
    """The names of the modules of ``tree`` that a run of its test compiles."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=prepend", "-q"]
    environment = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": str(prefix),
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = {path: path.stat().st_mtime_ns for path in prefix.rglob("*.pyc")}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    below = prefix.joinpath(*tree.parts[1:])
    return {path.name.partition(".")[0] for path in below.rglob("*.pyc") if before.get(path) != path.stat().st_mtime_ns}


@pytest.mark.thorough
@pytest.mark.parametrize("has_own_prefix", [False, True])
def test_a_copy_of_the_tree_compiles_what_is_new_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own_prefix: bool
) -> None:
    tree, copy, prefix = tmp_path / "tree", tmp_path / "copy", tmp_path / "bytecode"
    tree.mkdir()
    (tree / "pytest.ini").write_text("[pytest]\n")
    (tree / "helper.py").write_text("ONE = 1\n")
    (tree / "test_it.py").write_text(TEST)
    assert compiled_by(tree, prefix) == {"helper", "test_it"}
    shutil.copytree(tree, copy)
    monkeypatch.setattr(sys, "pycache_prefix", str(prefix))

    other = tmp_path / "other" if has_own_prefix else None
    copy_bytecode(tree, copy, other)
    (copy / "helper.py").write_text("ONE = 2 - 1\n")

    assert compiled_by(copy, other or prefix) == {"helper"}
