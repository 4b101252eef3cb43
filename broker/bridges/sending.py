"""Outgoing messages: from the durable subscriptions of a bridge to the other broker.

    message waits in a durable subscription -> its packet id is stored -> PUBLISH
    PUBREC -> one transaction removes the message and records that PUBREL is owed -> PUBREL -> PUBCOMP -> record removed

So after a crash, a message that may have been sent is sent again with the same packet id, and the other broker
recognises the repetition.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from tandemmq import log_events
from tandemmq.broker.bridges.link import ADVISORIES, PACKET_ID_MAX, PASSED, Link, Topic, must_stop, with_passed
from tandemmq.broker.core.commands import Ack, AckMode, Begin, Commit, GiveUp, Send, Subscribe
from tandemmq.broker.protocols.mqtt.conversation import Receipt
from tandemmq.broker.protocols.mqtt.messages import BRIDGE, QOS, Payloads, TakesLong, is_retain, properties_of, qos_of
from tandemmq.broker.protocols.mqtt.packets import Filter, PacketType
from tandemmq.broker.protocols.mqtt.qos2 import Delivery, Flight, Outgoing, OutgoingRecord, Phase
from tandemmq.broker.protocols.mqtt.reason_codes import ERRORS_FROM
from tandemmq.broker.protocols.mqtt.session_records import STATE, KeptRecords, Kind, Record
from tandemmq.broker.protocols.mqtt.stored_session import Subscription
from tandemmq.broker.protocols.mqtt.topics import destination_of, topic_if_any
from tandemmq.store.records.message import Message

log = logging.getLogger(__name__)

#: Limit of an MQTT packet (5.0, 1.5.5), and so of a payload.
PAYLOAD_BYTES_MAX: Final = 0x0FFF_FFFF


class Sending:
    """Sends messages to the other broker. ``window``: limit of the unacknowledged messages of QoS 1 and 2. ``gathered``
    returns the number of messages of a durable subscription, including unacknowledged ones."""

    def __init__(
        self, link: Link, kept: KeptRecords, topics: Sequence[Topic], window: int, gathered: Callable[[str], int]
    ) -> None:
        self._link = link
        self._kept = kept
        self._window = window
        self._gathered = gathered
        self._topics = {str(number): each for number, each in enumerate(topics) if each.is_out}
        self._subscriptions = {id: _subscription(id, each) for id, each in self._topics.items()}
        self._outgoing = Outgoing(kept, window, PACKET_ID_MAX)
        self._waiting: deque[Delivery] = deque()  # wait for the window or for a connection
        self._payloads = Payloads()

    @property
    def waiting(self) -> int:
        """Number of messages in memory: waiting and unacknowledged ones."""
        return len(self._waiting) + sum(each.delivery is not None for each in self._outgoing.flights.values())

    @property
    def ids(self) -> Sequence[str]:
        """Ids of its subscriptions."""
        return list(self._subscriptions)

    @property
    def durable_names(self) -> list[str]:
        """Names of its durable subscriptions."""
        return [each.durable_name for each in self._subscriptions.values() if each.durable_name is not None]

    def subscribe_commands(self) -> list[Subscribe]:
        """Return the commands that begin the subscriptions."""
        return [
            Subscribe(
                each.id,
                destination_of(each.pattern),
                AckMode.AUTO if each.is_auto else AckMode.INDIVIDUAL,
                prefetch=self._window,
                durable_name=each.durable_name,
                no_local=True,
            )
            for each in self._subscriptions.values()
        ]

    # ---- records

    def found_outgoing(self, given: OutgoingRecord, tag: int) -> None:
        """Process a stored record: the message has this packet id."""
        given.record = Record(tag)
        former = self._outgoing.reserve(given)
        if former is not None and former.record is not None:
            self._kept.is_stale(former.record.tag)

    def found_released(self, packet_id: int, tag: int) -> None:
        """Process a stored record: PUBREL must be sent."""
        self._outgoing.flights[packet_id] = Flight(None, Phase.RELEASED, Record(tag))

    # ---- the connection to the other broker

    def forget_session(self) -> None:
        """Forget all packet ids. The other broker has a new session, and does not expect PUBREL."""
        outgoing = self._outgoing
        for name in list(outgoing.given):
            self._release(name)
        for packet_id, flight in list(outgoing.flights.items()):
            if flight.delivery is not None:
                flight.delivery.is_dup = False
            if flight.phase is Phase.RELEASED:
                self._over(packet_id, flight)

    def attach(self, receive_maximum: int) -> None:
        """Use a new connection. ``receive_maximum``: the other broker's Receive Maximum."""
        self._outgoing.limit = min(self._window, receive_maximum)
        for packet_id, flight in list(self._outgoing.flights.items()):
            self._write(packet_id, flight)
        self._release_undelivered()
        self._send_waiting()

    def _release_undelivered(self) -> None:
        """Release the packet ids of messages that will not be delivered again, because they expired or were deleted.
        PUBREL is sent for each. Otherwise the other broker would take the next message with that packet id for a
        repetition."""
        now = self._link.clock()
        for name, given in list(self._outgoing.given.items()):
            if 0 < given.expiration <= now or not self._gathered(name[0]):
                self._write(given.packet_id, self._release(name))

    def _release(self, name: tuple[str, str]) -> Flight:
        """Release the packet id of a message that will not be delivered again."""
        given = self._outgoing.take(name)
        assert given is not None, "the caller passes a message with a packet id"
        flight = self._outgoing.flights[given.packet_id] = Flight(None, Phase.RELEASED, given.record)
        return flight

    # ---- a message arrives

    def deliver(self, subscription_id: str, tag: int, message: Message) -> Callable[[], None] | None:
        """Send a message, or return the function that prepares it on a thread; see Session.deliver."""
        topic, subscription = self._topics[subscription_id], self._subscriptions[subscription_id]
        destination = message.destination if message.original_destination is None else message.original_destination
        name = topic_if_any(destination.name)
        properties = message.properties
        is_back = properties is not None and properties.get(BRIDGE) == self._link.name
        is_circled = not is_back and properties is not None and must_stop(properties.get(PASSED), self._link.id)
        if is_circled:
            self._link.note_circle(name)
        if not name:  # not a valid MQTT topic: the other broker would close each connection for it
            self._link.counts.refused += 1
        # prove: no-wildcard-over-a-bridge "not name or "
        if not name or is_back or is_circled or name.startswith(("$", ADVISORIES)):
            if not subscription.is_auto:
                self._link.later(Ack(subscription_id, tag))
            return None
        try:
            payload = self._payloads.of(message, PAYLOAD_BYTES_MAX)
        except TakesLong:
            return lambda: self._payloads.prepare(message, PAYLOAD_BYTES_MAX)
        # A persistent message of another protocol has no QoS: it is sent with the topic's QoS, so that it is not lost
        # or duplicated.
        has_qos = properties is not None and isinstance(properties.get(QOS), int)
        qos = min(topic.qos, qos_of(message)) if has_qos or not message.persistent else topic.qos
        delivery = Delivery(
            subscription,
            0 if subscription.is_auto else tag,
            message,
            topic.remote_name(name),
            payload,
            qos,
            is_retain(message),
            is_dup=False,
            position=None,
        )
        if not subscription.is_auto:
            self._waiting.append(delivery)
            self._send_waiting()
        elif self._link.remote is None:
            self._link.counts.dropped += 1
        else:
            self._send(delivery)
        return None

    # ---- a message is sent

    def _send_waiting(self) -> None:
        while self._waiting and self._link.remote is not None and self._outgoing.has_room:
            self._send(self._waiting.popleft())

    def _send(self, delivery: Delivery) -> None:
        """Write PUBLISH. With QoS 1 and 2 it gets a packet id. With QoS 2 the id is stored first."""
        link, outgoing, message = self._link, self._outgoing, delivery.message
        name = delivery.name
        given = outgoing.take(name)
        if given is not None:
            flight = outgoing.flights[given.packet_id] = Flight(delivery, Phase.SENT, given.record)
            delivery.qos = 2  # an exchange continues with its QoS if settings change (MQTT-4.3.3-1)
            delivery.is_dup = True
            self._write(given.packet_id, flight)
        elif 0 < message.expiration <= link.clock():  # it expired while it waited
            if delivery.tag:
                link.later(GiveUp(delivery.subscription.id, delivery.tag, delivery.tag, "expired", is_expired=True))
        elif not delivery.qos:
            if self._publish(delivery, 0):
                link.counts.sent += 1
            else:
                link.counts.dropped += 1
            self._acknowledge(delivery)
        else:
            packet_id = outgoing.next_id()
            flight = outgoing.flights[packet_id] = Flight(delivery, Phase.SENT)
            if delivery.qos == 1:
                self._write(packet_id, flight)
                return
            flight.phase = Phase.STORING
            kept = OutgoingRecord(packet_id, *name, message.expiration)
            stored, flight.record = self._kept.keep(Kind.OUTGOING, kept.encode())
            receipt = Receipt(lambda: self._is_stored(packet_id, flight, Phase.SENT), link.give_up)
            link.later(*self._kept.send(stored, receipt))

    def _is_stored(self, packet_id: int, flight: Flight, phase: Phase) -> None:
        """Write the next packet of an exchange, after the record that it requires is durable."""
        flight.phase = phase
        if phase is Phase.RELEASED:
            flight.delivery = None
        self._write(packet_id, flight)

    def _write(self, packet_id: int, flight: Flight) -> None:
        """Write PUBLISH or PUBREL, as the phase requires."""
        delivery = flight.delivery
        if self._link.remote is None:
            return
        if flight.phase is Phase.RELEASED:
            self._link.answer(PacketType.PUBREL, packet_id)
        elif flight.phase is Phase.SENT and delivery is not None:
            self._publish(delivery, packet_id)
            delivery.is_dup = True

    def _publish(self, delivery: Delivery, packet_id: int) -> bool:
        remote = self._link.remote
        assert remote is not None, "messages are sent only while there is a connection"
        return remote.publish(
            delivery.topic,
            delivery.payload,
            delivery.qos,
            packet_id,
            delivery.is_retain,
            delivery.is_dup,
            with_passed(properties_of(delivery.message, self._link.clock()), self._link.id),
        )

    def _acknowledge(self, delivery: Delivery) -> None:
        if delivery.tag:
            self._link.later(Ack(delivery.subscription.id, delivery.tag))

    # ---- answers of the other broker

    def acknowledged(self, type: PacketType, packet_id: int, reason: int) -> None:
        """Handle PUBACK, PUBREC or PUBCOMP."""
        flight = self._outgoing.flights.get(packet_id)
        delivery = None if flight is None else flight.delivery
        if type is PacketType.PUBCOMP:
            if flight is not None and flight.phase is Phase.RELEASED:
                self._over(packet_id, flight)
        elif flight is None or flight.phase is Phase.RELEASED:
            # The exchange has ended here. PUBREL ends it at the other broker, too.
            if type is PacketType.PUBREC:
                self._link.answer(PacketType.PUBREL, packet_id)
        elif delivery is None or flight.phase is not Phase.SENT:
            return
        elif reason >= ERRORS_FROM:
            self._refused(packet_id, flight, delivery, reason)
        elif type is PacketType.PUBACK and delivery.qos == 1:
            self._link.counts.sent += 1
            self._acknowledge(delivery)
            self._over(packet_id, flight)
        elif type is PacketType.PUBREC and delivery.qos == 2:
            self._on_received(packet_id, flight, delivery)

    def _on_received(self, packet_id: int, flight: Flight, delivery: Delivery) -> None:
        """Handle PUBREC: the other broker has the message."""
        flight.phase = Phase.RECEIVED
        self._link.counts.sent += 1
        kept = flight.record
        assert kept is not None, "each message of QoS 2 has a record"
        if kept.tag:
            self._received(packet_id, flight, delivery, kept)
        else:
            kept.then = lambda: self._received(packet_id, flight, delivery, kept)

    def _received(self, packet_id: int, flight: Flight, delivery: Delivery, kept: Record) -> None:
        """Acknowledge the message here, and store a record that PUBREL must be sent, in one transaction."""
        link, name = self._link, self._link.next_transaction()
        stored, flight.record = self._kept.keep(Kind.RELEASED, b"%d" % packet_id)
        link.later(
            Begin(name),
            Ack(delivery.subscription.id, delivery.tag, name),
            Ack(STATE, kept.tag, name),
            Send(stored, name),
            Commit(name, Receipt(lambda: self._is_stored(packet_id, flight, Phase.RELEASED), link.give_up)),
        )

    def _refused(self, packet_id: int, flight: Flight, delivery: Delivery, reason: int) -> None:
        """Move a message that the other broker refused to the dead letter queue."""
        link = self._link
        cause = f"the other broker refused it to the bridge {link.name} with the reason code 0x{reason:02X}"
        log.warning(
            "bridge %s: the other broker refused a message to %s with the reason code 0x%02X: it becomes a dead letter",
            link.name, delivery.topic, reason, extra=log_events.BRIDGE_REFUSED,
        )  # fmt: skip
        link.counts.refused += 1
        link.later(GiveUp(delivery.subscription.id, delivery.tag, delivery.tag, cause))
        self._over(packet_id, flight)

    def _over(self, packet_id: int, flight: Flight) -> None:
        """Release a packet id, and remove its record."""
        del self._outgoing.flights[packet_id]
        if flight.record is not None:
            self._link.later(*self._kept.drop(flight.record))
        if self._outgoing.given:
            self._release_undelivered()
        self._send_waiting()


def _subscription(id: str, topic: Topic) -> Subscription:
    """Return the subscription for ``topic``; durable with QoS 1 and 2."""
    filter = Filter(topic.local, topic.qos, no_local=True, retain_as_published=True, retain_handling=0)
    return Subscription(id, filter, None, topic.local if topic.qos else None, None, is_auto=not topic.qos)
