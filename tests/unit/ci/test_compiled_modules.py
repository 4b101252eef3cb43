"""Rules for the modules that mypyc compiles."""

from __future__ import annotations

import ast

from tests.support.ci.compiled_tests import compiled_modules
from tests.support.tree import ROOT

#: Functions in functions that keep nothing of a client.
NESTED = [
    "commands._schedule.build",
    "dispatch.trace.traced",
    "engine._traced.sent",
    "engine._traced.watched",
    "state.thaw.free",
]


def test_no_function_on_the_way_of_a_message_is_in_a_cycle() -> None:
    """mypyc keeps a named function in what it closes over, with all that this refers to: a message of megabytes stays
    until the collector looks at old objects. A method with functools.partial, or a lambda, is in no cycle."""
    found = []
    for module in compiled_modules():
        path = ROOT / f"{module}.py"
        for outer in ast.walk(ast.parse(path.read_text())) if path.exists() else ():
            if isinstance(outer, ast.FunctionDef):
                inner = [each for each in ast.walk(outer) if isinstance(each, ast.FunctionDef) and each is not outer]
                found += [f"{path.stem}.{outer.name}.{each.name}" for each in inner]
    assert sorted(found) == NESTED
