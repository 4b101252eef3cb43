"""Each protocol, and the API, crossed with all rights, on a running broker: what a user may not do, no way does for the
user. The ways within the engine are in tests/unit/broker/security/test_principals.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.mqtt.packets import PacketType, Publish, Will
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties
from tandemmq.store.records.properties import encode_properties
from tests.support.acceptance.broker_process import BrokerProcess, serving
from tests.support.acceptance.mqtt_wire import Mqtt
from tests.support.acceptance.openwire_wire import OpenWire, Refused, queue
from tests.support.acceptance.stomp_wire import Wire
from tests.support.security.passwords import cheap
from tests.unit.broker.admin.api.conftest import Operator

SETTINGS = """\
[[connectors]]
uri = "stomp://127.0.0.1:{stomp}"
[[connectors]]
uri = "openwire://127.0.0.1:{openwire}"
[[connectors]]
uri = "mqtt://127.0.0.1:{mqtt}"
[admin]
operators = ["all"]
[[virtual_destinations]]
composite_queue = "OPEN.F"
forward_to = [{{queue = "S.Q"}}]
[[virtual_destinations]]
composite_topic = "OPEN.F"
forward_to = [{{queue = "S.Q"}}]
[security]
users_file = "{users}"
[[security.authorization]]
queue = "S.>"
read = ["read"]
write = ["write"]
admin = ["admin"]
[[security.authorization]]
topic = "S.>"
read = ["read"]
write = ["write"]
admin = ["admin"]
[[security.authorization]]
queue = "OPEN.>"
read = ["all"]
write = ["all"]
admin = ["all"]
[[security.authorization]]
topic = "OPEN.>"
read = ["all"]
write = ["all"]
admin = ["all"]
[[security.authorization]]
topic = "ActiveMQ.MQTT.>"
admin = ["all"]
"""
READ, WRITE, ADMIN = "read", "write", "admin"
RIGHTS: Final = [some for count in range(4) for some in combinations((READ, WRITE, ADMIN), count)]
LATER: Final = "AMQ_SCHEDULED_DELAY"
SECONDS_MAX: Final = 60.0


class Broker(BrokerProcess):
    """``user-read-write`` has these rights on what is below S, and all on what is below OPEN."""

    def __init__(self, directory: Path) -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        super().__init__(directory / "data", "a", "--config", str(settings))
        self.leaves_stomp_to_settings = True
        self.openwire, self.plain_mqtt = free_port(), free_port()
        self.users = users
        self.write_users()
        settings.write_text(
            SETTINGS.format(stomp=self.stomp, openwire=self.openwire, mqtt=self.plain_mqtt, users=users)
        )

    def write_users(self, without: str = "") -> None:
        """``without``: the user who has lost all rights."""
        groups = {name_of(rights): ("all", *rights) for rights in RIGHTS} | {without: ()}
        lines = (f"{name}:{cheap('secret')}:{','.join(groups[name])}:\n" for name in groups if name)
        self.users.write_text("".join(lines))
        self.users.chmod(0o600)

    def jms(self, user: str) -> OpenWire:
        return OpenWire(self.openwire).connect(user, "secret")

    def device(self, user: str, will: Will | None = None) -> Mqtt:
        client = Mqtt(self.plain_mqtt)
        assert client.connect(f"{user}-device", user, "secret", will=will) == [0]
        return client


def name_of(rights: tuple[str, ...]) -> str:
    return "-".join(("user", *rights))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(Broker(tmp_path_factory.mktemp("ways"))) as (broker,):
        admin = Operator(broker)
        for kind in ("queue", "topic"):
            admin.change("POST", "destinations", {"kind": kind, "name": "S.Q"})
        yield broker


async def by_stomp(broker: Broker, user: str) -> None:
    for way, destination, headers in (
        ("send", "/queue/S.Q", {}),
        ("list", "/queue/OPEN.A,S.Q", {}),
        ("forward", "/queue/OPEN.F", {}),
        ("scheduled", "/queue/S.Q", {LATER: "1"}),
        ("scheduled list", "/queue/OPEN.A,S.Q", {LATER: "1"}),
        ("scheduled forward", "/queue/OPEN.F", {LATER: "1"}),
    ):
        wire = await Wire.open(broker.stomp, login=user, passcode="secret")
        wire.send("SEND", {"destination": destination, "receipt": "r", **headers}, f"stomp {way} {user}".encode())
        await wire.read()
        wire.close()


async def by_jms(broker: Broker, user: str) -> None:
    later = encode_properties({LATER: 1})
    client = broker.jms(user)
    for way, destination, fields in (
        ("send", "S.Q", {}),
        ("list", "OPEN.A,S.Q", {}),
        ("forward", "OPEN.F", {}),
        ("scheduled", "S.Q", {"marshalled_properties": later}),
        ("scheduled forward", "OPEN.F", {"marshalled_properties": later}),
        ("origin", f"OPEN.{user}", {"original_destination": queue("S.Q")}),
    ):
        with contextlib.suppress(Refused):
            client.send(queue(destination), f"jms {way} {user}".encode(), **fields)
    client.close()
    Operator(broker).change("POST", f"destinations/queue/OPEN.{user}/messages/retry", {"all": True})


async def by_mqtt(broker: Broker, user: str) -> None:
    for way, properties in (("forward", NONE), ("scheduled forward", Properties(user=((LATER, "1"),)))):
        with broker.device(user) as client:
            client.say(Publish("OPEN/F", f"mqtt {way} {user}".encode(), 1, False, False, 1, properties))
            assert client.hear_of(PacketType.PUBACK) is not None
    broker.device(user, Will("OPEN/F", f"mqtt will {user}".encode(), 1, False, NONE)).socket.close()


async def by_api(broker: Broker, user: str) -> None:
    source, admin, operator = f"OPEN.api.{user}", Operator(broker), Operator(broker, user)
    admin.change("POST", "destinations", {"kind": "queue", "name": source})
    for way, work, target in (
        ("move", "move", "S.Q"),
        ("move forward", "move", "OPEN.F"),
        ("copy forward", "copy", "OPEN.F"),
    ):
        wire = await Wire.open(broker.stomp, login="user-write", passcode="secret")
        body = f"api {way} {user}"
        wire.send("SEND", {"destination": f"/queue/{source}", "receipt": "r", "way": way}, body.encode())
        await wire.read()
        wire.close()
        operator.ask(
            "POST", f"destinations/queue/{source}/messages/{work}", {"selector": f"way = '{way}'", "to": target}
        )


WRITING: Final[dict[Callable[[Broker, str], Awaitable[None]], set[str]]] = {
    by_stomp: {
        f"stomp {way}" for way in ("send", "list", "forward", "scheduled", "scheduled list", "scheduled forward")
    },
    by_jms: {f"jms {way}" for way in ("send", "list", "forward", "scheduled", "scheduled forward", "origin")},
    by_mqtt: {f"mqtt {way}" for way in ("forward", "scheduled forward", "will")},
    by_api: {f"api {way}" for way in ("move", "move forward", "copy forward")},
}


async def test_who_may_not_write_reaches_it_by_no_protocol(broker: Broker) -> None:
    for rights in RIGHTS:
        for act in WRITING:
            await act(broker, name_of(rights))
    expected = {
        f"{way} {name_of(each)}" for each in RIGHTS if WRITE in each for ways in WRITING.values() for way in ways
    }
    admin = Operator(broker)
    async with asyncio.timeout(SECONDS_MAX):
        while len(found := admin.bodies("S.Q", limit=500)) < len(expected):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.1)
    # Behind all that was scheduled before.
    await by_stomp(broker, "user-write")
    async with asyncio.timeout(SECONDS_MAX):
        while len(found := admin.bodies("S.Q", limit=500)) < len(expected) + len(WRITING[by_stomp]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert set(found) == expected


async def test_who_may_not_read_create_or_delete_does_it_by_no_protocol(broker: Broker) -> None:
    admin = Operator(broker)
    for rights in RIGHTS:
        user = name_of(rights)
        operator = Operator(broker, user)
        assert (operator.ask("GET", "destinations/queue/S.Q/messages")[0] == 200) == (READ in rights)
        with broker.device(user) as client:
            assert (client.subscribe("S/Q") == [0]) == (READ in rights)
            assert (client.subscribe(f"S/mqtt/{user}") == [0]) == ({READ, ADMIN} <= {*rights})
        for place, may in (("S.Q", READ in rights), (f"S.stomp.{user}", {READ, ADMIN} <= {*rights})):
            wire = await Wire.open(broker.stomp, login=user, passcode="secret")
            wire.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{place}", "ack": "client", "receipt": "r"})
            assert ((await wire.read()).command == "RECEIPT") == may
            wire.close()
        answer, _ = operator.ask("POST", "destinations", {"kind": "queue", "name": f"S.api.{user}"})
        assert (answer == 200) == (ADMIN in rights)
        for name in (f"S.jms.{user}", f"S.jms2.{user}"):
            jms = broker.jms(user)
            if name.startswith("S.jms2"):
                admin.change("POST", "destinations", {"kind": "queue", "name": name})
                change = jms.delete
            else:
                change = jms.create
            with contextlib.nullcontext() if ADMIN in rights else pytest.raises(Refused, match="not authorized"):
                change(queue(name))
            jms.close()
            assert (admin.ask("GET", f"destinations/queue/{name}")[0] == 200) == (
                (ADMIN in rights) != name.startswith("S.jms2")
            )


async def test_after_a_crash_it_is_still_known_for_whom_a_message_waits(tmp_path: Path) -> None:
    with serving(Broker(tmp_path)) as (broker,):
        Operator(broker).change("POST", "destinations", {"kind": "queue", "name": "S.Q"})
        for user in ("user-write", "user-read-write"):
            wire = await Wire.open(broker.stomp, login=user, passcode="secret")
            headers = {"destination": "/queue/OPEN.F", "persistent": "true", "receipt": "r", LATER: "2000"}
            wire.send("SEND", headers, user.encode())
            assert (await wire.read()).command == "RECEIPT"
            wire.close()
        broker.kill()
        broker.write_users(without="user-read-write")
        broker.start()
        broker.wait_role("master")
        admin, letters = Operator(broker), "ActiveMQ.DLQ.Queue.OPEN.F"
        async with asyncio.timeout(SECONDS_MAX):
            while admin.ask("GET", f"destinations/queue/{letters}")[0] != 200:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
            while not admin.bodies("S.Q"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert admin.bodies("S.Q") == ["user-write"]
        assert admin.bodies(letters) == ["user-read-write"]
