"""docs/proofs.md lists every promise, and each has a test that the default run has."""

import pytest

from tests.support.promises import IN_ONE_PROCESS, PAGE, PROMISES, Proof, filled_in, proofs


@pytest.fixture(scope="module")
def marked() -> list[Proof]:
    return proofs()


def test_each_promise_has_a_test_of_the_default_run(marked: list[Proof]) -> None:
    """An acceptance test; for some, named with the reason, another one."""
    assert PROMISES.keys() - {proof.promise for proof in marked if proof.is_of_the_default_run} == set()


def test_each_mark_names_a_promise(marked: list[Proof]) -> None:
    assert {proof.promise for proof in marked} - PROMISES.keys() == set()
    assert IN_ONE_PROCESS.keys() - PROMISES.keys() == set()


def test_the_page_has_the_tests_of_each() -> None:
    page = PAGE.read_text()
    assert page == filled_in(page), "python -m tests.support.promises"
