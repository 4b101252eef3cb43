"""A stream of events that goes on where the one before it ended."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest

from tandemmq.broker.admin.answers import Answers
from tandemmq.broker.admin.api import api as api_module
from tandemmq.broker.admin.api.api import EventStream
from tandemmq.broker.admin.api.endpoints import routes
from tandemmq.broker.admin.events import EventRing
from tandemmq.broker.admin.guard import Guard
from tandemmq.broker.admin.server import AdminServer


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_events_between_two_streams_are_sent_by_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """The browser names the last id that it got. That of a former process stands for nothing of this one."""
    monkeypatch.setattr(api_module, "STREAM_SECONDS_MAX", 0.05)
    monkeypatch.setattr(api_module, "STREAM_CHECK_SECONDS", 0.01)
    ring, guard = EventRing("a", None), Guard(str(tmp_path / "token"), (), None)
    ring.record("before")
    stream = EventStream(ring, guard.sessions)
    pages = routes(stream.endpoints(), guard, Answers())
    server = AdminServer("127.0.0.1", 0, lambda: {"role": "master", "epoch": 1}, pages, check=guard.check)
    await server.start()
    try:
        async with aiohttp.ClientSession(server.url, trust_env=False) as client:

            async def watched(**headers: str) -> tuple[str, list[str]]:
                """The last id, and the kinds of events."""
                async with client.get("/api/v1/events/stream", headers=headers) as answer:
                    lines = (await answer.text()).splitlines()
                ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
                told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
                return ids[-1], [each["kind"] for each in told]

            last, kinds = await watched()
            assert kinds == []
            for kind in ("one", "two"):
                ring.record(kind)
            if is_restarted:
                last = f"former.{last.partition('.')[2]}"
            last, kinds = await watched(**{"Last-Event-ID": last})
            assert kinds == (["before", "one", "two"] if is_restarted else ["one", "two"])
            assert (await watched(**{"Last-Event-ID": last}))[1] == []
    finally:
        await server.stop()
