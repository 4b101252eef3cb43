"""Every mark in the source says something, and every module that carries safety arguments has marks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.marks import MarkError, marks_in, marks_of
from tests.mutants.run import ROOT, all_mutants
from tests.mutants.table import BY_MODULE, BY_NAME, EQUIVALENT, concerned, is_equivalent

MARKS = marks_of(ROOT)


@pytest.fixture(scope="module")
def mutants() -> list[Mutant]:
    """All there are, each of which can be read."""
    return all_mutants(but_equivalent=False)


def test_no_two_marks_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for mark in MARKS:
        places.setdefault(mark.name, []).append(mark.place)
    assert [named for named in places.items() if len(named[1]) > 1] == []


def test_every_mark_has_a_mutant_that_is_not_shown_to_change_nothing(mutants: list[Mutant]) -> None:
    assert {mutant.mark.name for mutant in mutants if not is_equivalent(mutant)} == {mark.name for mark in MARKS}


def test_every_mutant_is_another_text_and_named_apart(mutants: list[Mutant]) -> None:
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        assert mutant.source != (ROOT / mutant.mark.path).read_text(encoding="utf-8"), mutant.name


def test_every_safety_module_has_marks_and_every_mark_has_tests() -> None:
    assert {mark.path for mark in MARKS} == set(BY_MODULE)
    for mark in MARKS:
        for test in concerned(mark):
            assert os.path.exists(ROOT / test.partition("::")[0]), f"{mark.name}: {test}"


def test_the_table_speaks_of_marks_that_are_there(mutants: list[Mutant]) -> None:
    assert set(BY_NAME) <= {mark.name for mark in MARKS}
    assert set(EQUIVALENT) <= {mutant.name for mutant in mutants}
    assert all(reason.endswith(".") for reason in EQUIVALENT.values())


# ---- what the tool makes of a mark


def whats(source: str) -> list[str]:
    return [mutant.what for mutant in mutants_of(source, list(marks_in("x.py", source)))]


def changed(source: str) -> list[str]:
    return [mutant.source for mutant in mutants_of(source, list(marks_in("x.py", source)))]


def test_a_statement_is_removed() -> None:
    assert changed("def f():\n    sync()  # prove: a\n") == ["def f():\n    pass  # prove: a\n"]


def test_a_condition_holds_never_and_always_and_moves_its_bound() -> None:
    assert whats("if a < b:  # prove: a\n    f()\n") == ["never a < b", "always a < b", "<= in a < b"]


def test_each_operand_is_dropped() -> None:
    source = "def f() -> bool:\n    return a and (b or not c)  # prove: a\n"
    assert whats(source) == [
        "never a and (b or not c)",
        "without a",
        "without b or not c",
        "without b",
        "without not c",
    ]


def test_an_operand_that_ends_on_the_line_is_dropped_alone() -> None:
    source = "x = (\n    a\n    and b  # prove: a\n    and c\n)\n"
    assert changed(source) == ["x = (\n    a\n    and True  # prove: a\n    and c\n)\n"]


def test_parts_of_a_long_statement_are_found() -> None:
    assert whats("f(\n    a=True,  # prove: a\n    b=c,  # prove: b\n)\n") == ["a=False", "b=False"]
    assert changed("x = [\n    y\n    for y in z\n    if y <= 1  # prove: a\n]\n") == [
        "x = [\n    y\n    for y in z\n    if True  # prove: a\n]\n",
        "x = [\n    y\n    for y in z\n    if y < 1  # prove: a\n]\n",
    ]


def test_two_statements_change_places() -> None:
    source = "sync()  # prove: a order b\nx = 1\nlook()  # prove: b\n"
    assert changed(source)[0] == "x = 1\nlook()  # prove: b\nsync()  # prove: a order b\n"
    assert whats(source) == ["behind look()", "without sync()", "without look()"]


def test_a_part_of_a_line_is_gone_or_another() -> None:
    assert changed('f"{a} AND {b}"  # prove: a " AND {b}"\n') == ['f"{a}"  # prove: a " AND {b}"\n']
    assert changed('# prove: a "x" -> "y"\nf(x)\n') == ['# prove: a "x" -> "y"\nf(y)\n']


def test_another_value_is_nothing_of_its_kind() -> None:
    assert whats("def f() -> int:\n    return g()  # prove: a\n") == ["returns 0"]
    assert whats("def f() -> X | None:\n    return g()  # prove: a\n") == ["returns None"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f()  # prove: Not A Name\n", "this is no mark"),
        ("f()  # prove:a\n", "this is no mark"),
        ('f()  # prove: a "g"\n', "stands there 0 times"),
        ("f()  # prove: a order b\n", "no mark b"),
        ("g()  # prove: b\nf()  # prove: a order b\n", "does not stand behind it"),
        ("if x:\n    f()  # prove: a order b\ng()  # prove: b\n", "not in the same block"),
        ("f(\n    a,  # prove: a\n    b,\n)\n", "no operand, condition or keyword argument ends there"),
        ('f(x)  # prove: a "x)" -> "x"\n', "cannot be read any more"),
    ],
)
def test_a_mark_that_says_nothing_is_named(source: str, expected: str) -> None:
    with pytest.raises(MarkError, match=expected):
        mutants_of(source, list(marks_in("x.py", source)))


def test_a_mark_is_found_in_a_tree(tmp_path: Path) -> None:
    for room in ("store", "docs"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "x.py").write_text("f()  # prove: a\n")
    assert [mark.place for mark in marks_of(tmp_path)] == ["store/x.py:1"]
