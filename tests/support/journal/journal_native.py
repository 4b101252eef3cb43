"""The journal's steps of the disk in C, for tests: compiled here unless they were, where there is a compiler.

Compiled with recorded_disk.h they ask a disk of the tests: one that records, fails or sleeps meets the calls of this
code, too.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tandemmq.compiled import is_compiled
from tandemmq.journal import writer
from tandemmq.journal.writer import JournalWriter
from tests.support.journal.compiler import NoCompiler, compile_c

SOURCE = Path(__file__).parents[3] / "journal" / "native.c"
RECORDED = Path(__file__).with_name("recorded_disk.h")


def _loaded(*options: str) -> tuple[ModuleType, ctypes.PyDLL]:
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
    module, _ = _loaded()
    sys.modules.setdefault("tandemmq.journal.native", module)
    return module


@cache
def recorded_module() -> tuple[ModuleType, Callable[[Any], None]]:
    """The module that asks a disk, and the function that sets the disk of the calling thread; None: the system."""
    module, library = _loaded("-include", str(RECORDED))
    use_disk = library.tandemmq_use_disk
    use_disk.argtypes, use_disk.restype = [ctypes.py_object], None
    return module, use_disk


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, which writers use in this test."""
    module = native_module()
    if writer.native is None:
        monkeypatch.setattr(writer, "native", module)
    return module


def use_recorded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """In this test writers use the module whatever their disk is, and it asks that disk."""
    if is_compiled():
        pytest.skip("replaces methods, and compiled code calls its own")
    module, use_disk = recorded_module()

    def on_its_disk(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(writer: JournalWriter, *arguments: Any) -> Any:
            disk = writer._files.disk
            use_disk(None if disk is os else disk)
            try:
                return method(writer, *arguments)
            finally:
                use_disk(None)

        return call

    def is_one_step(writer: JournalWriter) -> bool:
        return writer._on_written is None and writer._end_marker is None

    monkeypatch.setattr(writer, "native", module)
    monkeypatch.setattr(JournalWriter, "is_one_step", property(is_one_step))
    for name in ("commit", "serve"):
        monkeypatch.setattr(JournalWriter, name, on_its_disk(getattr(JournalWriter, name)))
    return module


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """See ``use_recorded``."""
    return use_recorded(monkeypatch)
