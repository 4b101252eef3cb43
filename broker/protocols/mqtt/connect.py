"""Begin and end of a session: CONNECT, CONNACK, DISCONNECT. Pure.

After the login, the stored session of the client id, if any, is read, checked, and resumed or ended. Then CONNACK is
sent. Packets that the client sent after CONNECT wait until then.
"""

from __future__ import annotations

from tandemmq.broker.core.commands import ClientError, Command, Connect, Disconnect
from tandemmq.broker.core.names import NAME_BYTES_MAX
from tandemmq.broker.protocols.mqtt import packets
from tandemmq.broker.protocols.mqtt.conversation import ConnectionEnd, Conversation, Receipt, nothing
from tandemmq.broker.protocols.mqtt.deliver import Delivering
from tandemmq.broker.protocols.mqtt.messages import bytes_of
from tandemmq.broker.protocols.mqtt.packets import Version, Will
from tandemmq.broker.protocols.mqtt.properties import NONE, PACKET_BYTES_MAX, Properties
from tandemmq.broker.protocols.mqtt.publish import Publishing
from tandemmq.broker.protocols.mqtt.qos2 import OutgoingRecord, packet_id_of
from tandemmq.broker.protocols.mqtt.reason_codes import MqttError, Reason, has_return_code, reason_of
from tandemmq.broker.protocols.mqtt.session_records import (
    NEVER,
    Kind,
    RecordUnreadable,
    SessionRecord,
    SubscriptionRecord,
    queue_of,
)
from tandemmq.broker.protocols.mqtt.stored_session import StoredSession
from tandemmq.broker.protocols.mqtt.subscribe import Subscribing
from tandemmq.store.records.message import Message


class Connecting:
    """Begin and end of one session. ``is_waiting``: CONNECT was received, and CONNACK is not sent yet."""

    def __init__(
        self,
        conversation: Conversation,
        stored: StoredSession,
        publishing: Publishing,
        delivering: Delivering,
        subscribing: Subscribing,
    ) -> None:
        self._conversation = conversation
        self._stored = stored
        self._publishing = publishing
        self._delivering = delivering
        self._subscribing = subscribing
        self.is_waiting = False
        self._packet: packets.Connect | None = None
        self._will: Will | None = None
        self._will_bytes = 0  # memory reserved for the will
        self._is_assigned = False  # the broker chose the client id
        self._is_noted = False  # the session's record has the time when the client left
        self._expiry = 0  # seconds that the session lives after the end of the connection
        self._former: SessionRecord | None = None
        self._durable_names: tuple[str, ...] = ()  # durable subscriptions of the client id

    @property
    def keep_alive_ms(self) -> int:
        """Keep Alive in milliseconds: the longest silence of the client; 0: no limit."""
        assert self._packet is not None, "after CONNECT"
        return (self._packet.keep_alive or self._conversation.limits.default_keep_alive) * 1000

    # ---- CONNECT

    def connect(self, packet: packets.Connect, commands: list[Command]) -> None:
        """Check CONNECT, and request the login."""
        conversation = self._conversation
        self._packet = packet
        if packet.will is not None and (packet.will.topic[0] != "$" or conversation.limits.takes_dollar_topics):
            self._will = packet.will  # otherwise the will is dropped, like a message to such a topic
        conversation.version = version = packet.version
        properties = packet.properties
        if version is Version.V5:
            conversation.packet_bytes_max = properties.maximum_packet_size or 0
            conversation.tells_problems = properties.request_problem_information != 0
        if properties.authentication_method is not None:
            raise MqttError(Reason.BAD_AUTHENTICATION_METHOD, "Only user name and password are supported")
        conversation.client_id = client_id = self._client_id(packet)
        limits = conversation.limits
        if version is Version.V5:
            expiry = properties.session_expiry or 0
            conversation.outgoing_max = min(properties.receive_maximum or 0xFFFF, limits.receive_maximum)
            self._delivering.begin(min(properties.topic_alias_maximum or 0, limits.topic_alias_maximum))
        else:
            expiry = 0 if packet.clean_start else NEVER
            conversation.outgoing_max = limits.receive_maximum
            self._delivering.begin(0)
        self._expiry = self._within_limit(expiry)
        if 0 < conversation.packet_bytes_max < len(self._connack(is_present=True)):
            # Checked before the session is read. CONNACK must be the first packet, and is longer than this client
            # accepts.
            raise MqttError(Reason.PACKET_TOO_LARGE, "CONNACK is longer than the Maximum Packet Size")
        try:
            passcode = None if packet.password is None else packet.password.decode()
        except UnicodeDecodeError:
            raise MqttError(Reason.BAD_USER_NAME_OR_PASSWORD, "The password is not UTF-8 text") from None
        self.is_waiting = True
        commands.append(
            Connect(
                client_id,
                packet.username,
                passcode,
                steals_client_id=limits.steals_client_id,
                is_client_id_assigned=self._is_assigned,
                state=queue_of(client_id),
                receipt=Receipt(nothing, self._refuse),
            )
        )

    def _client_id(self, packet: packets.Connect) -> str:
        """Return the client id: that of CONNECT, or if that is empty a new one."""
        client_id = packet.client_id
        if not client_id:
            # The new id is as hard to guess as the ids of connections, so that no other client uses it.
            prefix = self._conversation.message_id_prefix.partition(":-1:")[0]
            self._is_assigned = True
            return f"auto-{prefix.replace(':', '-')}"
        if len(queue_of(client_id).name) > NAME_BYTES_MAX:
            raise MqttError(
                Reason.CLIENT_IDENTIFIER_NOT_VALID, "The client id is too long for the name of its session's queue"
            )
        return client_id

    def _within_limit(self, expiry: int) -> int:
        longest = self._conversation.limits.session_expiry_max
        return expiry if longest is None else min(expiry, longest)

    def _refuse(self, error: ClientError) -> None:
        conversation = self._conversation
        if not conversation.is_over:
            self._write_connack(conversation.version, error)
            conversation.end_input()
            conversation.later(Disconnect())

    # ---- its stored session

    def connected(self, command: Connect) -> None:
        """Look up the stored session. Called after the login."""
        conversation = self._conversation
        conversation.principal = command.principal
        conversation.may_read = command.may_read
        self._durable_names = command.durable_names
        if self._will is not None:
            size = bytes_of(self._will)
            if not conversation.hooks.may_have_will(conversation.principal, size):
                self._refuse(MqttError(Reason.QUOTA_EXCEEDED, "There is not enough memory for the will"))
                return
            self._will_bytes = size
        queue = command.state
        assert queue is not None, "a stored session has a queue"
        if command.has_state:
            self._stored.begin(queue, self._refuse)
            self._stored.read_all(self._found, self._all_found, self._refuse)
        elif self._expiry:
            self._stored.begin(queue, self._refuse)
            self._begin_session()
        else:
            self._conversation.later(*self._subscribing.forget(self._durable_names))
            self._accept(is_present=False)

    def _begin_session(self) -> None:
        """Store the first record of a session. A session that ActiveMQ stored has no record; it gets one, and is
        resumed."""
        assert self._packet is not None, "after CONNECT"
        subscribing, conversation = self._subscribing, self._conversation
        adopted: list[Command] = []
        if self._packet.clean_start:
            conversation.later(*subscribing.forget(self._durable_names))
        else:
            adopted = subscribing.adopt(self._durable_names)
        receipt = Receipt(lambda: self._accept(is_present=bool(adopted)), self._refuse)
        conversation.later(
            *self._stored.send(self._stored.session_message(self._expiry, self._will), receipt), *adopted
        )

    def _found(self, tag: int, message: Message) -> None:
        """Process a record of the stored session."""
        try:
            match message.type:
                case Kind.SESSION:
                    self._former = SessionRecord.decode(message.body)
                    self._stored.is_stale(tag)
                case Kind.SUBSCRIPTION:
                    self._subscribing.found(SubscriptionRecord.decode(message.body), tag)
                case Kind.INCOMING:
                    self._publishing.found(packet_id_of(message.body), tag)
                case Kind.OUTGOING | Kind.OWN:
                    self._delivering.outgoing.found(OutgoingRecord.decode(message), tag)
                case Kind.RELEASED:
                    self._delivering.outgoing.found_released(packet_id_of(message.body), tag)
                case _:  # the mark of a former connection (session_records.Kind.MARK)
                    self._stored.is_stale(tag)
        except RecordUnreadable:
            self._stored.is_stale(tag)

    def _all_found(self) -> None:
        assert self._packet is not None, "after CONNECT"
        former = self._former
        if former is not None and former.user is not None and former.user != self._conversation.principal.owner:
            self._stored.let_go()
            self._refuse(MqttError(Reason.NOT_AUTHORIZED, "The session of this client id belongs to another user"))
        elif former is None or self._packet.clean_start or self._is_over(former):
            self._start_anew()
        else:
            self._conversation.later(*self._subscribing.adopt(self._durable_names))
            self._stored.resume(self._expiry, self._will, Receipt(lambda: self._accept(is_present=True), self._refuse))

    def _is_over(self, former: SessionRecord) -> bool:
        """Return whether the session has expired, even if the broker has not ended it yet (MQTT-3.1.2-23)."""
        if not former.left_at or former.expiry == NEVER:
            return False
        return self._conversation.clock() >= former.left_at + former.expiry * 1000

    def _start_anew(self) -> None:
        """End the stored session and its durable subscriptions, and begin a new one."""
        queue = self._stored.queue
        assert queue is not None, "a stored session was found in its queue"
        self._publishing.forget()
        self._delivering.outgoing.forget()
        self._conversation.later(*self._subscribing.forget(self._durable_names))
        self._durable_names = ()
        if self._expiry:
            self._conversation.later(*self._stored.end())
            self._stored.begin(queue, self._refuse)
            self._begin_session()
        else:
            receipt = Receipt(lambda: self._accept(is_present=False), self._refuse)
            self._conversation.later(*self._stored.end(receipt))

    # ---- CONNACK

    def _accept(self, *, is_present: bool) -> None:
        """Write CONNACK. ``is_present``: then resume the session."""
        conversation = self._conversation
        if conversation.is_over:
            return
        conversation.is_connected = True
        self.is_waiting = False
        conversation.send(self._connack(is_present=is_present))
        conversation.hooks.client_connected(conversation.client_id, is_resumed=is_present)
        if is_present:
            sent = conversation.hooks.take_sent_ids(conversation.client_id)
            self._delivering.outgoing.remember(sent or {})
            self._delivering.resume(self._subscribing.resume(is_sure=sent is not None))
        conversation.later()

    def _connack(self, *, is_present: bool) -> bytes:
        conversation, connect = self._conversation, self._packet
        assert connect is not None, "after CONNECT"
        limits = conversation.limits
        properties = NONE
        if conversation.version is Version.V5:
            properties = Properties(
                assigned_client_id=conversation.client_id if self._is_assigned else None,
                receive_maximum=limits.receive_maximum,
                topic_alias_maximum=limits.topic_alias_maximum,
                maximum_packet_size=min(limits.packet_bytes_max, PACKET_BYTES_MAX),
                session_expiry=None if self._expiry == (connect.properties.session_expiry or 0) else self._expiry,
                server_keep_alive=None if connect.keep_alive else limits.default_keep_alive or None,
            )
        return packets.connack(conversation.version, session_present=is_present, properties=properties)

    # ---- the end

    def disconnect(self, packet: packets.Disconnect, commands: list[Command], now: int) -> None:
        """Carry out DISCONNECT."""
        expiry = packet.properties.session_expiry
        had = self._expiry, self._will
        if expiry is not None:
            assert self._packet is not None, "after CONNECT"
            if expiry and not self._packet.properties.session_expiry:
                raise MqttError(Reason.PROTOCOL_ERROR, "A Session Expiry Interval of 0 in CONNECT cannot be changed")
            self._expiry = self._within_limit(expiry)
        if packet.reason != Reason.DISCONNECT_WITH_WILL:
            self._will = None
        if self._stored.queue is not None and (had != (self._expiry, self._will) or self._expiry != NEVER):
            commands += self._stored.leave(self._expiry, self._will, now)
            self._is_noted = True
        self._conversation.end_input()
        commands.append(Disconnect())

    def left(self) -> None:
        """Report the end of the connection to the hooks, with or without DISCONNECT."""
        conversation = self._conversation
        conversation.hooks.client_left(
            ConnectionEnd(
                conversation.client_id,
                conversation.principal,
                self._will,
                self._stored.queue,
                self._expiry,
                self._is_noted,
                {} if self._stored.queue is None else self._delivering.outgoing.sent(),
                self._will_bytes,
            )
        )

    def given_up(self) -> None:
        """Free the memory reserved for the will of a connection that ended before CONNACK."""
        if self._will_bytes:
            self._conversation.hooks.release_will(self._conversation.principal, self._will_bytes)

    def write_end_reason(self, error: ClientError, version: Version | None) -> None:
        """Write the reason for the end of the connection: in CONNACK if it was not sent yet, otherwise in DISCONNECT
        (MQTT 5.0). ``version``: version of CONNECT; None: unknown."""
        conversation, reason = self._conversation, reason_of(error)
        if conversation.is_connected:
            if conversation.version is Version.V5:
                packet = packets.disconnect(reason, conversation.why(error.message))
                if not 0 < conversation.packet_bytes_max < len(packet):
                    conversation.write(packet)
        elif version is Version.V5 or self.is_waiting or has_return_code(reason):
            self._write_connack(version or Version.V3_1_1, error)
        conversation.end_input()

    def _write_connack(self, version: Version, error: ClientError) -> None:
        """Write CONNACK with a refusal, unless it is longer than the client's Maximum Packet Size."""
        packet = packets.connack(version, reason=reason_of(error), properties=self._conversation.why(error.message))
        if not 0 < self._conversation.packet_bytes_max < len(packet):
            self._conversation.write(packet)
