"""A broker in a separate process, and requests over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.stomp_wire import Wire
from tests.support.security.passwords import cheap

SETTINGS = """\
[security]
users_file = "{users}"
failed_login_delay = 1
[admin]
viewers = ["watchers"]
operators = ["ops"]
administrators = ["admins"]

[[security.authorization]]
queue = ">"
read = ["ops", "apps"]
write = ["ops", "apps"]
admin = ["apps", "ops-admin"]
[[security.authorization]]
queue = "orders.>"
admin = ["ops"]
[[security.authorization]]
topic = ">"
write = ["ops"]
admin = ["ops"]
"""
USERS = {"vic": "watchers", "ola": "ops", "ada": "admins", "app": "apps", "sue": "others"}

Answer = tuple[int, Any]


class Operator:
    """Asks the API as one user; None: with the admin token."""

    def __init__(self, broker: BrokerProcess, user: str | None = None, **headers: str) -> None:
        self.place = f"http://127.0.0.1:{broker.admin}"
        self.headers = dict(headers)
        if user is None and not headers:
            (token,) = Path(broker.data, "index").glob("*.admin-token")
            self.headers["Authorization"] = f"Bearer {token.read_text().strip()}"
        elif user:
            self.headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:secret'.encode()).decode()}"

    def ask(self, method: str, path: str, body: Any = None, **query: object) -> Answer:
        text = urllib.parse.urlencode(query)
        headers = {"Content-Type": "application/json", **self.headers}
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.place}/api/v1/{path}{'?' if text else ''}{text}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def get(self, path: str, **query: object) -> Any:
        status, answer = self.ask("GET", path, **query)
        assert status == 200, answer
        return answer

    def change(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.ask(method, path, body)
        assert status == 200, answer
        return answer

    def queue(self, name: str) -> Any:
        return self.get(f"destinations/queue/{name}")

    def bodies(self, name: str, **query: object) -> list[str]:
        return [row["preview"] for row in self.get(f"destinations/queue/{name}/messages", **query)["items"]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker without users."""
    broker = BrokerProcess(tmp_path_factory.mktemp("api") / "data", "a").start()
    broker.wait_role("master")
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with users and rights."""
    place = tmp_path_factory.mktemp("secured")
    users, settings = place / "users", place / "tandemmq.toml"
    users.write_text("".join(f"{name}:{cheap('secret')}:{group}:\n" for name, group in USERS.items()))
    users.chmod(0o600)
    settings.write_text(SETTINGS.format(users=users))
    broker = BrokerProcess(place / "data", "a", "--config", str(settings)).start()
    broker.wait_role("master")
    yield broker
    broker.stop()


@pytest.fixture
def operator(broker: BrokerProcess) -> Operator:
    return Operator(broker)


class Clients:
    """STOMP clients of a broker, each doing one thing."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._port = broker.stomp

    def send(self, queue: str, *bodies: str, **headers: str) -> None:
        """Persistent, each with its receipt."""

        async def send() -> None:
            wire = await Wire.open(self._port, login="app", passcode="secret")
            for body in bodies:
                told = {"destination": f"/queue/{queue}", "persistent": "true", "receipt": "r", **headers}
                wire.send("SEND", told, body.encode())
                assert (await wire.read()).command == "RECEIPT"
            wire.close()

        asyncio.run(send())

    def answer(self, queue: str, count: int, word: str = "ACK") -> list[str]:
        """Take ``count`` messages, and answer each. Return their bodies."""

        async def take() -> list[str]:
            wire = await Wire.open(self._port, login="app", passcode="secret")
            wire.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{queue}", "ack": "client-individual"})
            bodies: list[str] = []
            receipts = 0
            while receipts < count:
                frame = await wire.read()
                if frame.command == "RECEIPT":
                    receipts += 1
                elif len(bodies) < count:
                    bodies.append(frame.body.decode())
                    wire.send(word, {"id": frame.headers["ack"], "receipt": "r"})
            wire.close()
            return bodies

        return asyncio.run(asyncio.wait_for(take(), 30))


@pytest.fixture
def clients(broker: BrokerProcess) -> Clients:
    return Clients(broker)
