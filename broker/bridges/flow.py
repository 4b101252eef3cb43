"""The messages of one bridge, between the engine and the other broker: the bridge's client of the engine, its beginning
and its end.

The state that a bridge needs after a crash is in its queue, ActiveMQ.MQTT.Bridge.<name>, like the state of a stored
session: each record is a message. Records and messages change together in one transaction, and the next master reads
the records (docs/bridges.md). One record has the subscriptions here and at the other broker. So the next master ends
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

#: Characters of the id that distinguishes this bridge from those of other brokers.
ID_CHARACTERS: Final = 12


def queue_of(name: str) -> Destination:
    """Return the queue that keeps the state of a bridge."""
    return Destination(DestinationKind.QUEUE, MQTT_BRIDGE + quote(name, safe=""))


class Flow(InProcessClient):
    """Flow of one bridge. Call ``begin`` first; then, for each connection to the other broker, ``attach``, the methods
    for its packets, and ``detach``. When the engine disconnects, ``is_over`` is set, and all waiting calls fail. On the
    loop.

    ``message_ids``: prefix of the ids of its messages, used only once. ``retains``: returns whether a retained message
    of this size can be kept.
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
        self._subscribed = Subscribed(link, self._kept)
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
            await self.remember(Begun(begun.remote, wanted, self._link.id))
        for each in self._sending.subscribe_commands():
            await self.do(each)

    def _found(self, tag: int, message: Message) -> None:
        """Take over a record that was there."""
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
            log.warning("bridge %s: a record of its own: %s", self._name, error, extra=log_events.BRIDGE_FAILED)
            self._kept.is_stale(tag)

    async def _end_durable(self, name: str) -> None:
        """End a durable subscription whose topic was removed from the settings."""
        count = self._gathered(name)
        if count:
            log.warning(
                "bridge %s: %s is not in its topics any more: %d messages that waited for the other broker are deleted",
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
    def begun(self) -> Begun:
        """Subscriptions that the bridge has begun, as they were last recorded."""
        return self._subscribed.begun

    async def remember(self, begun: Begun) -> None:
        """Record what has begun. Return when it is durable."""
        commands, commit = self._subscribed.remember_commands(begun)
        for each in commands:
            self._engine.handle(self, each)
        await self.do(commit)

    def end(self) -> None:
        """End: nothing more is done."""
        if self._has_ended:
            return
        self._has_ended = True
        self._link.end()
        if not self.is_over.is_set():
            for id in self._sending.ids:
                if self.client is not None and id in self.client.subscriptions:
                    self._engine.handle(self, Unsubscribe(id, seen=0))  # no failure of the messages
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
        """Number of messages for the other broker that are in memory, with those on their way."""
        return self._sending.waiting

    def attach(self, remote: Remote, *, is_resumed: bool, receive_maximum: int) -> None:
        """Begin with an accepted connection, before any other event of it. ``is_resumed``: the other broker still had
        the session; ``receive_maximum``: number of messages that it takes at once."""
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
        """Handle the end of a connection."""
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
class Begun:
    """``remote``: the topic filters that the other broker has confirmed, with their QoS; ``local``: the names of the
    durable subscriptions here; ``id``: the bridge's, unique among all brokers (broker.bridges.link)."""

    remote: dict[str, int] = field(default_factory=dict)
    local: list[str] = field(default_factory=list)
    id: str = ""

    def encode(self) -> bytes:
        fields = {"remote": self.remote, "local": self.local, "id": self.id}
        return json.dumps(fields, ensure_ascii=False).encode()

    @staticmethod
    def decode(body: bytes) -> Begun:
        """Raises RecordUnreadable."""
        try:
            fields = json.loads(body)
            remote = {str(name): int(qos) for name, qos in fields["remote"].items()}
            return Begun(remote, [str(name) for name in fields["local"]], str(fields.get("id", "")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordUnreadable(f"subscribed: {error}") from error


class Subscribed:
    """Keeps the record. ``begun``: its last content."""

    def __init__(self, owner: RecordOwner, kept: KeptRecords) -> None:
        self._owner = owner
        self._kept = kept
        self._record: Record | None = None
        self.begun = Begun()

    def found(self, body: bytes, tag: int) -> None:
        """Take over a record. Raises RecordUnreadable."""
        self.begun = Begun.decode(body)
        if self._record is not None:
            self._kept.is_stale(self._record.tag)
        self._record = Record(tag)

    def remember_commands(self, begun: Begun) -> tuple[list[Command], Commit]:
        """Return the commands that replace the former record, and the end of that transaction."""
        former, name = self._record, self._owner.next_transaction()
        self.begun = begun
        message, self._record = self._kept.keep(Kind.SUBSCRIBED, begun.encode())
        commands: list[Command] = [Begin(name), Send(message, name)]
        if former is not None and former.tag:
            commands.append(Ack(STATE, former.tag, name))
        elif former is not None:
            self._kept.drop(former)  # when it comes back
        return commands, Commit(name)
