"""An operator deletes the shared subscriptions of JMS, which the store has under the broker's own client id."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tandemmq.broker.admin.api.listings import Listings
from tandemmq.broker.admin.callers import TOKEN_HOLDER
from tandemmq.broker.core.settings import EngineSettings
from tandemmq.broker.core.topics.shared import CLIENT_ID
from tests.support.acceptance.broker_process import BrokerProcess, tandemmq
from tests.support.broker.engine_term import EngineTerm
from tests.unit.broker.admin.api.conftest import Operator
from tests.unit.broker.engine.conftest import PRICES, Harness, come


def test_a_shared_subscription_is_deleted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    term = EngineTerm(str(data))
    for client_id, is_global in (("me", False), ("you", True)):
        share = f"#durable/{'' if is_global else client_id}/sub"
        client = come(term, client_id)
        client.subscribe(
            "s", PRICES, share=share, has_terms=True, is_global=is_global, durable_name="sub", receipt="joined"
        )
        term.wait(lambda client=client: client.receipts == ["joined"])
    term.close()
    broker = BrokerProcess(data, "a").start()
    try:
        broker.wait_role("master")
        operator = Operator(broker)
        rows = [(each["client_id"], each["name"]) for each in operator.get("subscriptions")["items"]]
        assert rows == [(CLIENT_ID, "#durable//sub"), (CLIENT_ID, "#durable/me/sub")]
        operator.change("DELETE", f"subscriptions/{CLIENT_ID}/%23durable%2Fme%2Fsub")
        tool = f"--admin=http://127.0.0.1:{broker.admin}"
        assert tandemmq("subscriptions", "delete", CLIENT_ID, "#durable//sub", tool).returncode == 0
        assert json.loads(tandemmq("subscriptions", tool, "--json").stdout)["items"] == []
    finally:
        broker.stop()


async def test_a_membership_of_mqtt_is_deleted_while_others_consume() -> None:
    harness = Harness(EngineSettings())
    clients = [harness.client(id).subscribe("s", PRICES, share="g", durable_name="d").turn() for id in ("me", "you")]
    clients[0].vanish()
    term: Any = SimpleNamespace(engine=lambda: harness.engine)
    nothing: Any = None
    [delete] = [
        each
        for each in Listings(term, nothing, nothing).endpoints()
        if each.method == "DELETE" and each.path.startswith("/subscriptions")
    ]
    call: Any = SimpleNamespace(caller=TOKEN_HOLDER, path={"client_id": "me", "name": "d"})
    deleting = asyncio.ensure_future(delete.handle(call))
    async with asyncio.timeout(10):
        while not deleting.done():
            harness.turn()
            await asyncio.sleep(0)
    assert deleting.result() == {}
    assert not harness.destinations.holdings.of("me")
    harness.client().send("a", PRICES).turn()
    assert clients[1].bodies == ["a"]
