"""The journal's steps of the disk in C, for tests: compiled here unless they were, where there is a compiler."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tandemmq.journal import writer

SOURCE = Path(__file__).parents[3] / "journal" / "native.c"


@cache
def native_module() -> ModuleType:
    """Skips the test where it cannot be had."""
    if writer.native is not None:
        return writer.native
    compiler = shutil.which("cc") or shutil.which("gcc")
    include = sysconfig.get_path("include")
    if compiler is None or not (Path(include) / "Python.h").is_file():
        pytest.skip("journal/native.c is not compiled, and there is no compiler with Python's headers")
    with tempfile.TemporaryDirectory(prefix="tandemmq-native-") as directory:
        library = Path(directory) / "native.so"
        command = [compiler, "-O1", "-shared", "-fPIC", f"-I{include}", str(SOURCE), "-o", str(library)]
        subprocess.run(command, check=True)
        spec = importlib.util.spec_from_file_location("tandemmq.journal.native", library)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    sys.modules.setdefault("tandemmq.journal.native", module)
    return module


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, which writers use in this test."""
    module = native_module()
    if writer.native is None:
        monkeypatch.setattr(writer, "native", module)
    return module
