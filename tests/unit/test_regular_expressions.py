"""No regular expression of the product has two ways to read the same text: such a one takes the square of its length.

a* b c*     is ambiguous if what stands between the two repetitions can be made of characters that both take
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("broker", "cli", "client", "config", "index", "journal", "locker", "store")
CHARACTERS = [chr(code) for code in range(128)]
# Of a file of Java's properties: what comes last fits always, so nothing is tried twice.
HARMLESS = {r"\s*((?:\\.|[^\s=:\\])+)\s*[=:]?\s*(.*)"}

Item = tuple[Any, Any]


def patterns() -> Iterator[tuple[str, str]]:
    """Each pattern that is written in the product as one text, and its file."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                    of, pattern = node.func.value, node.args[0]
                    if isinstance(of, ast.Name) and of.id == "re" and isinstance(pattern, ast.Constant):
                        text = pattern.value.decode("latin-1") if isinstance(pattern.value, bytes) else pattern.value
                        yield str(path.relative_to(ROOT)), text


def taken(items: Iterable[Item]) -> set[str]:
    """The characters that the items can take anywhere."""
    found: set[str] = set()
    for operation, argument in items:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            found |= taken(argument[2])
        elif name == "SUBPATTERN":
            found |= taken(argument[3])
        elif name == "BRANCH":
            found |= set[str]().union(*map(taken, argument[1]))
        elif name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            state = _parser.State()
            one = _parser.SubPattern(state, [(operation, argument)])
            test = _compiler.compile(one, re.DOTALL)
            found |= {each for each in CHARACTERS if test.fullmatch(each)}
    return found


def is_made_of(items: Iterable[Item], characters: set[str]) -> bool:
    """Return whether these characters can make a text that the items match."""
    for operation, argument in items:
        name = str(operation)
        if name.endswith("_REPEAT"):
            is_so = argument[0] == 0 or is_made_of(argument[2], characters)
        elif name == "SUBPATTERN":
            is_so = is_made_of(argument[3], characters)
        elif name == "BRANCH":
            is_so = any(is_made_of(each, characters) for each in argument[1])
        else:
            is_so = name in ("AT", "ASSERT", "ASSERT_NOT") or bool(taken([(operation, argument)]) & characters)
        if not is_so:
            return False
    return True


def flat(items: Iterable[Item]) -> list[list[Item]]:
    """The items without their groups: each way through the branches; what is repeated as a whole comes twice."""
    ways: list[list[Item]] = [[]]
    for operation, argument in items:
        name = str(operation)
        if name == "SUBPATTERN":
            inner = flat(argument[3])
        elif name == "BRANCH":
            inner = [way for each in argument[1] for way in flat(each)]
        elif name.endswith("_REPEAT") and any(str(each[0]) not in ("LITERAL", "IN", "ANY") for each in argument[2]):
            once = flat(argument[2])
            inner = [*([] if argument[0] else [[]]), *once]
            if argument[1] > 1:
                inner += [one + other for one in once for other in once]
        else:
            inner = [[(operation, argument)]]
        ways = [way + more for way in ways for more in inner]
    return ways


def is_ambiguous(pattern: str) -> bool:
    for way in flat(_parser.parse(pattern)):
        endless = [at for at, (name, what) in enumerate(way) if str(name) == "MAX_REPEAT" and what[1] > 1_000]
        for one, other in pairwise(endless):
            both = taken(way[one][1][2]) & taken(way[other][1][2])
            if both and is_made_of(way[one + 1 : other], both):
                return True
    return False


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"[0-9]+\.?[0-9]*x", True),
        (r"\w*(?:pwd|key)\w*=", True),
        (r"(?:a+)+", True),
        (r"(?:a+b?)*c", True),
        (r"[0-9]+(?:\.[0-9]*)?x", False),
        (r"(?=\w*(?:pwd|key))\w+=", False),
        (r"(?:a+b)*c", False),
    ],
)
def test_ambiguous_expressions(pattern: str, expected: bool) -> None:
    assert is_ambiguous(pattern) is expected


def test_no_pattern_of_the_product_is_ambiguous() -> None:
    found = list(patterns())
    assert len(found) > 50, "they are found"
    assert [each for each in found if each[1] not in HARMLESS and is_ambiguous(each[1])] == []
