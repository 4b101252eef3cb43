"""The messages of one bridge, between the engine and the other broker: their client of the engine, its beginning and
its end.

What a bridge has to know after a crash lies in a queue of its own, ActiveMQ.MQTT.Bridge.<name>, as a stored session
lies in its own: records as messages, which change together with the messages in one transaction, and which the next
master finds (docs/bridges.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from tandemmq import log_events
from tandemmq.broker.bridges.link import Counts, Link, Remote, local_client_id, principal_of
from tandemmq.broker.bridges.mapping import Topic
from tandemmq.broker.bridges.receiving import Receiving
from tandemmq.broker.bridges.sending import Sending
from tandemmq.broker.bridges.subscribed import Begun, Subscribed
from tandemmq.broker.core.commands import AckMode, ClientError, Connect, ErrorKind, Unsubscribe
from tandemmq.broker.core.names import MQTT_BRIDGE
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.in_process import InProcessClient, tell
from tandemmq.broker.protocols.mqtt.conversation import Waiting
from tandemmq.broker.protocols.mqtt.kept_records import STATE, KeptRecords
from tandemmq.broker.protocols.mqtt.packets import PacketType, Publish
from tandemmq.broker.protocols.mqtt.session_records import Kind, OutgoingRecord, RecordUnreadable, packet_id_of
from tandemmq.store.records.message import Destination, DestinationKind, Message

log = logging.getLogger(__name__)

#: Of the id by which bridges of other brokers do not take this one for theirs.
ID_CHARACTERS: Final = 12


def queue_of(name: str) -> Destination:
    """Where the state of a bridge is kept."""
    return Destination(DestinationKind.QUEUE, MQTT_BRIDGE + quote(name, safe=""))


class Flow(InProcessClient):
    """``begin`` first; then ``came`` and ``went`` for each connection to the other broker, and what that says in
    between. When the engine hangs up, ``is_over`` is set, and all that waits fails. On the loop.

    ``message_ids`` begins the ids of its messages, and is given once. ``retains``: whether a retained message of so
    many bytes has room.
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

    # ---- its beginning and end

    async def begin(self) -> None:
        """Find what was there, and have what goes out gathered from now on. Raises ClientError."""
        queue = queue_of(self._name)
        await self.enter(Connect(self._client_id, state=queue, steals_client_id=True))
        self._kept.begin(queue, self._link.give_up)
        self._kept.look(self._found, lambda: tell(self._is_loaded, None), self._link.give_up)
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
        """A record that was there."""
        try:
            match message.type:
                case Kind.SUBSCRIBED:
                    self._subscribed.found(message.body, tag)
                case Kind.INCOMING:
                    self._receiving.found(packet_id_of(message.body), tag)
                case Kind.OUTGOING:
                    self._sending.found_outgoing(OutgoingRecord.decode(message.body), tag)
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
        """Its topic was taken out of the settings."""
        count = self._gathered(name)
        if count:
            log.warning(
                "bridge %s: %s is not in its topics any more: %d messages that waited for the other broker are deleted",
                self._name, name, count, extra=log_events.BRIDGE_TOPIC_ENDED,
            )  # fmt: skip
        try:
            await self.do(Unsubscribe(None, durable_name=name))
        except ClientError as error:
            if error.kind is not ErrorKind.DESTINATION:  # of topics that never were there is nothing
                raise

    def _gathered(self, name: str) -> int:
        return self._engine.inventory.gathered(self._client_id, name)

    @property
    def begun(self) -> Begun:
        """What it has begun, as it was kept last."""
        return self._subscribed.begun

    async def remember(self, begun: Begun) -> None:
        """Returns when it is durable."""
        commands, commit = self._subscribed.remember_commands(begun)
        for each in commands:
            self._engine.handle(self, each)
        await self.do(commit)

    def end(self) -> None:
        """Nothing more is done."""
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

    # ---- what the engine says

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
        """A message that is to go out, or a record of the bridge's own."""
        if subscription_id != STATE:
            return self._sending.deliver(subscription_id, tag, message)
        self._kept.deliver(tag, message)
        return None

    def receipt(self, receipt: Any) -> None:
        if isinstance(receipt, Waiting):
            receipt.done()
        else:
            super().receipt(receipt)

    def fail(self, error: ClientError) -> None:
        if isinstance(error.receipt, Waiting):
            error.receipt.failed(error)
        elif error.receipt is not None:
            super().fail(error)
        else:
            self._link.refused(error)

    # ---- what the connection to the other broker says (broker.bridges.remote.Receiver)

    @property
    def waiting(self) -> int:
        """Messages that are here for the other broker, as far as they are in memory, and those on their way."""
        return self._sending.waiting

    def came(self, remote: Remote, *, is_resumed: bool, receive_maximum: int) -> None:
        """A connection was accepted. ``is_resumed``: with the session that the other broker had; ``receive_maximum``:
        so much it takes at once. Before it says anything else."""
        if self.is_over.is_set():
            return
        if not is_resumed:
            self._receiving.forget_session()
            self._sending.forget_session()
        self._link.remote = remote
        if self._is_paused:
            remote.pause()
        self._sending.came(receive_maximum)

    def went(self, remote: Remote) -> None:
        """It is over."""
        if self._link.remote is remote:
            self._link.remote = None

    def published(self, packet: Publish) -> None:
        """The other broker sent a message."""
        self._receiving.published(packet)

    def released(self, packet_id: int) -> None:
        """PUBREL came."""
        self._receiving.released(packet_id)

    def acknowledged(self, type: PacketType, packet_id: int, reason: int = 0) -> None:
        """PUBACK, PUBREC or PUBCOMP came."""
        self._sending.acknowledged(type, packet_id, reason)
