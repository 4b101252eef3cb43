"""The client of a story over STOMP 1.2."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from tests.support.acceptance.stomp_wire import Frame, Wire
from tests.support.ledger.book import now_ms
from tests.support.ledger.client import WAIT_SECONDS_MAX, Client, Message, Received, Subscription

Answer = TypeVar("Answer")
# Headers that are not properties.
_OWN = frozenset((
    "destination", "message-id", "subscription", "ack", "content-length", "content-type", "priority", "timestamp",
    "expires", "persistent", "redelivered", "type", "correlation-id", "reply-to", "receipt",
))  # fmt: skip


class StompClient(Client):
    """One connection for queues, and one for each durable subscription in use."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._runner = asyncio.Runner()
        self._numbers = 0
        self._open: list[tuple[Wire, str]] = []
        self._waiting: list[tuple[Wire, Frame]] = []
        self._wire = self._do(Wire.open(port))

    def close(self) -> None:
        self._do(self._call(self._wire, "DISCONNECT", {}))
        self._wire.close()
        self._runner.close()

    def send(self, to: str, messages: Sequence[Message], transaction: str | None) -> list[str]:
        self._do(self._send(to, messages, transaction))
        return []

    def begin(self, transaction: str, *, is_branch: bool = False) -> None:
        self._do(self._call(self._wire, "BEGIN", {"transaction": transaction}))

    def prepare(self, transaction: str) -> None:
        raise AssertionError("STOMP has no branches")

    def end(self, transaction: str, *, is_commit: bool, is_branch: bool = False) -> None:
        self._do(self._call(self._wire, "COMMIT" if is_commit else "ABORT", {"transaction": transaction}))

    def receive(
        self, source: str, count: int, selector: str | None = None, subscription: Subscription | None = None,
        transaction: str | None = None,
    ) -> list[Received]:  # fmt: skip
        return self._do(self._receive(source, count, selector, subscription))

    def acknowledge(self, received: Received, transaction: str | None) -> None:
        wire, headers = received.handle
        wanted = {} if transaction is None else {"transaction": transaction}
        self._do(self._call(wire, "ACK", {"id": headers["ack"], **wanted}))

    def refuse(self, received: Received) -> None:
        wire, headers = received.handle
        self._do(self._call(wire, "NACK", {"id": headers["ack"]}))

    def release(self) -> None:
        self._do(self._release())

    def subscribe(self, subscription: Subscription) -> None:
        self._do(self._receive(subscription.topic, 0, None, subscription))
        self.release()

    def unsubscribe(self, subscription: Subscription) -> None:
        self._do(self._unsubscribe(subscription))

    # ---- frames

    def _do(self, what: Awaitable[Answer]) -> Answer:
        async def bounded() -> Answer:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                return await what

        return self._runner.run(bounded())

    async def _send(self, to: str, messages: Sequence[Message], transaction: str | None) -> None:
        for number, message in enumerate(messages):
            headers = {
                "destination": to.replace("queue://", "/queue/").replace("topic://", "/topic/"),
                "persistent": str(message.persistent).lower(),
                "priority": str(message.priority),
                **message.properties,
            }
            if message.kind != "text":
                headers["content-length"] = str(len(message.body))
            if message.ttl_ms:
                headers["expires"] = str(now_ms() + message.ttl_ms)
            if transaction is not None:
                headers["transaction"] = transaction
            if number == len(messages) - 1:
                headers["receipt"] = self._name()
            self._wire.send("SEND", headers, message.body.encode())
        await self._receipt(self._wire)

    async def _receive(
        self, source: str, count: int, selector: str | None, subscription: Subscription | None
    ) -> list[Received]:
        wire, name = self._wire, self._name()
        headers = {
            "id": name, "ack": "client-individual", "activemq.prefetchSize": str(max(1, count)),
            "destination": source.replace("queue://", "/queue/").replace("topic://", "/topic/"),
        }  # fmt: skip
        if subscription is not None:
            wire = await Wire.open(self._port, **{"client-id": subscription.client})
            headers["activemq.subscriptionName"] = subscription.name
            selector = subscription.selector
        if selector is not None:
            headers["selector"] = selector
        await self._call(wire, "SUBSCRIBE", headers)
        self._open = [*self._open, (wire, name)]
        found = []
        while len(found) < count:
            frame = await self._message(wire)
            if frame.headers["subscription"] == name:
                found.append(_received(wire, frame))
        return found

    async def _release(self) -> None:
        for wire, name in self._open:
            await self._call(wire, "UNSUBSCRIBE" if wire is self._wire else "DISCONNECT", {"id": name})
            if wire is not self._wire:
                wire.close()
        self._open = []

    async def _unsubscribe(self, subscription: Subscription) -> None:
        wire = await Wire.open(self._port, **{"client-id": subscription.client})
        headers = {"id": self._name(), "activemq.subscriptionName": subscription.name}
        await self._call(wire, "UNSUBSCRIBE", {**headers, "durable-subscription-name": subscription.name})
        await self._call(wire, "DISCONNECT", {})
        wire.close()

    async def _call(self, wire: Wire, command: str, headers: dict[str, str]) -> None:
        wire.send(command, {**headers, "receipt": self._name()})
        await self._receipt(wire)

    async def _receipt(self, wire: Wire) -> None:
        """Wait for the receipt of the last call. Messages that come in the meantime are kept."""
        wanted = str(self._numbers)
        await wire.flush()
        while True:
            frame = await wire.read()
            if frame.command == "RECEIPT" and frame.headers["receipt-id"] == wanted:
                return
            assert frame.command in ("MESSAGE", "RECEIPT"), frame
            if frame.command == "MESSAGE":
                self._waiting.append((wire, frame))

    async def _message(self, wire: Wire) -> Frame:
        for number, (owner, frame) in enumerate(self._waiting):
            if owner is wire:
                del self._waiting[number]
                return frame
        frame = await wire.read()
        assert frame.command == "MESSAGE", frame
        return frame

    def _name(self) -> str:
        self._numbers += 1
        return str(self._numbers)


def _received(wire: Wire, frame: Frame) -> Received:
    properties: dict[str, Any] = {name: value for name, value in frame.headers.items() if name not in _OWN}
    return Received(frame.headers["message-id"], frame.body.decode(), properties, (wire, frame.headers))
