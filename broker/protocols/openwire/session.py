"""Connection of one OpenWire client: bytes in, commands out; the broker's replies in, bytes out. Pure.

Promises: ``receive`` never raises, whatever arrives; after a fatal failure or ShutdownInfo nothing more is parsed;
every command that wants a response gets exactly one. A failure is an ExceptionResponse to a command that wants a
response, else a ConnectionError; the connection continues (TransportConnection). A message that comes in the
store's form is neither decoded nor encoded: the frame that was sent is the one that is stored and dispatched.

Bytes, receipts and liveness are here; the client's open objects and their names are in conversation.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tandemmq.broker.core.commands import (
    AckMode,
    ClientError,
    Command,
    Connect,
    Disconnect,
    GiveUp,
    ProtocolFailure,
    Pull,
    Subscribe,
)
from tandemmq.broker.protocols.encoded import decoded, is_encoded
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED, WireFormat, message_of, stored_frame
from tandemmq.broker.protocols.openwire.consumers import Consumer, first_of_group
from tandemmq.broker.protocols.openwire.conversation import Conversation, Pending
from tandemmq.broker.protocols.openwire.errors import FrameTooLong, WireError, throwable_of
from tandemmq.broker.protocols.openwire.frames import FrameCutter
from tandemmq.broker.protocols.openwire.sends import Window, refusal_of, send_of
from tandemmq.broker.protocols.openwire.types import ConnectionId
from tandemmq.broker.protocols.openwire.wireformat import Greeting, Terms
from tandemmq.broker.protocols.output import Output
from tandemmq.broker.protocols.session import COMMANDS_MAX, RECEIVED_BYTES_MAX
from tandemmq.store.records.errors import RecordDamaged, Unencodable
from tandemmq.store.records.frames import frame_of, nested_message, open_message
from tandemmq.store.records.loose import MESSAGE_ACK
from tandemmq.store.records.message import BodyKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.records.transactions import XaTransactionId

XA_OK: Final = 0
XA_RDONLY: Final = 3

_SIZE: Final = struct.Struct(">i")
_COUNTER: Final = struct.Struct(">i")
_NO_REDELIVERIES: Final = _COUNTER.pack(0)
# size, data type, command id, response required, correlation id
_RESPONSE: Final = struct.Struct(">iBiBi")
_RESPONSE_TYPE: Final = 30
# The data types of messages; plain numbers, because each frame is compared with them.
_MESSAGES: Final = frozenset(map(int, BodyKind))
_BYTES: Final = BodyKind.BYTES
_KEEP_ALIVE: Final = schema.KeepAliveInfo()
# Maximum number of fields, objects and elements of arrays in one command of a client: reading them takes some
# milliseconds. A message has 35, and the longest arrays of clients list some brokers.
FIELDS_MAX: Final = 10_000
# Each bit of a frame that is read field by field may be an object.
_WEIGHT: Final = 8


@dataclass(slots=True, eq=False, repr=False)
class OpenWireSession(Output):
    """The session of one connection.

    ``connection_id``: the broker's name for the connection. ``clock`` returns milliseconds since 1970. ``sequences``:
    the broker's numbers of messages, each greater than all before it. ``greeting``: the greeting of the connector. The
    broker's WireFormatInfo can be taken at once.
    """

    connection_id: str
    clock: Callable[[], int]
    sequences: Iterator[int]
    greeting: Greeting
    _cutter: FrameCutter = field(default_factory=FrameCutter, init=False)
    _terms: Terms | None = field(default=None, init=False)
    _wire: WireFormat = field(default=STORED, init=False)
    _is_stored_form: bool = field(default=False, init=False)
    _dispatch_bytes_max: int = field(default=0, init=False)
    _conversation: Conversation = field(init=False)
    _is_over: bool = field(default=False, init=False)
    _now: int = field(default=0, init=False)
    # Deliveries that this client cannot get, for the next ``receive``, which they request.
    _refused: list[GiveUp | Pull] = field(default_factory=list, init=False)
    # The message that is delivered next, and its form for this client, which was made on a thread.
    _prepared: tuple[Message, Message] | None = field(default=None, init=False)
    has_more: bool = field(default=False, init=False)
    unfinished_bytes: int = field(default=0, init=False)  # of an incomplete frame
    # True if the handshake is done: the spare connections of a client go no further (openwire.md 16.5).
    is_connected: bool = field(default=False, init=False)
    is_logged_in: bool = field(default=False, init=False)
    send_interval_ms: int = field(default=0, init=False)
    receive_interval_ms: int = field(default=0, init=False)

    @property
    def survives_errors(self) -> bool:
        """True: only errors of the connection itself end it (TransportConnection)."""
        return True

    @property
    def can_pull(self) -> bool:
        return True

    def __post_init__(self) -> None:
        self._conversation = Conversation(steals_links=self.greeting.steals_links)
        self._write(self.greeting.wire_format_info)

    @property
    def version(self) -> int:
        """Version in use; 0 until the client named its own."""
        return self._wire.version if self.is_connected else 0

    @property
    def is_fault_tolerant(self) -> bool:
        """True if the client reported that it has a failover transport."""
        return self._conversation.is_fault_tolerant

    # ---- input of the client

    def receive(self, data: bytes) -> list[Command]:
        """Parse the next bytes: return the commands that are complete now. Never raises.

        A mistake of the peer is a ProtocolFailure in its place among the commands; when its error is fatal it is the
        last command that this session ever gives. With ``has_more`` the list is incomplete: carry out its commands,
        then call ``receive(b"")`` for the rest.
        """
        commands: list[Command] = []
        if self._is_over:
            return commands
        if self._refused:
            commands += self._refused
            self._refused.clear()
        self._now = self.clock()
        cutter = self._cutter
        next_frame = cutter.next_frame
        self.has_more = False
        try:
            if data:
                cutter.feed(data)
            weight = 0
            for _ in range(COMMANDS_MAX):
                if (frame := next_frame()) is None:
                    self.unfinished_bytes = cutter.pending_bytes
                    return commands
                if not isinstance(frame, bytes):
                    if self._is_stored_form and frame.getbuffer()[4] in _MESSAGES:
                        commands.append(send_of(frame, next(self.sequences), self._now, self._conversation.producers))
                        break  # one such message is the limit of a call
                    frame = frame.getvalue()
                weight += len(frame)
                kind = frame[4] if self._is_stored_form else 0
                if kind in _MESSAGES:
                    commands.append(send_of(frame, next(self.sequences), self._now, self._conversation.producers))
                elif kind == MESSAGE_ACK and (ack := self._conversation.single_ack(frame)) is not None:
                    commands.append(ack)
                else:
                    self._understand(self._wire.decode(frame, FIELDS_MAX), commands)
                    if self._is_over:
                        return commands
                    weight += _WEIGHT * len(frame)
                    if commands and type(commands[-1]) is Subscribe and commands[-1].selector is not None:
                        break  # compiling may take some milliseconds: others get their turn
                if not cutter.chunk:  # usual: saves another call of the cutter
                    self.unfinished_bytes = 0
                    return commands
                if weight >= RECEIVED_BYTES_MAX:
                    break
            self.has_more = not self._is_over
        except FrameTooLong as long:
            commands.append(self._too_long(long))
            self.has_more = not self._is_over
        except (WireError, RecordDamaged, Unencodable) as error:
            commands.append(ProtocolFailure(ClientError(f"Invalid OpenWire: {error}")))
            self.end()
        return commands

    def peer_disconnect(self) -> Command | None:
        """Return None: clients of OpenWire close both ways."""
        return None

    def end(self) -> None:
        """Parse nothing more, and drop the input that is not parsed yet."""
        self._is_over = True
        self.has_more = False
        self.unfinished_bytes = 0
        self._cutter = FrameCutter()

    def _understand(self, command: schema.Command, commands: list[Command]) -> None:
        """Append the commands for ``command``. Raises errors that no connection survives: WireError, RecordDamaged."""
        if not self.is_connected:
            self._shake_hands(command)
            return
        if isinstance(command, schema.KeepAliveInfo):
            self._keep_alive(command)
            return
        if isinstance(command, schema.WireMessage):
            frame = stored_frame(command)
            commands.append(send_of(frame, next(self.sequences), self._now, self._conversation.producers))
            return
        receipt = command.command_id if command.response_required else None
        try:
            asked = self._conversation.commands_of(command, receipt)
        except ClientError as error:
            error.receipt = receipt
            commands.append(ProtocolFailure(error, _transaction_of(command)))
            if error.is_fatal:
                self.end()
            return
        if asked:
            commands += asked
            if isinstance(command, schema.ConnectionInfo):
                # Long frames are for clients that log in. Nothing is read until the login is accepted.
                self._cutter.frame_bytes_max = self.greeting.frame_bytes_max
                self._cutter.passes_over = not (self._wire.is_tight or self._wire.is_cached)
            if isinstance(asked[-1], Disconnect):
                self.is_logged_in = False
            if isinstance(command, schema.ShutdownInfo):
                self.end()
        else:
            self._respond(receipt)

    def _too_long(self, error: FrameTooLong) -> ProtocolFailure:
        """Return the failure for a frame that is too long: a message is refused alone, and anything else ends the
        connection."""
        try:
            return refusal_of(error, self._conversation.producers)
        except WireError as unsound:
            self.end()
            return ProtocolFailure(ClientError(f"Invalid OpenWire: {error}; {unsound}"))

    # ---- handshake and liveness

    def _shake_hands(self, command: schema.Command) -> None:
        """Agree on the form of all later frames, in both directions (OpenWireFormat.renegotiateWireFormat)."""
        if not isinstance(command, schema.WireFormatInfo):
            raise WireError(f"{type(command).__name__} came before WireFormatInfo")
        self._terms = terms = self.greeting.agree(command)
        self._wire = wire = terms.wire_format
        self._is_stored_form = wire.is_stored_form
        self._dispatch_bytes_max = terms.dispatch_bytes_max
        self.send_interval_ms = terms.send_interval_ms
        self.receive_interval_ms = max(terms.receive_interval_ms, terms.initial_delay_ms)
        self.is_connected = True
        self._write_command(self.greeting.broker_info)

    def _keep_alive(self, command: schema.KeepAliveInfo) -> None:
        assert self._terms is not None, "the handshake precedes all commands"
        # The peer's clock runs: from now on its silence counts as agreed, without the initial delay.
        self.receive_interval_ms = self._terms.receive_interval_ms
        if command.response_required:
            self.heart_beat()  # and no Response (InactivityMonitor)

    # ---- answers of the broker

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """Write the Response to ConnectionInfo, if one is wanted, and the addresses of the other brokers."""
        self.is_logged_in = True
        self.receipt(command.receipt)
        if self.greeting.failover_uris and self.is_fault_tolerant:
            self.announce(self.greeting.failover_uris)

    def receipt(self, receipt: Any) -> None:
        """Write the Response, or the ProducerAck, for the command that gave ``receipt``."""
        if type(receipt) is Window:
            self._write_command(schema.ProducerAck(producer_id=receipt.producer_id, size=receipt.size))
            return
        if type(receipt) is Pending:
            if receipt.done is not None:
                receipt.done()
            receipt = receipt.command_id
        self._respond(receipt)

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        """Write MessageDispatch. A delivery to a consumer that its client has closed meanwhile is not written: the
        broker learns of that with the next command."""
        consumer = self._conversation.consumers.get(subscription_id)
        if consumer is None:
            return None
        shown = message
        if message.body_kind is _BYTES and is_encoded(message):
            prepared, self._prepared = self._prepared, None
            found = prepared[1] if prepared is not None and prepared[0] is message else decoded(message, is_quick=True)
            if found is None:
                return partial(self._prepare, message)
            shown = found
        try:
            if self._is_stored_form:
                nested = nested_message(shown)
                if message.group_id is not None and consumer.begins_group(message):
                    nested = first_of_group(nested)
                head = consumer.head(message.destination)
                size = len(head) + len(nested) + _COUNTER.size
                if size > self._dispatch_bytes_max:
                    raise self._too_long_for_it(size)
                out = self._out
                out.append(_SIZE.pack(size) + head)
                out.append(nested)
                out.append(_COUNTER.pack(redeliveries) if redeliveries else _NO_REDELIVERIES)
                self.pending_bytes += size + _SIZE.size
            else:
                frame = self._wire.encode(self._dispatch(consumer, shown, redeliveries))
                if len(frame) - _SIZE.size > self._dispatch_bytes_max:
                    raise self._too_long_for_it(len(frame) - _SIZE.size)
                self._write(frame)
        except (WireError, Unencodable) as error:
            self._refused.append(GiveUp(subscription_id, tag, tag, f"OpenWire cannot express it: {error}"))
            if consumer.pull_ms is not None:  # its client waits for another message
                self._refused.append(Pull(subscription_id, consumer.pull_ms))
            if not self._is_over:
                self.has_more = True
                self.wake()
            return None
        consumer.remember(tag, message)
        return None

    def _prepare(self, message: Message) -> None:
        """Decode the message that takes long, and encode its frame, for the next ``deliver``. Runs on a thread."""
        found = decoded(message, is_quick=False) or message
        try:
            found = open_message(encode_message(found))
        except Unencodable:
            found = message
        self._prepared = message, found

    def _too_long_for_it(self, size: int) -> WireError:
        """Return the error for a frame that is too long for a Java client: the client would end its connection,
        reconnect, and get the message again without end."""
        return WireError(
            f"it has {size} bytes, and its consumer accepts at most {self._dispatch_bytes_max} (maxFrameSize)"
        )

    def _dispatch(self, consumer: Consumer, message: Message, redeliveries: int) -> schema.MessageDispatch:
        """Return the dispatch for a client that speaks another form than the store's."""
        wire_message = message_of(frame_of(message))
        wire_message.jmsx_group_first_for_consumer = consumer.begins_group(message)
        return schema.MessageDispatch(
            consumer_id=consumer.consumer_id,
            destination=message.destination,
            message=wire_message,
            redelivery_counter=redeliveries,
        )

    def nothing(self, subscription_id: str) -> None:
        """Write MessageDispatch without a message: the consumer need not wait (ActiveMQMessageConsumer,
        QueueBrowser)."""
        consumer = self._conversation.consumers.get(subscription_id)
        if consumer is not None:
            self._write_command(schema.MessageDispatch(consumer_id=consumer.consumer_id))

    def drop_prepared(self) -> None:
        self._prepared = None

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None:
        """Write ConsumerControl (AbstractSubscription.updateConsumerPrefetch)."""
        consumer = self._conversation.consumers.get(subscription_id)
        if consumer is not None:
            self._write_command(schema.ConsumerControl(consumer_id=consumer.consumer_id, prefetch=prefetch))

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        """Write ConsumerControl: the client closes the consumer (AbortSlowConsumerStrategy). The command has no field
        for a reason."""
        consumer_id = self._conversation.end_consumer(subscription_id)
        if consumer_id is not None:
            self._write_command(schema.ConsumerControl(consumer_id=consumer_id, close=True))

    def prepared(self, receipt: Any, is_read_only: bool) -> None:
        """Write IntegerResponse: XA_OK or XA_RDONLY."""
        assert isinstance(receipt, Pending), "the receipt is from this session"
        if is_read_only and receipt.done is not None:
            receipt.done()
        if receipt.command_id is not None:
            result = XA_RDONLY if is_read_only else XA_OK
            self._write_command(schema.IntegerResponse(correlation_id=receipt.command_id, result=result))

    def recovered(self, receipt: Any, branches: Sequence[XaTransactionId]) -> None:
        """Write DataArrayResponse; its array is never null."""
        if receipt is not None:
            self._write_command(schema.DataArrayResponse(correlation_id=receipt, data=tuple(branches)))

    def fail(self, error: ClientError) -> None:
        """Write ExceptionResponse to the command that waits, ConnectionError if none does.

        Nothing is written before the handshake: the client could not read it yet.
        """
        receipt = error.receipt
        if isinstance(receipt, Pending):
            if receipt.failed is not None:
                receipt.failed()
            receipt = receipt.command_id
        if not self.is_connected:
            return
        if isinstance(receipt, Window):
            self.receipt(receipt)  # the window opens again, though the message is refused (openwire.md 18)
            receipt = None
        exception = throwable_of(error)
        if isinstance(receipt, int):
            self._write_command(schema.ExceptionResponse(correlation_id=receipt, exception=exception))
            return
        client = self._conversation.connection_id
        id = None if client is None else ConnectionId(client)
        self._write_command(schema.ConnectionError(exception=exception, connection_id=id))

    def announce(self, urls: Sequence[str], *, is_rebalance: bool = False, reconnect_to: str = "") -> None:
        """Send a client with a failover transport the addresses of brokers, and the one to reconnect to now
        (ConnectionControl)."""
        if self.is_connected:
            self._write_command(
                schema.ConnectionControl(
                    connected_brokers=",".join(urls), rebalance_connection=is_rebalance, reconnect_to=reconnect_to
                )
            )

    def tell_brokers(self) -> None:
        """Send clients with a failover transport the addresses as they are now (ConnectionControl)."""
        if self.greeting.failover_uris and self.is_fault_tolerant:
            self.announce(self.greeting.failover_uris)

    def heart_beat(self) -> None:
        """Write a sign of life (KeepAliveInfo)."""
        self._write_command(_KEEP_ALIVE)

    def _respond(self, command_id: int | None) -> None:
        """Write a Response, if the client waits for one."""
        if command_id is None:
            return
        if self._is_stored_form:
            self._write(_RESPONSE.pack(_RESPONSE.size - _SIZE.size, _RESPONSE_TYPE, 0, 0, command_id))
        else:
            self._write_command(schema.Response(correlation_id=command_id))

    def _write_command(self, command: schema.Command) -> None:
        self._write(self._wire.encode(command))


def _transaction_of(command: schema.Command) -> str | None:
    """Return the transaction of which ``command``, an acknowledgement, is a part."""
    if isinstance(command, schema.MessageAck) and command.transaction_id is not None:
        return command.transaction_id.key
    return None
