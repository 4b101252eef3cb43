"""Incoming messages: from the other broker to this broker.

    PUBLISH -> message and packet id stored, in one transaction -> PUBREC -> PUBREL -> packet id away -> PUBCOMP

So the other broker gets a confirmation only when the message is durable here, and a repeated packet id does not store
the message twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandemmq import log_events
from tandemmq.broker.bridges.link import (
    ADVISORIES,
    Link,
    Remote,
    Topic,
    must_stop,
    passed_bridges,
    topic_of_remote,
    with_passed,
)
from tandemmq.broker.core.commands import Begin, ClientError, Commit, ErrorKind, Send
from tandemmq.broker.protocols.mqtt.conversation import Receipt, ignore, nothing
from tandemmq.broker.protocols.mqtt.messages import BRIDGE, message_of, to_retain
from tandemmq.broker.protocols.mqtt.packets import PacketType, Publish
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError
from tandemmq.broker.protocols.mqtt.session_records import KeptRecords, Kind, Record
from tandemmq.broker.protocols.mqtt.topics import check_topic, destination_of
from tandemmq.store.records.message import Destination, Message

log = logging.getLogger(__name__)

# Kinds of temporary refusals by the engine: the message is not confirmed, and the other broker sends it again.
_TEMPORARY: Final = (ErrorKind.RESOURCE, ErrorKind.STATE, ErrorKind.TIMEOUT, ErrorKind.TAKEN_OVER)


@dataclass(slots=True, eq=False)
class _Exchange:
    """State of a packet id of QoS 2 of the other broker. ``remote``: the connection that waits for an answer."""

    record: Record
    remote: Remote | None
    is_stored: bool = False
    is_releasing: bool = False


class Receiving:
    """Stores the messages of the other broker. ``retains``: see ``Hooks.may_retain``."""

    def __init__(
        self, link: Link, kept: KeptRecords, topics: Sequence[Topic], retains: Callable[[Destination, int], int]
    ) -> None:
        self._link = link
        self._kept = kept
        self._topics = topics
        self._retains = retains
        self._exchanges: dict[int, _Exchange] = {}

    def found(self, packet_id: int, tag: int) -> None:
        """Process a stored record: the message with this packet id was stored."""
        former = self._exchanges.get(packet_id)
        if former is not None:
            self._kept.is_stale(former.record.tag)
        self._exchanges[packet_id] = _Exchange(Record(tag), None, is_stored=True)

    def forget_session(self) -> None:
        """Forget all packet ids. The other broker has a new session, in which they identify new messages."""
        for exchange in self._exchanges.values():
            if not exchange.is_releasing:
                self._link.later(*self._kept.drop(exchange.record))
        self._exchanges.clear()

    # ---- PUBLISH

    def published(self, packet: Publish) -> None:
        """Store a message. It is confirmed when it is durable here."""
        link, qos, packet_id = self._link, packet.qos, packet.packet_id
        remote = link.remote
        if remote is None:
            return  # the connection is being closed
        if qos == 2 and (known := self._exchanges.get(packet_id)) is not None:
            known.remote = remote
            if known.is_stored:
                remote.acknowledge(PacketType.PUBREC, packet_id)
            return
        destination = self._destination(packet.topic)
        is_circled = must_stop(passed_bridges(packet.properties), link.id)
        if is_circled:
            link.note_circle(packet.topic)
        if destination is None or is_circled:
            self._confirm(remote, packet)
            return
        packet = replace(packet, properties=with_passed(packet.properties, link.id))
        now = link.clock()
        message = self._marked(message_of(packet, destination, link.next_message_id(), now))
        beside: list[Message] = []
        if packet.retain:
            number = self._retains(destination, message.size if packet.payload else 0)
            # If a limit is reached, the message is sent but not retained, and the former retained message of the topic
            # is removed.
            kept_packet = packet if number else replace(packet, payload=b"")
            beside.append(self._marked(to_retain(kept_packet, destination, link.next_message_id(), now, number)))
        receipt = Receipt(nothing, ignore)
        if qos == 1:
            receipt = Receipt(lambda: self._stored(remote, packet), lambda error: self._refused(remote, packet, error))
        elif qos == 2:
            record, kept = self._kept.keep(Kind.INCOMING, b"%d" % packet_id)
            beside.append(record)
            exchange = self._exchanges[packet_id] = _Exchange(kept, remote)

            def failed(error: ClientError) -> None:
                self._kept.was_refused(record)
                if self._exchanges.get(packet_id) is exchange:
                    del self._exchanges[packet_id]
                self._refused(remote, packet, error)

            receipt = Receipt(lambda: self._stored_once(packet_id, exchange), failed)
        else:
            link.counts.received += 1
        if not beside:
            link.later(Send(message, None, receipt if qos else None))
            return
        name = link.next_transaction()
        link.later(Begin(name), *(Send(each, name) for each in (message, *beside)), Commit(name, receipt))

    def _destination(self, remote_name: str) -> Destination | None:
        """Return the destination for a remote topic. None: the topic is only in former settings, or only brokers may
        publish to it."""
        topic = topic_of_remote(self._topics, remote_name)
        if topic is None:
            return None
        name = topic.local_name(remote_name)
        try:
            check_topic(name)
        except MqttError:
            return None
        return None if name.startswith(("$", ADVISORIES)) else destination_of(name)

    def _marked(self, message: Message) -> Message:
        """Mark a message, so that this bridge does not send it back."""
        properties = message.properties
        assert properties is not None, "a converted PUBLISH has properties"
        properties[BRIDGE] = self._link.name
        return message

    # ---- results

    def _confirm(self, remote: Remote, packet: Publish) -> None:
        """Confirm a message, but only on the connection on which it arrived: on another one, the packet id identifies
        another message."""
        if packet.qos and self._link.remote is remote:
            remote.acknowledge(PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC, packet.packet_id)

    def _stored(self, remote: Remote, packet: Publish) -> None:
        self._link.counts.received += 1
        self._confirm(remote, packet)

    def _stored_once(self, packet_id: int, exchange: _Exchange) -> None:
        self._link.counts.received += 1
        exchange.is_stored = True
        if exchange.remote is self._link.remote:
            self._link.answer(PacketType.PUBREC, packet_id)

    def _refused(self, remote: Remote, packet: Publish, error: ClientError) -> None:
        link = self._link
        error = link.reason_of(error)
        if error.kind in _TEMPORARY:
            link.give_up(error)  # not confirmed: the other broker sends it again on the next connection
            return
        log.warning(
            "bridge %s: a message to %s is refused: %s",
            link.name, packet.topic, error.message, extra=log_events.BRIDGE_REFUSED,
        )  # fmt: skip
        link.counts.refused += 1
        self._confirm(remote, packet)

    # ---- PUBREL

    def released(self, packet_id: int) -> None:
        """Handle PUBREL. The packet id is free when the removal of its record is durable."""
        link = self._link
        exchange = self._exchanges.get(packet_id)
        if exchange is None:
            link.answer(PacketType.PUBCOMP, packet_id)
            return
        exchange.remote = link.remote
        if exchange.is_stored and not exchange.is_releasing:
            exchange.is_releasing = True
            receipt = Receipt(lambda: self._released(packet_id, exchange), link.give_up)
            link.later(*self._kept.drop(exchange.record, receipt))

    def _released(self, packet_id: int, exchange: _Exchange) -> None:
        if self._exchanges.get(packet_id) is exchange:
            del self._exchanges[packet_id]
            if exchange.remote is self._link.remote:
                self._link.answer(PacketType.PUBCOMP, packet_id)
