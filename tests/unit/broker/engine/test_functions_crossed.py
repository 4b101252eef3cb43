"""How many functions one message crosses has a bound, and docs/architecture.md names them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandemmq.compiled import is_compiled
from tests.support.broker.functions_crossed import Traces, listed, listing, trace_messages, without_transport

pytestmark = pytest.mark.skipif(is_compiled(), reason="functions that are compiled are not traced")


@pytest.fixture
async def traces(tmp_path: Path) -> Traces:
    return await trace_messages(str(tmp_path))


async def test_the_list_of_functions_in_the_architecture_is_true(traces: Traces) -> None:
    assert listed() == listing(traces), "python -m tests.support.broker.functions_crossed writes it anew"


async def test_a_send_crosses_few_functions(traces: Traces) -> None:
    found = without_transport(traces.send.loop)
    assert len(found) <= 40, found
