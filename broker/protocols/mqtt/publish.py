"""Messages from a client: PUBLISH, and PUBREL of QoS 2. Pure.

A message of QoS 2 is stored when it arrives, together with a record of its packet id, and then PUBREC is sent. While
the record exists, a PUBLISH with the same packet id stores no other message. PUBCOMP is sent when the record is
removed.
"""

from __future__ import annotations

from dataclasses import replace

from tandemmq.broker.core.commands import Begin, ClientError, Command, Commit, ErrorKind, Hold, Send
from tandemmq.broker.core.names import NAME_BYTES_MAX
from tandemmq.broker.protocols.mqtt.conversation import Conversation, Receipt, nothing
from tandemmq.broker.protocols.mqtt.messages import message_of, to_retain
from tandemmq.broker.protocols.mqtt.packets import Acknowledgement, PacketType, Publish, Version
from tandemmq.broker.protocols.mqtt.properties import NONE
from tandemmq.broker.protocols.mqtt.qos2 import Exchange
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason, reason_of
from tandemmq.broker.protocols.mqtt.retained_delivery import RetainedDelivery
from tandemmq.broker.protocols.mqtt.session_records import Kind, Record
from tandemmq.broker.protocols.mqtt.stored_session import StoredSession
from tandemmq.broker.protocols.mqtt.topics import check_topic, destination_of
from tandemmq.store.records.message import Destination, Message

# Maximum number of topics of one client whose destinations are cached.
TOPICS_REMEMBERED_MAX = 1_000
# Memory of a packet id of QoS 2 until PUBREL, without its record; and the number of packet ids whose memory is counted
# together.
EXCHANGE_BYTES = 130
EXCHANGES_COUNTED = 64


class Publishing:
    """Messages from one client. ``unanswered``: number of PUBLISHes of QoS 1 and 2 on this connection without PUBACK or
    PUBCOMP."""

    def __init__(self, conversation: Conversation, stored: StoredSession, retained: RetainedDelivery) -> None:
        self._conversation = conversation
        self._stored = stored
        self._retained = retained
        self._limits = conversation.limits
        self._exchanges: dict[int, Exchange] = {}
        self._exchanges_counted = EXCHANGES_COUNTED
        self._unanswered = 0
        self._aliases: dict[int, str] = {}
        self._destinations: dict[str, Destination] = {}

    def found(self, packet_id: int, tag: int) -> None:
        """Process a record of the stored session: the message with this packet id was stored."""
        former = self._exchanges.get(packet_id)
        if former is not None and former.record is not None:
            self._stored.is_stale(former.record.tag)
        # prove: newest-record-counts "Record(tag)" -> "(former and former.record) or Record(tag)"
        self._exchanges[packet_id] = Exchange(Record(tag), is_counted=False, is_stored=True)

    def forget(self) -> None:
        """Forget all records of the stored session."""
        self._exchanges.clear()

    def publish(self, packet: Publish, commands: list[Command], now: int) -> None:
        """Process PUBLISH."""
        qos, packet_id = packet.qos, packet.packet_id
        topic = packet.topic if packet.properties is NONE else self._topic_of(packet)
        destination = self._destinations.get(topic) or self._destination(topic)
        if qos:
            if qos == 2 and (exchange := self._exchanges.get(packet_id)) is not None:
                if exchange.is_stored:  # prove: repeated-publish-waits-for-the-store "exchange.is_stored" -> "True"
                    self._conversation.answer(PacketType.PUBREC, packet_id)
                return
            if qos == 2 and len(self._exchanges) >= self._exchanges_counted:
                self._count(commands)
            self._unanswered += 1
            # 3.3.4: MQTT 3 has no Receive Maximum
            if self._unanswered > self._limits.receive_maximum and self._conversation.version is Version.V5:
                raise MqttError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "More messages than the Receive Maximum permits")
        if topic[0] == "$" and not self._limits.takes_dollar_topics:
            self._drop_reserved(qos, packet_id)
            return
        conversation = self._conversation
        message = message_of(packet, destination, conversation.next_message_id(), now)
        if qos < 2 and not packet.retain:
            commands.append(Send(message, None, packet_id if qos else None))  # most messages
            return
        beside: list[Message] = []
        if packet.retain:
            number = conversation.hooks.may_retain(destination, message.size if packet.payload else 0)
            # If a limit is reached, the message is sent but not retained, and the former retained message of the topic
            # is removed.
            kept_packet = packet if number else replace(packet, payload=b"")
            self._retained.published(message, is_retained=bool(kept_packet.payload))
            beside.append(to_retain(kept_packet, destination, conversation.next_message_id(), now, number))
        receipt: Receipt | int | None = None
        if qos == 1:
            receipt = packet_id
        elif qos == 2:
            kept: Record | None = None
            record: Message | None = None
            if self._stored.queue is not None:
                record, kept = self._stored.keep(Kind.INCOMING, b"%d" % packet_id)
                beside.append(record)  # prove: packet-id-with-its-message
            # prove: pubrec-after-the-store "is_stored=False)" -> "is_stored=False); self._is_stored(packet_id)"
            self._exchanges[packet_id] = Exchange(kept, is_counted=True, is_stored=False)
            receipt = Receipt(
                lambda: self._is_stored(packet_id), lambda error: self._is_not_stored(packet_id, record, error)
            )
        if not beside:
            commands.append(Send(message, None, receipt))
            return
        name = conversation.next_transaction()
        commands.append(Begin(name))
        commands += [Send(each, name) for each in (message, *beside)]
        commands.append(Commit(name, receipt))

    def _count(self, commands: list[Command]) -> None:
        """Count more packet ids of QoS 2 as memory of the connection. An MQTT 3 client may use all 65,535 without
        PUBREL."""
        self._exchanges_counted += EXCHANGES_COUNTED
        commands.append(Hold(EXCHANGES_COUNTED * EXCHANGE_BYTES, Receipt(nothing, self._stored.failed)))

    def _topic_of(self, packet: Publish) -> str:
        alias = packet.properties.topic_alias
        if alias is None:
            return packet.topic
        if alias > self._limits.topic_alias_maximum:
            raise MqttError(Reason.TOPIC_ALIAS_INVALID, f"Topic alias {alias} is beyond the maximum")
        if packet.topic:
            if len(packet.topic) > NAME_BYTES_MAX:
                raise MqttError(Reason.TOPIC_NAME_INVALID, f"The topic is longer than {NAME_BYTES_MAX} bytes")
            self._aliases[alias] = packet.topic
            return packet.topic
        topic = self._aliases.get(alias)
        if topic is None:
            raise MqttError(Reason.PROTOCOL_ERROR, f"Topic alias {alias} has no topic")
        return topic

    def _destination(self, topic: str) -> Destination:
        check_topic(topic)
        destination = destination_of(topic)
        if len(topic) > NAME_BYTES_MAX:
            return destination  # the engine refuses a name of this length
        if len(self._destinations) >= TOPICS_REMEMBERED_MAX:
            self._destinations.clear()
        self._destinations[topic] = destination
        return destination

    def _drop_reserved(self, qos: int, packet_id: int) -> None:
        """Drop a message to a topic that begins with $, and confirm it, as ActiveMQ does. These topics are reserved for
        the broker."""
        if qos == 1:
            self.stored(packet_id)
        elif qos:
            self._exchanges[packet_id] = Exchange(None, is_counted=True, is_stored=True)
            self._conversation.answer(PacketType.PUBREC, packet_id)

    # ---- results

    def stored(self, packet_id: int) -> None:
        """Send PUBACK for a message of QoS 1. The message is durable."""
        self._unanswered -= 1
        self._conversation.confirm(packet_id)

    def _is_stored(self, packet_id: int) -> None:
        """Send PUBREC for a message of QoS 2. The message is durable, and in a stored session its packet id, too."""
        self._exchanges[packet_id].is_stored = True
        self._conversation.answer(PacketType.PUBREC, packet_id)

    def _is_not_stored(self, packet_id: int, record: Message | None, error: ClientError) -> None:
        del self._exchanges[packet_id]  # prove: refused-packet-id-is-free
        if record is not None:
            self._stored.was_refused(record)
        self.refuse(PacketType.PUBREC, packet_id, error)

    def refuse(self, type: PacketType, packet_id: int, error: ClientError) -> None:
        """Refuse a message. MQTT 3 has no error answer: the connection ends (MQTT-3.3.5-2), or the message is
        confirmed, as ActiveMQ does (setting)."""
        conversation = self._conversation
        self._unanswered -= 1
        refusal = conversation.last_refusal
        if error.kind is ErrorKind.ROLLED_BACK and refusal is not None:
            error = refusal
        conversation.last_refusal = None
        reason = reason_of(error)
        if conversation.version is Version.V5:
            conversation.answer(type, packet_id, reason, error.message)
        elif self.report_refusal(error):
            conversation.hang_up(reason, error.message)
        elif type is PacketType.PUBACK:
            conversation.confirm(packet_id)
        else:
            self._unanswered += 1  # until PUBREL
            self._exchanges[packet_id] = Exchange(None, is_counted=True, is_stored=True)
            conversation.answer(type, packet_id)

    def report_refusal(self, error: ClientError) -> bool:
        """Report the refusal of a message of an MQTT 3 client. Return whether its connection must end."""
        if error.kind is not ErrorKind.SECURITY:  # denials are logged where rights are checked
            self._conversation.hooks.publish_refused(self._conversation.client_id, error.message)
        return self._limits.closes_on_refused_publish

    # ---- PUBREL

    def release(self, packet: Acknowledgement, commands: list[Command]) -> None:
        """Process PUBREL. The packet id is free when the removal of its record is durable."""
        packet_id = packet.packet_id
        exchange = self._exchanges.get(packet_id)
        if exchange is None:  # PUBCOMP was lost. 0x92 would report a failure although the message is stored.
            self._conversation.answer(PacketType.PUBCOMP, packet_id)
        elif not exchange.is_stored:  # PUBREC was not sent
            self._conversation.answer(PacketType.PUBCOMP, packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        elif exchange.record is None:
            self._released(packet_id)
        elif not exchange.is_releasing:
            exchange.is_releasing = True
            receipt = Receipt(lambda: self._released(packet_id), self._stored.failed)
            commands += self._stored.drop(exchange.record, receipt)

    def _released(self, packet_id: int) -> None:
        if self._exchanges.pop(packet_id).is_counted:
            self._unanswered -= 1
        self._conversation.answer(PacketType.PUBCOMP, packet_id)
