"""The names of events: each is logged somewhere, each that is logged is in the table, and the page has them all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tandemmq import log_events
from tests.support.config.tables import event_table
from tests.support.tree import ROOT

_ROOMS = ("broker", "cli", "index", "journal", "locker", "store")
#: As the table of demotions in broker/run.py has them, by which one is chosen.
_CHOSEN = {"DEMOTED", "DEPOSED", "LOCK_LOST", "STORE_FAILED", "ROLE_CHANGED"}


def _logged(source: Path) -> Iterator[str]:
    """Of calls that log, the constants of log_events that they are given."""
    for node in ast.walk(ast.parse(source.read_text())):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            value = keyword.value
            is_event = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name)
            if keyword.arg == "extra" and is_event and value.value.id == "log_events":  # type: ignore[attr-defined]
                yield value.attr  # type: ignore[attr-defined]


def test_each_name_is_logged_somewhere() -> None:
    names = {name for name, value in vars(log_events).items() if name.isupper() and isinstance(value, dict)}
    names.discard("MEANINGS")
    logged = {name for room in _ROOMS for source in (ROOT / room).rglob("*.py") for name in _logged(source)}
    run = (ROOT / "broker" / "run.py").read_text()
    assert all(f"log_events.{name}" in run for name in _CHOSEN)
    assert logged | _CHOSEN == names
    assert len(names) == len(log_events.MEANINGS)


def test_the_page_has_them_all() -> None:
    assert event_table() in (ROOT / "docs" / "logging.md").read_text()
