"""An operator deletes the shared subscriptions of JMS, which the store has under the broker's own client id."""

from __future__ import annotations

import json
from pathlib import Path

from tandemmq.broker.core.topics.shared import CLIENT_ID
from tests.support.acceptance.broker_process import BrokerProcess, tandemmq
from tests.support.broker.engine_term import EngineTerm
from tests.unit.broker.admin.api.conftest import Operator
from tests.unit.broker.engine.conftest import PRICES, come


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
