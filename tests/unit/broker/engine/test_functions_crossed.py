"""The bound of the number of functions that one message crosses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.compiled import is_compiled
from tests.support.broker.functions_crossed import Traces, listing, trace_messages, without_transport
from tests.support.lists import recorded, sizes_of_functions

pytestmark = pytest.mark.skipif(is_compiled(), reason="functions that are compiled are not traced")


@pytest.fixture
async def traces(tmp_path: Path) -> Traces:
    return await trace_messages(str(tmp_path))


async def test_a_message_crosses_no_more_functions_than_recorded(traces: Traces) -> None:
    found, before = sizes_of_functions(listing(traces)), recorded()
    assert {name: size for name, size in found.items() if size > before[name]} == {}, "python -m tests.support.lists"


async def test_a_send_crosses_few_functions(traces: Traces) -> None:
    found = without_transport(traces.send.loop)
    assert len(found) <= 40, found
