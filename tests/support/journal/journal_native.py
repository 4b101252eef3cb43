"""The journal's disk steps in C, for tests: compiled at first use, if there is a compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tandemmq.journal import writer
from tests.support.journal.compiler import NoCompiler, compile_c

SOURCE = Path(__file__).parents[3] / "journal" / "native.c"


def loaded(*options: str) -> tuple[ModuleType, ctypes.PyDLL]:
    """Return the module, compiled with these options, and its library. Skips the test if it cannot be compiled."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-native-") as directory:
        library = Path(directory) / "native.so"
        try:
            compile_c(SOURCE, library, *options)
        except NoCompiler as reason:
            pytest.skip(str(reason))
        spec = importlib.util.spec_from_file_location("tandemmq.journal.native", library)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, ctypes.PyDLL(str(library))


@cache
def native_module() -> ModuleType:
    """Return the module. Skips the test if it cannot be compiled."""
    if writer.native is not None:
        return writer.native
    module, _ = loaded()
    sys.modules.setdefault("tandemmq.journal.native", module)
    return module


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, and make the writers of this test use it."""
    module = native_module()
    if writer.native is None:
        monkeypatch.setattr(writer, "native", module)
    return module
