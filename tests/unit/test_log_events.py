"""The names of events: each defined name is logged, and each logged name is defined."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tandemmq import log_events
from tests.support.tree import DIRECTORIES, ROOT


def _used(source: Path) -> Iterator[str]:
    """The attributes of log_events that a module names."""
    text = source.read_text()
    for node in ast.walk(ast.parse(text)) if "log_events." in text else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "log_events":
            yield node.attr


def test_each_name_is_logged_somewhere() -> None:
    names = {name for name, value in vars(log_events).items() if name.isupper() and isinstance(value, dict)}
    names.discard("MEANINGS")
    used = {name for directory in DIRECTORIES for file in (ROOT / directory).rglob("*.py") for name in _used(file)}
    assert {name for name in used if name.isupper()} - {"MEANINGS"} == names
    assert len(names) == len(log_events.MEANINGS)
