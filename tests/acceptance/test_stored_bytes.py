"""The bytes that a user has in the store end at ``broker.user_stored_bytes_max``, by all protocols, over failovers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.openwire_wire import OpenWire, Refused, queue
from tests.support.acceptance.stomp_wire import Wire
from tests.support.security.passwords import cheap

SETTINGS = """\
[broker]
user_stored_bytes_max = "16kb"
[security]
users_file = "{users}"
"""
BODY = b"x" * 4096
FIT = 3
QUOTA_EXCEEDED = 0x97
REFUSED = "javax.jms.ResourceAllocationException: Messages of user ann take"


class Limited(BrokerProcess):
    """With the users ann and bob."""

    def __init__(self, directory: Path, name: str) -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        users.write_text("".join(f"{user}:{cheap(user)}:all:\n" for user in ("ann", "bob")))
        users.chmod(0o600)
        settings.write_text(SETTINGS.format(users=users))
        super().__init__(directory / "data", name, "--config", str(settings))
        self.openwire: int = free_port()
        self.mqtt: int = free_port()

    def by_openwire(self, user: str) -> str:
        """Java's exception that answers a message; empty: it was taken."""
        with closing(OpenWire(self.openwire).connect(user, user)) as client:
            try:
                client.send(queue("Q"), BODY)
            except Refused as refused:
                return str(refused)
        return ""

    def by_mqtt(self, user: str) -> int | None:
        """The reason code that answers a message that is to be retained."""
        with Mqtt(self.mqtt) as client:
            assert client.connect("", user, user) == [0]
            return client.publish("T", BODY, retain=True)

    async def by_stomp(self, user: str) -> str:
        """Return the answer to a message: RECEIPT, or the text of an ERROR."""
        wire = await Wire.open(self.stomp, login=user, passcode=user)
        wire.send("SEND", {"destination": "/queue/Q", "persistent": "true", "receipt": "r"}, BODY)
        answer = await wire.read()
        wire.close()
        return answer.command if answer.command == "RECEIPT" else answer.headers["message"] + answer.body.decode()

    async def takes_one(self) -> None:
        wire = await Wire.open(self.stomp, login="bob", passcode="bob")
        wire.send("SUBSCRIBE", {"id": "0", "destination": "/queue/Q", "ack": "client-individual"})
        message = await wire.read()
        wire.send("ACK", {"id": message.headers["ack"], "receipt": "acked"})
        while (await wire.read()).command != "RECEIPT":
            pass
        wire.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Limited, ...]]:
    with serving(*(Limited(tmp_path, name) for name in "ab")) as pair:
        yield pair


async def test_a_failover_gives_no_second_quota(pair: tuple[Limited, ...]) -> None:
    master, standby = pair
    assert [await master.by_stomp("ann") for _ in range(FIT)] == ["RECEIPT"] * FIT
    for broker in (master, standby):
        if broker is standby:
            master.kill()
            standby.wait_role("master")
        assert "user_stored_bytes_max is 16384" in await broker.by_stomp("ann")
        assert broker.by_openwire("ann").startswith(REFUSED)
        assert broker.by_mqtt("ann") == QUOTA_EXCEEDED
        assert broker.by_mqtt("bob") == 0
    await standby.takes_one()
    assert standby.by_openwire("ann") == ""
    assert standby.by_openwire("ann").startswith(REFUSED)
