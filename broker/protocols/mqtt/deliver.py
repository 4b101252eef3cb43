"""Messages to the client: PUBLISH, and the client's acknowledgements. Pure.

A message of QoS 1 is acknowledged to the broker when PUBACK arrives, a message of QoS 2 when PUBREC arrives. With QoS
2, a stored session stores a record of the packet id before PUBLISH is sent. So the message has the same packet id after
a reconnect, and the client does not take it for another message. After PUBREC, one transaction removes the message and
this record, and adds a record "released"; then PUBREL is sent. So a client that received PUBREL never gets the message
again.

A message of QoS 2 of a shared subscription is sent to only one member, also if the connection of that member breaks
(MQTT 5.0, 4.8.2). So in a stored session its record contains the message itself. The transaction that stores the record
removes the message from the subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tandemmq.broker.core.commands import Ack, Command, Send
from tandemmq.broker.protocols.mqtt.conversation import Conversation
from tandemmq.broker.protocols.mqtt.messages import (
    Payloads,
    TakesLong,
    is_retain,
    payload_of,
    properties_of,
    qos_of,
    to_own,
)
from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, Filter, PacketType, Publish, Version, publish_head
from tandemmq.broker.protocols.mqtt.properties import NONE, Properties, write_text
from tandemmq.broker.protocols.mqtt.qos2 import Delivery, Flight, Outgoing, OutgoingRecord, Phase
from tandemmq.broker.protocols.mqtt.reason_codes import ERRORS_FROM, Reason
from tandemmq.broker.protocols.mqtt.retained_delivery import INBOX, RetainedDelivery
from tandemmq.broker.protocols.mqtt.session_records import STATE, Kind, Record
from tandemmq.broker.protocols.mqtt.stored_session import Position, StoredSession, Subscription
from tandemmq.broker.protocols.mqtt.topics import topic_if_any
from tandemmq.store.records.message import Message

# A payload of at least this length is not copied into each packet: all receiving clients share it.
SHARED_PAYLOAD_BYTES_MIN: Final = 16 * 1024
# Maximum number of destinations of one client whose topics are remembered.
NAMES_REMEMBERED_MAX: Final = 1_000
# Limit of a payload that is stored a second time, as a record of kind OWN. Like an acknowledgement, the record does not
# wait for free space.
OWN_BYTES_MAX: Final = 64 * 1024
# Prefix of advisory topics. A filter that begins with a wildcard does not match them, like topics with $.
ADVISORIES: Final = "ActiveMQ/Advisory/"
# Constants, because looking up a member of an enumeration is slow, and each message needs one.
_V5: Final = Version.V5
_PUBACK: Final = PacketType.PUBACK
_PUBREC: Final = PacketType.PUBREC


class Delivering:
    """Messages for one client."""

    def __init__(self, conversation: Conversation, stored: StoredSession, retained: RetainedDelivery) -> None:
        self._conversation = conversation
        self._stored = stored
        self._retained = retained
        retained.on_gone = self._release_given
        self.outgoing = Outgoing(stored)
        self._waiting: deque[Delivery] | None = None  # wait for Receive Maximum; mostly None
        self._aliases: dict[str, int] = {}
        self._aliases_max = 0
        self._topics: dict[str, str] = {}  # topic by name of the destination; "": no valid MQTT topic
        self._encoded: dict[str, bytes] = {}  # encoded topics
        self._payloads = Payloads()

    def begin(self, aliases_max: int) -> None:
        """Set the maximum number of aliases that the client accepts."""
        self.outgoing.limit = self._conversation.outgoing_max
        self._aliases_max = aliases_max

    # ---- a session that is resumed

    def resume(self, subscriptions: dict[str, Subscription]) -> None:
        """Resume the session after all records were read and CONNACK was written. ``subscriptions``, by filter: those
        that can deliver messages. If a message has a packet id and will not be delivered again, PUBREL is sent for the
        id. The client may have received the message, and would take the next message with that id for a repetition."""
        conversation = self._conversation
        given = self.outgoing.given
        now = conversation.clock()
        own = [(name[0], each.message) for name, each in given.items() if each.message is not None]
        others = [(name, each) for name, each in given.items() if each.message is None and each.record is not None]
        too_many = sum(each.topic is None for _, each in others) - conversation.limits.receive_maximum
        for name, each in others:
            subscription = subscriptions.get(name[0])
            is_too_old = each.topic is None and too_many > 0
            too_many -= each.topic is None
            if subscription is None or 0 < each.expiration <= now or is_too_old:
                self._forget_lost(name)
            elif each.topic is not None:
                self._retained.send_again(subscription, each.topic, name)
        for packet_id in self.outgoing.flights:
            conversation.answer(PacketType.PUBREL, packet_id)
        for topic_filter, message in own:
            self._deliver_own(topic_filter, subscriptions.get(topic_filter), message)

    def _deliver_own(self, topic_filter: str, live: Subscription | None, message: Message) -> None:
        """Send a message of kind OWN again, even if its subscription has ended (MQTT-3.10.4-3) or it has expired
        (MQTT-4.3.3-7)."""
        filter = Filter(topic_filter, 2, False, False, 0)
        subscription = Subscription("", filter, None, None, None if live is None else live.subscription_id, False)
        payload = payload_of(message, OWN_BYTES_MAX, is_quick=False)
        original = message.original_destination
        assert original is not None, "an OWN message is made with its original destination"
        topic = self._topic(original.name)
        delivery = Delivery(subscription, 0, message, topic, payload, 2, is_retain(message), True, None)
        self._begin(delivery)

    # ---- a message arrives

    def deliver(
        self,
        subscription: Subscription,
        tag: int,
        message: Message,
        redeliveries: int,
        position: Position | None = None,
    ) -> Callable[[], None] | None:
        """Deliver the message as Session.deliver describes: write it at once, or later if Receive Maximum is reached.
        ``position``: the position that moves when this retained message is sent; None: not a retained message."""
        acknowledges = position is not None or not subscription.is_auto
        original = message.original_destination  # the topic of a retained message
        name = (message.destination if original is None else original).name
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topic(name)
        if not topic or (subscription.excludes_dollar and (topic[0] == "$" or topic.startswith(ADVISORIES))):
            if acknowledges:
                self._conversation.later(Ack(_source(subscription, position), tag))
            return None
        try:
            payload = self._payloads.of(message, self._conversation.limits.packet_bytes_max)
        except TakesLong:
            return lambda: self._payloads.prepare(message, self._conversation.limits.packet_bytes_max)
        options = subscription.filter
        qos = qos_of(message)
        if qos > options.qos:
            qos = options.qos
        is_dup = redeliveries > 0
        if subscription.unsure and position is None:
            is_dup = self._may_have_been_sent(subscription, message.destination.name, qos) or is_dup
        delivery = Delivery(
            subscription,
            tag if acknowledges else 0,
            message,
            topic,
            payload,
            qos,
            position is not None
            or (options.retain_as_published and is_retain(message))
            # prove: own-retained-is-retained "subscription.own_before > 0" -> "False"
            or (subscription.own_before > 0 and self._retained.is_earlier(message, subscription)),
            is_dup,
            position,
        )
        if self.outgoing.given and (begun := self.outgoing.begun(delivery.name)) is not None:
            # prove: qos-as-it-was-begun
            delivery.qos = begun.qos  # even if the subscription has another QoS now (MQTT-4.3.3-1)
        self._begin(delivery)
        return None

    def drop_prepared(self) -> None:
        self._payloads.drop()

    def _may_have_been_sent(self, subscription: Subscription, name: str, qos: int) -> bool:
        """Return whether a former master may have sent the message with QoS 1 (MQTT-4.4.0-1). A message that was sent
        with QoS 2 has a record."""
        left = subscription.unsure.pop(name, 0)
        if left > 1:
            subscription.unsure[name] = left - 1
        return left > 0 and qos == 1

    def _begin(self, delivery: Delivery) -> None:
        """Send a message, or let it wait while Receive Maximum is reached. Retained messages stay in order."""
        # prove: retained-in-their-order " or delivery.position is not None"
        if (delivery.qos or delivery.position is not None) and (self._waiting or not self.outgoing.has_room):
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append(delivery)
        else:
            self._send(delivery)

    def _topic(self, name: str) -> str:
        """Return the topic for a destination's name, cached if it was used recently. "": no valid MQTT topic."""
        topic = topic_if_any(name)
        if len(self._topics) >= NAMES_REMEMBERED_MAX:
            self._topics.clear()
        self._topics[name] = topic
        return topic

    def _encode(self, topic: str) -> bytes:
        """Return the topic encoded for a packet, and cache it."""
        if len(self._encoded) >= NAMES_REMEMBERED_MAX:
            self._encoded.clear()
        encoded = self._encoded[topic] = write_text(topic)
        return encoded

    # ---- a message is sent

    def _send(self, delivery: Delivery) -> None:
        """Give the message a packet id if it needs one, and write it. If the id must be stored, write the message after
        that. A message that is longer than the client's Maximum Packet Size counts as sent (MQTT-3.1.2-25)."""
        qos = delivery.qos
        outgoing = self.outgoing
        if qos == 2 or outgoing.given or delivery.position is not None:
            self._send_named(delivery)
            return
        packet_id = outgoing.next_id() if qos else 0
        if self._publish(delivery, packet_id) and qos:
            outgoing.flights[packet_id] = Flight(delivery, Phase.SENT)
        else:
            self._settle_later(delivery)

    def _send_named(self, delivery: Delivery) -> None:
        """Send a message that may already have a packet id, or whose packet id must be stored."""
        qos = delivery.qos
        name = delivery.name
        if self._conversation.packet_bytes_max and self._is_too_long(self._head(delivery, 1), delivery.payload):
            self._settle_later(delivery)
            self._release_given(name)
            return
        if not qos:
            if self._retained.is_kept(delivery):
                self._stored.gather(lambda: self._publish(delivery, 0))
                self._retained.advance(delivery)
            else:
                self._publish(delivery, 0)
            self._settle_later(delivery)
            return
        outgoing = self.outgoing
        flight = Flight(delivery, Phase.SENT)
        given = outgoing.take(name)
        if given is not None and (qos == 1 or given.record is not None):
            flight.record = given.record
            outgoing.flights[given.packet_id] = flight
            delivery.is_dup = True
            self._publish(delivery, given.packet_id)
            return
        packet_id = outgoing.next_id()
        outgoing.flights[packet_id] = flight
        is_retained = delivery.position is not None
        if self._stored.queue is None or (qos == 1 and not is_retained):
            self._publish(delivery, packet_id)
            return
        given = OutgoingRecord(
            packet_id, *name, delivery.message.expiration, qos, delivery.topic if is_retained else None
        )
        transaction, commands = self._stored.gather(lambda: self._publish_stored(delivery, packet_id, flight))
        if delivery.subscription.share is not None and len(delivery.payload) <= OWN_BYTES_MAX:
            record = self._take_as_own(delivery, flight, given.encode())
            self._settle(delivery, commands, transaction)
        else:
            record, flight.record = self._stored.keep(Kind.OUTGOING, given.encode())
            if is_retained:
                given.put_retained(record)
        commands.append(Send(record, transaction))
        if is_retained:
            # After ``gather``: the packet id of the message and the position after it are stored in one transaction.
            # prove: retained-position-is-kept
            self._retained.advance(delivery)

    def _publish_stored(self, delivery: Delivery, packet_id: int, flight: Flight) -> None:
        """Write PUBLISH after its packet id is stored. The packet may have become too long in the meantime, because the
        subscription identifier changed."""
        if not self._publish(delivery, packet_id):
            commands: list[Command] = []
            self._over(packet_id, flight, commands)
            self._conversation.later(*commands)

    def _take_as_own(self, delivery: Delivery, flight: Flight, kept: bytes) -> Message:
        """Return the OWN record for a message that belongs to this client from now on. The message is removed from the
        shared subscription."""
        conversation, message = self._conversation, delivery.message
        queue = self._stored.queue
        assert queue is not None, "only a stored session has records"
        now = conversation.clock()
        publish = Publish(
            delivery.topic, delivery.payload, 2, delivery.is_retain, False, 0, properties_of(message, now)
        )
        own = to_own(publish, message.expiration, kept, queue, conversation.next_message_id(), now)
        own.type = Kind.OWN.value
        flight.record = self._stored.keep_as(own)
        return own

    def _forget_lost(self, name: tuple[str, str]) -> int | None:
        """Forget a message that will not be delivered again. Return its packet id if the id was of QoS 2 and must be
        released."""
        lost = self.outgoing.take(name)
        if lost is None or lost.record is None:
            return None
        if lost.qos == 1:
            self._conversation.later(*self._stored.drop(lost.record))
            return None
        self.outgoing.found_released(lost.packet_id, lost.record.tag)  # prove: id-of-a-lost-message-is-released
        return lost.packet_id

    def _release_given(self, name: tuple[str, str]) -> None:
        """Forget the message like ``_forget_lost``, and send PUBREL for its packet id."""
        packet_id = self._forget_lost(name)
        if packet_id is not None:
            self._conversation.answer(PacketType.PUBREL, packet_id)

    def _is_too_long(self, head: bytes, payload: bytes) -> bool:
        return 0 < self._conversation.packet_bytes_max < len(head) + len(payload)

    def _publish(self, delivery: Delivery, packet_id: int) -> bool:
        """Write PUBLISH unless it is longer than the client's Maximum Packet Size. Return whether it was written."""
        head = self._head(delivery, packet_id)
        payload = delivery.payload
        conversation = self._conversation
        if conversation.packet_bytes_max and self._is_too_long(head, payload):
            return False
        if len(payload) < SHARED_PAYLOAD_BYTES_MIN:
            conversation.write(head + payload)
        else:
            conversation.write(head)
            conversation.write(payload)
        return True

    def _head(self, delivery: Delivery, packet_id: int) -> bytes:
        conversation = self._conversation
        topic, properties = delivery.topic, NONE
        if conversation.version is _V5:
            properties = self._properties(delivery)
            if self._aliases_max:
                topic, properties = self._aliased(topic, properties)
        return publish_head(
            conversation.version,
            self._encoded.get(topic) or self._encode(topic),
            len(delivery.payload),
            delivery.qos,
            packet_id,
            delivery.is_retain,
            delivery.is_dup and delivery.qos > 0,
            properties,
        )

    def _properties(self, delivery: Delivery) -> Properties:
        message = delivery.message
        now = self._conversation.clock() if message.expiration else 0
        properties = properties_of(message, now)
        subscription_id = delivery.subscription.subscription_id
        if subscription_id is not None:
            properties = replace(properties, subscription_ids=(subscription_id,))
        return properties

    def _aliased(self, topic: str, properties: Properties) -> tuple[str, Properties]:
        """Replace the topic by its alias. The first topics that are used get aliases (MQTT 5.0, 3.3.2.3.4)."""
        alias = self._aliases.get(topic)
        if alias is not None:
            return "", replace(properties, topic_alias=alias)
        if len(self._aliases) >= self._aliases_max or self._conversation.packet_bytes_max:
            return topic, properties  # a new alias makes its packet longer
        self._aliases[topic] = alias = len(self._aliases) + 1
        return topic, replace(properties, topic_alias=alias)

    def _send_waiting(self) -> None:
        """Send waiting messages until Receive Maximum is reached."""
        waiting = self._waiting
        if not waiting:
            return
        now = self._conversation.clock()
        while waiting and self.outgoing.has_room:
            delivery = waiting.popleft()
            # prove: begun-message-does-not-expire " and self.outgoing.begun(delivery.name) is None"
            if 0 < delivery.message.expiration <= now and self.outgoing.begun(delivery.name) is None:
                self._settle_later(delivery)  # MQTT-3.3.2-5
            else:
                self._send(delivery)

    def _settle(self, delivery: Delivery, commands: list[Command], transaction: str | None = None) -> None:
        """Acknowledge the message to the broker: the client has received it."""
        if delivery.tag:
            commands.append(Ack(_source(delivery.subscription, delivery.position), delivery.tag, transaction))
            delivery.tag = 0
        if delivery.position is not None:
            delivery.position = None
            self._retained.settled(delivery.subscription, commands)

    def _settle_later(self, delivery: Delivery) -> None:
        commands: list[Command] = []
        self._settle(delivery, commands)
        if commands:
            self._conversation.later(*commands)

    def leave(self, subscription: Subscription) -> None:
        """Drop the waiting messages of a subscription that has ended. Deliveries that have begun are completed
        (MQTT-3.10.4-3)."""
        for flight in self.outgoing.flights.values():
            delivery = flight.delivery
            if delivery is not None and delivery.subscription is subscription and delivery.position is None:
                delivery.tag = 0
        waiting = self._waiting or deque()
        for _ in range(len(waiting)):
            delivery = waiting.popleft()
            if delivery.subscription is not subscription:
                waiting.append(delivery)
            elif delivery.position is not None:
                self._settle_later(delivery)
        given = self.outgoing.given
        topic_filter = subscription.filter.topic_filter
        for name in [name for name, each in given.items() if name[0] == topic_filter and each.message is None]:
            self._release_given(name)

    # ---- acknowledgements of the client

    def acknowledged(self, packet: Acknowledgement, commands: list[Command]) -> None:
        """Process PUBACK, PUBREC or PUBCOMP. An unknown packet id is ignored."""
        type, packet_id = packet.type, packet.packet_id
        flight = self.outgoing.flights.get(packet_id)
        delivery = None if flight is None else flight.delivery
        if type is _PUBREC:
            if flight is not None:
                self._on_received(packet, flight, commands)
            elif packet.reason < ERRORS_FROM:
                self._conversation.answer(PacketType.PUBREL, packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        elif flight is None:
            return
        elif type is _PUBACK:
            if delivery is not None and delivery.qos == 1:
                self._over(packet_id, flight, commands)
        elif flight.phase is Phase.RELEASED:  # PUBCOMP
            self._over(packet_id, flight, commands)

    def _over(self, packet_id: int, flight: Flight, commands: list[Command]) -> None:
        """Free the packet id, and remove its record."""
        del self.outgoing.flights[packet_id]
        if flight.delivery is not None:
            self._settle(flight.delivery, commands)
        if flight.record is not None:
            commands += self._stored.drop(flight.record)
        self._send_waiting()

    def _on_received(self, packet: Acknowledgement, flight: Flight, commands: list[Command]) -> None:
        """Process PUBREC."""
        packet_id = packet.packet_id
        delivery = flight.delivery
        if flight.phase is Phase.RELEASED:
            self._conversation.answer(PacketType.PUBREL, packet_id)
        # prove: one-pubrec-counts "flight.phase is Phase.SENT and "
        elif flight.phase is Phase.SENT and delivery is not None and delivery.qos == 2:
            if packet.reason >= ERRORS_FROM:
                self._over(packet_id, flight, commands)
                return
            flight.phase = Phase.RECEIVED
            kept = flight.record
            if kept is None:
                self._settle(delivery, commands)
                self._release(packet_id, flight)
            elif kept.tag:  # prove: release-waits-for-its-record "kept.tag" -> "True"
                self._received(packet_id, flight, delivery, kept)
            else:
                kept.then = lambda: self._received(packet_id, flight, delivery, kept)

    def _received(self, packet_id: int, flight: Flight, delivery: Delivery, kept: Record) -> None:
        """Note that the client has received the message. From now on only PUBREL is repeated."""
        transaction, commands = self._stored.gather(lambda: self._release(packet_id, flight))
        message, flight.record = self._stored.keep(Kind.RELEASED, b"%d" % packet_id)
        self._settle(delivery, commands, transaction)  # prove: message-ends-with-its-release ", transaction"
        commands += (Ack(STATE, kept.tag, transaction), Send(message, transaction))

    def _release(self, packet_id: int, flight: Flight) -> None:
        flight.delivery = None
        flight.phase = Phase.RELEASED
        self._conversation.answer(PacketType.PUBREL, packet_id)


def _source(subscription: Subscription, position: Position | None) -> str:
    """Return the id of the engine's subscription that delivered the message."""
    return subscription.id if position is None else INBOX
