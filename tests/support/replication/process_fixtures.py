"""A set of broker processes for a whole test module, which imports both names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tandemmq.store.tools.check import check
from tests.support.acceptance.set_of_brokers import SetOfBrokers, running_set


@pytest.fixture(scope="module")
def whole(
    require_service: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SetOfBrokers]:
    """One set for all tests. The store of each member is checked at the end."""
    with running_set(tmp_path_factory.mktemp("set"), require_service) as whole:
        yield whole
    for member in whole.members:
        report = check(member.data)
        assert report.is_clean, report.problems


@pytest.fixture
def three(whole: SetOfBrokers) -> SetOfBrokers:
    """Return the set; all members run and have all data."""
    whole.restart_the_dead()
    whole.quiet()
    return whole
