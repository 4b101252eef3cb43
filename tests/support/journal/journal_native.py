"""The journal's steps of the disk in C, for tests: compiled here unless they were, where there is a compiler."""

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
    """The module, compiled with these options, and its library. Skips the test where it cannot be had."""
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
    """Skips the test where it cannot be had."""
    if writer.native is not None:
        return writer.native
    module, _ = loaded()
    sys.modules.setdefault("tandemmq.journal.native", module)
    return module


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, which writers use in this test."""
    module = native_module()
    if writer.native is None:
        monkeypatch.setattr(writer, "native", module)
    return module
