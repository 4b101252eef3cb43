"""Flow: the client of the engine that passes the messages of one bridge between the engine and the other broker.

The state that a bridge needs after a crash is in its queue, ActiveMQ.MQTT.Bridge.<name>. Each record is a message, as
in a stored session. Records and messages change in one transaction, and the next master reads the records
(docs/bridges.md). One record contains the subscriptions here and at the other broker. So the next master ends
subscriptions that are not in the settings any more, and does not subscribe twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from tandemmq import log_events
from tandemmq.broker.bridges.link import Counts, Link, Remote, Topic, local_client_id, principal_of
from tandemmq.broker.bridges.receiving import Receiving
from tandemmq.broker.bridges.sending import Sending
from tandemmq.broker.core.commands import (
    Ack,
    AckMode,
    Begin,
    ClientError,
    Command,
    Commit,
    Connect,
    ErrorKind,
    Send,
    Unsubscribe,
)
from tandemmq.broker.core.names import MQTT_BRIDGE
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient, tell
from tandemmq.broker.protocols.mqtt.conversation import Receipt
from tandemmq.broker.protocols.mqtt.packets import PacketType, Publish
from tandemmq.broker.protocols.mqtt.qos2 import OutgoingRecord, packet_id_of
from tandemmq.broker.protocols.mqtt.session_records import (
    STATE,
    KeptRecords,
    Kind,
    Record,
    RecordOwner,
    RecordUnreadable,
)
from tandemmq.store.records.message import Destination, DestinationKind, Message

log = logging.getLogger(__name__)

#: Number of characters of a bridge's id, which is unique among the bridges of all brokers.
ID_CHARACTERS: Final = 12


def queue_of(name: str) -> Destination:
    """Return the queue with the records of a bridge."""
    return Destination(DestinationKind.QUEUE, MQTT_BRIDGE + quote(name, safe=""))


class Flow(InProcessClient):
    """Flow of one bridge. Call ``begin`` first; then, for each connection to the other broker, ``attach``, the methods
    for its packets, and ``detach``. When the engine disconnects this client, ``is_over`` is set, and all waiting calls
    fail. Runs on the loop.

    ``message_ids``: prefix of the ids of its messages, used by only one flow. ``retains``: see ``Hooks.may_retain``.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        client_id: str,
        topics: Sequence[Topic],
        message_ids: str,
        *,
        counts: Counts,
        clock: Callable[[], int],
        window: int,
        retains: Callable[[Destination, int], int] = lambda topic, size: 1,
    ) -> None:
        self._name = name
        self._client_id = local_client_id(client_id)
        self._link = link = Link(
            name,
            message_ids,
            counts,
            clock,
            handle=lambda command: engine.handle(self, command),
            hang_up=lambda: self.close(),
        )
        self._kept = KeptRecords(link)
        self._sending = Sending(link, self._kept, topics, window, self._gathered)
        self._receiving = Receiving(link, self._kept, topics, retains)
        self._subscribed = SubscriptionsRecord(link, self._kept)
        self._is_paused = False
        self._is_loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_ended = False
        self.is_over = asyncio.Event()
        super().__init__(engine, principal_of(name), f"bridge-{name}", f"bridge: {name}")

    # ---- beginning and end

    async def begin(self) -> None:
        """Read the records, and begin to collect messages for the other broker. Raises ClientError."""
        queue = queue_of(self._name)
        await self.enter(Connect(self._client_id, state=queue, steals_client_id=True))
        self._kept.begin(queue, self._link.give_up)
        self._kept.read_all(self._found, lambda: tell(self._is_loaded, None), self._link.give_up)
        await self.await_answer(self._is_loaded)
        self._link.later(*self._kept.sweep())
        begun, wanted = self.begun, self._sending.durable_names
        self._link.id = begun.id or uuid4().hex[:ID_CHARACTERS]
        for name in begun.local:
            if name not in wanted:
                await self._end_durable(name)
        if wanted != begun.local or not begun.id:
            await self.store(StoredSubscriptions(begun.remote, wanted, self._link.id))
        for each in self._sending.subscribe_commands():
            await self.do(each)

    def _found(self, tag: int, message: Message) -> None:
        """Process a stored record."""
        try:
            match message.type:
                case Kind.SUBSCRIBED:
                    self._subscribed.found(message.body, tag)
                case Kind.INCOMING:
                    self._receiving.found(packet_id_of(message.body), tag)
                case Kind.OUTGOING:
                    self._sending.found_outgoing(OutgoingRecord.decode(message), tag)
                case Kind.RELEASED:
                    self._sending.found_released(packet_id_of(message.body), tag)
                case Kind.MARK:
                    self._kept.is_stale(tag)
                case _:
                    raise RecordUnreadable(f"unknown kind {message.type!r}")
        except RecordUnreadable as error:
            log.warning(
                "bridge %s: one of its records is invalid: %s", self._name, error, extra=log_events.BRIDGE_FAILED
            )
            self._kept.is_stale(tag)

    async def _end_durable(self, name: str) -> None:
        """Delete a durable subscription whose topic was removed from the settings."""
        count = self._gathered(name)
        if count:
            log.warning(
                "bridge %s: %s is no longer one of its topics: %d messages that waited for the other broker "
                "are deleted",
                self._name, name, count, extra=log_events.BRIDGE_TOPIC_ENDED,
            )  # fmt: skip
        try:
            await self.do(Unsubscribe(None, durable_name=name))
        except ClientError as error:
            if error.kind is not ErrorKind.DESTINATION:  # a topic that never existed has no subscription
                raise

    def _gathered(self, name: str) -> int:
        return self._engine.inventory.gathered(self._client_id, name)

    @property
    def begun(self) -> StoredSubscriptions:
        """Subscriptions of the bridge, as last stored."""
        return self._subscribed.begun

    async def store(self, begun: StoredSubscriptions) -> None:
        """Store the subscriptions of the bridge; durable on return."""
        commands, commit = self._subscribed.store_commands(begun)
        for each in commands:
            self._engine.handle(self, each)
        await self.do(commit)

    def end(self) -> None:
        """End the flow: it no longer calls the engine."""
        if self._has_ended:
            return
        self._has_ended = True
        self._link.end()
        if not self.is_over.is_set():
            for id in self._sending.ids:
                if self.client is not None and id in self.client.subscriptions:
                    self._engine.handle(
                        self, Unsubscribe(id, seen=0)
                    )  # not counted as a failed delivery of the messages
        self.is_over.set()
        self._engine.closed(self)

    def close(self, after_flush: bool = True) -> None:
        super().close(after_flush)
        self._link.end()
        self.is_over.set()

    def awaited(self) -> list[asyncio.Future[Any]]:
        return [*super().awaited(), self._is_loaded]

    # ---- events of the engine

    def stop_reading(self) -> None:
        self._is_paused = True
        if self._link.remote is not None:
            self._link.remote.pause()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._link.remote is not None:
            self._link.remote.resume()

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        """Handle a message for the other broker, or a record of the bridge itself."""
        if subscription_id != STATE:
            return self._sending.deliver(subscription_id, tag, message)
        self._kept.deliver(tag, message)
        return None

    def receipt(self, receipt: Any) -> None:
        if isinstance(receipt, Receipt):
            receipt.done()
        else:
            super().receipt(receipt)

    def fail(self, error: ClientError) -> None:
        if isinstance(error.receipt, Receipt):
            error.receipt.failed(error)
        elif error.receipt is not None:
            super().fail(error)
        else:
            self._link.refused(error)

    # ---- events of the connection to the other broker (broker.bridges.remote)

    @property
    def waiting(self) -> int:
        """Number of messages for the other broker that are in memory, including unacknowledged ones."""
        return self._sending.waiting

    def attach(self, remote: Remote, *, is_resumed: bool, receive_maximum: int) -> None:
        """Use an accepted connection. Call it before any other event of the connection. ``is_resumed``: the other
        broker has resumed the session. ``receive_maximum``: its Receive Maximum."""
        if self.is_over.is_set():
            return
        if not is_resumed:
            self._receiving.forget_session()
            self._sending.forget_session()
        self._link.remote = remote
        if self._is_paused:
            remote.pause()
        self._sending.attach(receive_maximum)

    def detach(self, remote: Remote) -> None:
        """Stop using a connection that has ended."""
        if self._link.remote is remote:
            self._link.remote = None

    def published(self, packet: Publish) -> None:
        """Handle a message of the other broker."""
        self._receiving.published(packet)

    def released(self, packet_id: int) -> None:
        """Handle PUBREL."""
        self._receiving.released(packet_id)

    def acknowledged(self, type: PacketType, packet_id: int, reason: int = 0) -> None:
        """Handle PUBACK, PUBREC or PUBCOMP."""
        self._sending.acknowledged(type, packet_id, reason)


@dataclass(slots=True, eq=False)
class StoredSubscriptions:
    """Stored subscriptions of a bridge. ``remote``: topic filters that the other broker has confirmed, with their QoS.
    ``local``: names of the durable subscriptions here. ``id``: id of the bridge, unique among all brokers
    (broker.bridges.link)."""

    remote: dict[str, int] = field(default_factory=dict)
    local: list[str] = field(default_factory=list)
    id: str = ""

    def encode(self) -> bytes:
        fields = {"remote": self.remote, "local": self.local, "id": self.id}
        return json.dumps(fields, ensure_ascii=False).encode()

    @staticmethod
    def decode(body: bytes) -> StoredSubscriptions:
        """Decode the body of the record. Raises RecordUnreadable."""
        try:
            fields = json.loads(body)
            remote = {str(name): int(qos) for name, qos in fields["remote"].items()}
            return StoredSubscriptions(remote, [str(name) for name in fields["local"]], str(fields.get("id", "")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordUnreadable(f"subscribed: {error}") from error


class SubscriptionsRecord:
    """The record of a bridge's subscriptions. ``begun``: its last content."""

    def __init__(self, owner: RecordOwner, kept: KeptRecords) -> None:
        self._owner = owner
        self._kept = kept
        self._record: Record | None = None
        self.begun = StoredSubscriptions()

    def found(self, body: bytes, tag: int) -> None:
        """Process the stored record. Raises RecordUnreadable."""
        self.begun = StoredSubscriptions.decode(body)
        if self._record is not None:
            self._kept.is_stale(self._record.tag)
        self._record = Record(tag)

    def store_commands(self, begun: StoredSubscriptions) -> tuple[list[Command], Commit]:
        """Return the commands that replace the former record, and the Commit that must end their transaction."""
        former, name = self._record, self._owner.next_transaction()
        self.begun = begun
        message, self._record = self._kept.keep(Kind.SUBSCRIBED, begun.encode())
        commands: list[Command] = [Begin(name), Send(message, name)]
        if former is not None and former.tag:
            commands.append(Ack(STATE, former.tag, name))
        elif former is not None:
            self._kept.drop(former)  # removed when it is delivered
        return commands, Commit(name)
