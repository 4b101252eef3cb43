"""A broker for the console's tests: one user for each role, queues with messages, and dead letters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.stomp_wire import Wire
from tests.support.security.passwords import cheap

USERS = {"vera": "viewers", "otto": "operators", "ada": "admins", "shop": "shops"}
HOSTILE = "<img src=x onerror=alert(1)>"
SETTINGS = """\
[security]
users_file = "{users}"
allow_anonymous = "false"

[[security.authorization]]
queue = ">"
read = ["*"]
write = ["*"]
admin = ["*"]

[[security.authorization]]
topic = ">"
read = ["*"]
write = ["*"]

[[destinations]]
queue = "FULL"
memory_limit = 20000

[admin]
viewers = ["viewers"]
operators = ["operators"]
administrators = ["admins"]
"""


class ConsoleBroker(BrokerProcess):
    """A broker with a web console. The password of each user is the name of the user, followed by ``secret``."""

    def __init__(self, directory: Path, name: str = "one") -> None:
        settings, users = directory / "tandemmq.toml", directory / "users"
        if not settings.exists():
            users.write_text("".join(f"{user}:{cheap(user + ' secret')}:{groups}:\n" for user, groups in USERS.items()))
            users.chmod(0o600)
            settings.write_text(SETTINGS.format(users=users))
        super().__init__(directory / "data", name, "--config", str(settings))


class Letters:
    """Messages of the shop: some in ORDERS, some in a queue with a hostile name, and dead letters of BILLING."""

    ORDERS, STRANGE, DIED = 60, 3, 12
    SENT = ORDERS + STRANGE + DIED
    LEFT = SENT
    DEAD = "ActiveMQ.DLQ.Queue.BILLING"

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self, **headers: str) -> Wire:
        return await Wire.open(self._port, login="shop", passcode="shop secret", **headers)

    async def write(self) -> None:
        shop = await self.open()
        queues = [("ORDERS", self.ORDERS), (HOSTILE, self.STRANGE), ("BILLING", self.DIED)]
        for queue, number in queues:
            for each in range(number):
                headers = {"destination": f"/queue/{queue}", "persistent": "true", "receipt": "sent", HOSTILE: HOSTILE}
                headers["region"] = "EU" if each % 2 else "US"
                shop.send("SEND", headers, f"{HOSTILE} number {each}".encode())
                await shop.read()
        await self.refuse(shop, "BILLING", self.DIED)
        shop.close()

    async def refuse(self, wire: Wire, queue: str, number: int) -> None:
        """Reject ``number`` messages of a queue, so that they become dead letters."""
        wire.send("SUBSCRIBE", {"destination": f"/queue/{queue}", "id": queue, "ack": "client-individual"})
        for _ in range(number):
            frame = await wire.read()
            wire.send("NACK", {"id": frame.headers["ack"]})
        wire.send("UNSUBSCRIBE", {"id": queue, "receipt": "over"})
        while (await wire.read()).command != "RECEIPT":
            pass

    async def blocked_producer(self) -> Wire:
        """Return a producer that waits, because FULL has room for only one of its messages."""
        wire = await self.open(**{"client-id": "eager"})
        for _ in range(3):
            wire.send("SEND", {"destination": "/queue/FULL"}, b"x" * 15_000)
        await wire.flush()
        return wire

    @asynccontextmanager
    async def slow_consumer(self) -> AsyncIterator[Wire]:
        """Yield a consumer that takes three messages of ORDERS and does not acknowledge them."""
        wire = await self.open(**{"client-id": "slow-reader"})
        headers = {"destination": "/queue/ORDERS", "id": "1", "ack": "client-individual", "activemq.prefetchSize": "3"}
        wire.send("SUBSCRIBE", headers)
        for _ in range(3):
            await wire.read()
        yield wire
        wire.close()
