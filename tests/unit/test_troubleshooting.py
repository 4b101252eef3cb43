"""The code can print each message that docs/troubleshooting.md quotes."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages.blocks import blocks
from tests.support.tree import DIRECTORIES, ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
LABELS = ["Cause", "Check", "Action"]
QUOTED = [line for block in blocks(PAGE) if block.language == "text" for line in block.text.splitlines()]


def texts(path: Path) -> Iterator[str]:
    """Each text that this module makes, with … for what it puts in; no docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield re.sub(r"%[-.\d]*[a-z]", "…", node.value)


@functools.cache
def said() -> str:
    files = (path for package in DIRECTORIES for path in sorted((ROOT / package).rglob("*.py")))
    return "\n".join(text for path in files for text in texts(path))


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_that_is_quoted_is_in_the_code(message: str) -> None:
    assert message in said()


def test_each_symptom_has_a_cause_a_check_and_an_action() -> None:
    symptoms = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert len(symptoms) > 20
    for symptom in symptoms:
        assert re.findall(r"^- \*\*(.+)\.\*\*", symptom, flags=re.MULTILINE) == ["Cause", "Check", "Action"], symptom[
            :60
        ]
