"""``GET /events``: events that do not fit into one answer are in the next one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tandemmq.broker.admin.answers import Answers
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.node_pages import HaPages
from tandemmq.broker.core.slices import at_once
from tandemmq.broker.ha.states import Phase

COUNT, BYTES = 200, 8_000


@pytest.fixture
def pages() -> HaPages:
    ring = EventRing("a", None)
    for number in range(COUNT):
        ring.record("lost", number=number, why="x" * 200)
    rule: Any = SimpleNamespace(phase=Phase.MASTER, holder=None)
    return HaPages(ring, dict, cast(Any, None), "shared-file", lambda: rule, answers=Answers(BYTES))


def test_the_latest_come_first_and_each_page_says_where_the_earlier_ones_are(pages: HaPages) -> None:
    seen: list[int] = []
    before: int | None = None
    while True:
        body = at_once(pages.events_json(None, before))
        assert len(body) <= BYTES + 500
        page = json.loads(body)
        seen = [each["facts"]["number"] for each in page["events"]] + seen
        before = page["earlier"]
        if before is None:
            break
    assert seen == list(range(COUNT))


@pytest.mark.parametrize(("last", "numbers"), [(2, [98, 99]), (0, [])])
def test_the_last_are_those_before_a_number(pages: HaPages, last: int, numbers: list[int]) -> None:
    page = json.loads(at_once(pages.events_json(last, 100)))
    assert [each["facts"]["number"] for each in page["events"]] == numbers
    assert page["earlier"] is None


@pytest.mark.parametrize("query", ["last=x", "last=-1", "before=1.5", f"last={'9' * 5000}", f"before=-{'9' * 5000}"])
async def test_an_invalid_number_is_refused_by_name(pages: HaPages, query: str) -> None:
    (page,) = (each for each in pages.routes() if each.path == "/events")
    answer = cast(web.Response, await page.handler(make_mocked_request("GET", f"/events?{query}")))  # type: ignore[arg-type]
    assert answer.status == 400
    assert query.partition("=")[0] in cast(bytes, answer.body).decode()
