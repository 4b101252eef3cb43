"""A set of real brokers for a whole module of tests; import both names into the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance.set_of_brokers import SetOfBrokers, running_set


@pytest.fixture(scope="module")
def whole(
    require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SetOfBrokers]:
    """One for all tests. The store of each member is checked in the end."""
    with running_set(tmp_path_factory.mktemp("set"), require_service) as whole:
        yield whole
    for member in whole.members:
        report = check(member.data)
        assert report.is_clean, report.problems


@pytest.fixture
def three(whole: SetOfBrokers) -> SetOfBrokers:
    """All of them run, and nobody is behind."""
    whole.restart_the_dead()
    whole.quiet()
    return whole
