"""The console of a replicated set: every node's page leads to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.acceptance.set_of_brokers import SetOfBrokers, running_set
from tests.support.services.browser import visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]


@pytest.fixture
def members_of_a_set(tmp_path: Path, require_service: Callable[[object, str], None]) -> Iterator[SetOfBrokers]:
    with running_set(tmp_path, require_service) as brokers:
        yield brokers


@pytest.mark.timeout(300)
def test_each_member_is_shown_with_its_role_and_a_link(browser: Browser, members_of_a_set: SetOfBrokers) -> None:
    master = members_of_a_set.wait_master()
    for member in members_of_a_set.members:
        with browser.new_context() as context:
            window = context.new_page()
            visit(window, f"http://127.0.0.1:{member.admin}/")
            table = window.get_by_role("table", name="Members of the set")
            table.get_by_role("row").filter(has_text=master.node).filter(has_text="master").wait_for()
            table.get_by_role("link").nth(len(members_of_a_set.members) - 1).wait_for()  # a node finds others later
            addresses = [link.get_attribute("href") for link in table.get_by_role("link").all()]
            assert addresses == [f"http://127.0.0.1:{each.admin}" for each in members_of_a_set.members]
