"""Every mark in the source is valid and has mutants, and a test declares that it proves the mark."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import declared
from tests.mutants.c_changes import mutants_of_c
from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.declared import EQUIVALENT, NEED_SERVICE, Declaration, declarations, declarations_in, is_equivalent
from tests.mutants.marks import Mark, MarkError, marks_in, marks_of
from tests.mutants.record import Record
from tests.mutants.run import ROOT, all_mutants, part_of
from tests.mutants.trial import How, Outcome


@functools.cache
def all_marks() -> list[Mark]:
    """Return all marks. A test calls it when needed: reading them takes a second, which would be part of the collection
    of tests."""
    return list(marks_of(ROOT))


@pytest.fixture(scope="module")
def mutants() -> list[Mutant]:
    """Return all mutants, also those that change no behaviour."""
    return all_mutants(but_equivalent=False)


def test_no_two_marks_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for mark in all_marks():
        places.setdefault(mark.name, []).append(mark.place)
    assert [named for named in places.items() if len(named[1]) > 1] == []


def test_every_mark_has_a_mutant_that_is_not_shown_to_change_nothing(mutants: list[Mutant]) -> None:
    assert {mutant.mark.name for mutant in mutants if not is_equivalent(mutant)} == {mark.name for mark in all_marks()}


def test_every_mutant_is_another_text_and_named_apart(mutants: list[Mutant]) -> None:
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        assert mutant.source != (ROOT / mutant.mark.path).read_text(encoding="utf-8"), mutant.name
        if mutant.mark.path.endswith(".py"):
            mutant.demand_syntax()


def test_every_mark_is_declared_by_a_test() -> None:
    assert [mark.place for mark in all_marks() if not declared.tests_of(mark)] == []


def test_every_declaration_names_a_mark_or_a_subject() -> None:
    assert [each for each in declarations() if not any(each.names(mark) for mark in all_marks())] == []
    names, subjects = {mark.name for mark in all_marks()}, {mark.subject for mark in all_marks()}
    assert not names & subjects
    assert names | subjects >= NEED_SERVICE


def test_exceptions_speak_of_mutants_that_are_there(mutants: list[Mutant]) -> None:
    assert set(EQUIVALENT) <= {mutant.name for mutant in mutants}
    assert all(reason.endswith(".") for reason in EQUIVALENT.values())


# ---- the mutants of a mark


# Lines of C -> the mutants of mark `a`; if there are none: the error.
C_LINES = [
    ("sync(fd); // prove: a", ["without sync(fd);"]),
    (
        "if (a < b && f(c || d)) { /* prove: a */",
        ["never a < b && f(c || d)", "without a < b", "without f(c || d)", "<= in a < b && f(c || d)"],
    ),
    ("return a == b || c; // prove: a", ["always a == b || c", "without a == b", "without c"]),
    ('/* prove: a "x" -> "y" */\nf(x);', ["'y' for 'x'"]),
    ('f(x); /* prove: a "y" */', "the line contains 'y' 0 times"),
    ("for (;;) { // prove: a", "nothing can be changed there"),
    ("f(); // prove: a order b\n/* why */\ng(); // prove: b", ["behind g();", "without f();"]),
    ("f(); // prove: a order b\n}\n  g(); // prove: b", "not in the same block"),
    ("f(); // prove: Not A Name", "not a valid mark"),
]


@pytest.mark.parametrize(("source", "expected"), C_LINES)
def test_a_mark_in_c_is_made_into_mutants(source: str, expected: list[str] | str) -> None:
    def made() -> list[str]:
        marks = list(marks_in("x.c", source))
        return [mutant.what for mutant in mutants_of_c(source, marks) if mutant.mark.name == "a"]

    if isinstance(expected, list):
        assert made() == expected
        return
    with pytest.raises(MarkError, match=expected):
        made()


def test_two_lines_of_c_change_places() -> None:
    source = "f(); // prove: a order b\nx;\ng(); /* prove: b */\n"
    mutant = mutants_of_c(source, list(marks_in("x.c", source)))[0]
    assert mutant.source == "x;\ng(); /* prove: b */\nf(); // prove: a order b\n"


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
        "never a and (b or not c)", "without a", "without b or not c", "without b", "without not c",
    ]  # fmt: skip


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
        ("f()  # prove: Not A Name\n", "not a valid mark"),
        ("f()  # prove:a\n", "not a valid mark"),
        ('f()  # prove: a "g"\n', "the line contains 'g' 0 times"),
        ("f()  # prove: a order b\n", "no mark b"),
        ("g()  # prove: b\nf()  # prove: a order b\n", "b is not after it"),
        ("if x:\n    f()  # prove: a order b\ng()  # prove: b\n", "not in the same block"),
        ("f(\n    a,  # prove: a\n    b,\n)\n", "no operand, condition or keyword argument ends there"),
    ],
)
def test_a_mark_that_says_nothing_is_named(source: str, expected: str) -> None:
    with pytest.raises(MarkError, match=expected):
        mutants_of(source, list(marks_in("x.py", source)))


def test_a_mutant_that_is_not_python_is_named() -> None:
    source = 'f(x)  # prove: a "x)" -> "x"\n'
    with pytest.raises(MarkError, match="is not valid Python"):
        mutants_of(source, list(marks_in("x.py", source)))[0].demand_syntax()


def test_a_mark_is_found_in_a_tree(tmp_path: Path) -> None:
    for room in ("store", "docs"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "x.py").write_text("f()  # prove: a\n")
        (tmp_path / room / "x.c").write_text("f(); // prove: b\n")
    assert [mark.place for mark in marks_of(tmp_path)] == ["store/x.c:1", "store/x.py:1"]


# ---- the tests that prove a mark

DECLARING = """\
# proves: journal, copied-*

import pytest

# proves: fence
# for two reasons
@pytest.mark.fast
def test_a(): ...

class TestB:
    # proves: lease
    async def test_c(self): ...
"""


def test_a_declaration_is_about_the_test_below_it_or_the_file() -> None:
    assert list(declarations_in("x.py", DECLARING)) == [
        Declaration("journal", "x.py"),
        Declaration("copied-*", "x.py"),
        Declaration("fence", "x.py::test_a"),
        Declaration("lease", "x.py::TestB::test_c"),
    ]


def test_a_declaration_names_a_mark_the_subject_of_its_file_or_a_pattern() -> None:
    mark = next(marks_in("x.py", "# proofs: journal\nsync()  # prove: batch-sync\n"))
    assert mark == Mark("batch-sync", "x.py", 2, subject="journal")
    assert [name for name in ("batch-sync", "batch-*", "journal", "batch") if Declaration(name, "").names(mark)] == [
        "batch-sync",
        "batch-*",
        "journal",
    ]


# ---- the record of a run


def test_a_recorded_outcome_counts_until_the_source_or_a_test_changes(mutants: list[Mutant], tmp_path: Path) -> None:
    first, second = mutants[:2]
    test = declared.tests_of(first.mark)[0]
    Record(tmp_path / "x").add(Outcome(first, How.TEST, test, 1.0))
    assert Record(tmp_path / "x").outcome(first) == Outcome(first, How.TEST, test, 1.0)
    assert Record(tmp_path / "x").outcome(second) is None
    assert Record(tmp_path / "x").outcome(replace(first, source=first.source + "#")) is None


def test_a_mutant_whose_test_fails_on_the_unchanged_tree_is_not_caught(mutants: list[Mutant]) -> None:
    record, mutant = Record(), mutants[0]
    outcome = Outcome(mutant, How.TEST, declared.tests_of(mutant.mark)[0], 1.0)
    record.add(outcome)
    tests = record.unchecked([outcome])
    record.checked(tests, set(tests), "as it is")
    found = record.outcome(mutant)
    assert found is not None
    assert (found.how, found.why_not) == (How.NOTHING, f"{outcome.caught_by}: as it is")
    assert record.unchecked([outcome]) == []


def test_the_parts_are_the_whole(mutants: list[Mutant]) -> None:
    parts = [part_of(mutants, number, 7) for number in range(1, 8)]
    assert all(parts)
    assert sorted(mutant.name for part in parts for mutant in part) == sorted(mutant.name for mutant in mutants)
