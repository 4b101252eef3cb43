"""Conversation of one STOMP client: bytes in, commands out; the broker's replies in, bytes out. Pure.

Promises: ``receive`` never raises, whatever arrives; after a fatal failure or DISCONNECT no more input is parsed.
Frames that the broker writes are in ``take`` in the order of the calls. The session knows only the names that this
client uses; it contains no logic of queues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from typing import Final

from tandemmq.broker.core.commands import (
    Abort,
    Ack,
    AckMode,
    AckOfMessage,
    AddDestination,
    Begin,
    ClientError,
    Command,
    Commit,
    Connect,
    Disconnect,
    Nack,
    ProtocolFailure,
    Send,
    Subscribe,
    Undeliverable,
    Unsubscribe,
    refusal,
)
from tandemmq.broker.protocols.output import Output
from tandemmq.broker.protocols.session import COMMANDS_MAX, RECEIVED_BYTES_MAX
from tandemmq.broker.protocols.stomp.destinations import DestinationNames, write_destination
from tandemmq.broker.protocols.stomp.dialects import CONNECTING, DIALECTS, V10, V12, Dialect
from tandemmq.broker.protocols.stomp.frames import FrameParser, FrameTooLong, Headers, Limits, missing
from tandemmq.broker.protocols.stomp.messages import TakesLong, apply_headers, encode, encode_once
from tandemmq.broker.protocols.stomp.subscriptions import StompSubscription, durable_name_of, read_subscribe
from tandemmq.store.records.message import BodyKind, Destination, Message
from tandemmq.store.records.message_ids import broker_producer
from tandemmq.store.records.transactions import XaTransactionId
from tandemmq.store.records.utf import QUICK_BYTES_MAX, is_utf8

DEFAULT_LIMITS: Final = Limits()
# Shortest interval of the broker's heart-beats, whatever the client wants (Artemis has the same minimum).
HEART_BEAT_MS_MIN: Final = 500
# Limit of a CONNECT, and of all input before it.
CONNECT_BYTES_MAX: Final = 64 * 1024
CONNECT_HEADERS_MAX: Final = 100
# A body of this length or longer is not copied into a frame: all clients that get it share it.
SHARED_BODY_BYTES_MIN: Final = 16 * 1024
HEART_BEAT_MS_MAX: Final = 24 * 60 * 60 * 1000
SERVER: Final = "TandemMQ"
# Headers of CONNECT in which blanks count, except in STOMP 1.0.
_KEPT: Final = ("login", "passcode")
# Members of an enumeration are looked up slowly.
_TEXT, _BYTES, _AUTO = BodyKind.TEXT, BodyKind.BYTES, AckMode.AUTO
_HEART_BEAT: Final = re.compile(r"[ \t]*([0-9]{1,20})[ \t]*,[ \t]*([0-9]{1,20})[ \t]*")


@dataclass(slots=True, eq=False, repr=False)
class StompSession(Output):
    """The conversation with one client over one connection (STOMP 1.0, 1.1, 1.2).

    ``connection_id`` is the first part of the ids of messages to which the client gives no id; ``clock`` returns
    milliseconds since 1970, and is called once for each piece of input.
    """

    connection_id: InitVar[str]
    clock: Callable[[], int]
    limits: Limits = DEFAULT_LIMITS
    _: KW_ONLY
    heart_beat_ms_min: int = HEART_BEAT_MS_MIN
    default_heart_beat: str = "0,0"
    secret: InitVar[Callable[[], str]]
    _parser: FrameParser = field(init=False)
    _dialect: Dialect = field(default=V10, init=False)
    _handlers: dict[str, Handler] = field(init=False)
    _is_over: bool = field(default=False, init=False)
    # Three commands end the list: UNSUBSCRIBE, because deliveries can arrive until the engine has carried it out;
    # CONNECT, because the next commands may depend on the client's identity; and SUBSCRIBE with a selector, because
    # compiling can take some milliseconds, and other clients must get their turn.
    _is_pausing: bool = field(default=False, init=False)
    _leaving: StompSubscription | None = field(default=None, init=False)
    has_more: bool = field(default=False, init=False)
    unfinished_bytes: int = field(default=0, init=False)  # of an incomplete frame
    _message_id_prefix: str = field(init=False)
    _sequence: int = field(default=0, init=False)
    _user: str | None = field(default=None, init=False)
    _now: int = field(default=0, init=False)
    _names: DestinationNames = field(init=False)
    _subscriptions: dict[str, StompSubscription] = field(default_factory=dict, init=False)
    _last_ordinal: int = field(default=0, init=False)
    _ordinals: dict[str, StompSubscription] = field(default_factory=dict, init=False)
    # STOMP 1.0 and 1.1: which acknowledgements each open transaction holds (see _acknowledge_by_message_id).
    _transaction_acks: dict[str, set[tuple[StompSubscription, str]]] = field(default_factory=dict, init=False)
    _connected_headers: str = field(default="", init=False)
    # The message that is delivered next, and its frame, which was encoded on a thread.
    _prepared: tuple[Message, tuple[bytes, bytes] | Undeliverable] | None = field(default=None, init=False)
    is_connected: bool = field(default=False, init=False)
    # Heart-beats (STOMP 1.2, Heart-beating), 0: none. Known once the client's CONNECT was read.
    send_interval_ms: int = field(default=0, init=False)
    receive_interval_ms: int = field(default=0, init=False)

    @property
    def survives_errors(self) -> bool:
        """Return False: each error states whether it ends the connection."""
        return False

    @property
    def can_pull(self) -> bool:
        return False

    def __post_init__(self, connection_id: str, secret: Callable[[], str]) -> None:
        self._parser = FrameParser(
            self.limits._replace(
                frame_bytes_max=min(self.limits.frame_bytes_max, CONNECT_BYTES_MAX),
                headers_max=min(self.limits.headers_max, CONNECT_HEADERS_MAX),
            )
        )
        self._parser.dialect = CONNECTING
        self._handlers = _BEFORE_CONNECT
        self._message_id_prefix = f"{broker_producer(connection_id)}:"
        self._names = DestinationNames(connection_id, secret)

    @property
    def is_logged_in(self) -> bool:
        """True after CONNECT, which is the greeting and the login."""
        return self.is_connected

    @property
    def version(self) -> str:
        """Version of STOMP in use; "1.0" before CONNECT."""
        return self._dialect.version

    # ---- input of the client

    def receive(self, data: bytes) -> list[Command]:
        """Parse the next bytes, and return the commands that are complete now. Never raises.

        A ProtocolFailure in the list takes the place of a frame with a mistake. If its error is fatal, no command
        follows it, now or later. If ``has_more`` is set after the call, the list is incomplete: carry out its commands,
        then call ``receive(b"")`` for the rest.
        """
        commands: list[Command] = []
        if self._is_pausing:
            if self._is_over:
                return commands
            self._resume()
        self.has_more = False
        self._now = self.clock()
        parser = self._parser
        created = self._names.created
        headers: Headers = {}
        try:
            if data:
                parser.feed(data)
            ends = parser.offset + RECEIVED_BYTES_MAX
            for _ in range(COMMANDS_MAX):
                try:
                    frame = parser.next_frame()
                except FrameTooLong as too_long:  # a separate name: mypyc gives a name one type
                    commands.append(ProtocolFailure(too_long, too_long.transaction))
                    if parser.offset >= ends:
                        break
                    continue
                if frame is None:
                    self.unfinished_bytes = parser.unfinished_bytes
                    self.has_more = bool(parser.data)  # the rest of a long head
                    return commands
                name, headers, body = frame
                handler = self._handlers.get(name)
                if handler is None:
                    raise self._unexpected(name)
                try:
                    command = handler(self, headers, body)
                except ClientError as error:
                    if error.is_fatal:
                        raise
                    error.receipt = headers.get("receipt")
                    command = ProtocolFailure(error, headers.get("transaction"))
                if created:
                    commands += map(AddDestination, created)
                    created.clear()
                commands.append(command)
                if self._is_pausing:
                    self.has_more = not self._is_over
                    return commands
                if not parser.data:  # usual: saves another call of the parser
                    self.unfinished_bytes = 0
                    return commands
                if parser.offset >= ends:
                    break
                headers = {}
            self.has_more = True
        except ClientError as error:
            if error.receipt is None:
                error.receipt = headers.get("receipt")
            commands.append(ProtocolFailure(error))
            self.end()
        return commands

    def _resume(self) -> None:
        """Continue after the commands returned so far were carried out: a subscription that had to be closed is
        closed."""
        self._is_pausing = self.has_more = False
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            self._forget(leaving.id)

    def _forget(self, id: str) -> None:
        """Free the id of a subscription that ended or was refused."""
        subscription = self._subscriptions.pop(id, None)
        if subscription is not None:
            del self._ordinals[subscription.ordinal]

    def end(self) -> None:
        """Parse nothing more, and drop the input that is not parsed yet."""
        self._is_over = self._is_pausing = True
        self._parser = FrameParser(DEFAULT_LIMITS)
        self.unfinished_bytes = 0

    def peer_disconnect(self) -> Command | None:
        """Return a DISCONNECT: frames before it get their receipts."""
        return Disconnect(None) if self.is_connected and not self._is_over else None

    def _unexpected(self, name: str) -> ClientError:
        if self._handlers is _CONNECTED:
            if name in _BEFORE_CONNECT:
                return ClientError(f"{name} was sent twice", "A client connects only once on a connection.")
            return ClientError(
                f"Unknown STOMP command: {name[:40]!r}", f"Known commands are {', '.join(_CONNECTED)}, in capitals."
            )
        if name in _CONNECTED:
            return ClientError(f"{name} was sent before CONNECT", "The first frame must be CONNECT or STOMP.")
        return ClientError(
            f"Unknown STOMP command: {name[:40]!r}",
            "This port serves STOMP; the first frame must be CONNECT or STOMP.",
        )

    def _connect(self, headers: Headers, body: bytes) -> Connect:
        # STOMP 1.2, Protocol Negotiation: the highest version that both know; 1.0 when the client names none.
        accepted = headers.get("accept-version", "1.0")
        common = DIALECTS.keys() & {version.strip() for version in accepted.split(",")}
        if not common:
            raise ClientError(
                f"Invalid protocol version [{accepted[:80]}], supported versions are: {', '.join(DIALECTS)}",
                "Name at least one of them in accept-version.",
            )
        dialect = DIALECTS[max(common)]
        kept = () if dialect.trims else _KEPT
        headers = {name: value if name in kept else value.strip() for name, value in headers.items()}
        # STOMP 1.0 has no heart-beats: a client that requests them with this version, as webstomp does, sends none. The
        # connector's default also applies to STOMP 1.0.
        asked = None if dialect is V10 else headers.get("heart-beat")
        self._negotiate_heart_beats(self.default_heart_beat if asked is None else asked)
        self._dialect = self._parser.dialect = dialect
        self._parser.limits = self.limits
        self._parser.passes_over = True
        self._handlers = _CONNECTED
        answers = {"receipt-id": headers.get("receipt"), "response-id": headers.get("request-id")}
        self._connected_headers = "".join(f"{name}:{value}\n" for name, value in answers.items() if value is not None)
        self._is_pausing = True
        return Connect(headers.get("client-id"), headers.get("login"), headers.get("passcode"))

    def _negotiate_heart_beats(self, header: str) -> None:
        """Set the intervals as ActiveMQ does: the client must send at the interval that it offers, and gets heart-beats
        at the interval that it requests, but not more often than HEART_BEAT_MS_MIN."""
        found = _HEART_BEAT.fullmatch(header)
        if found is None or max(can_send := int(found[1]), wants := int(found[2])) > HEART_BEAT_MS_MAX:
            raise ClientError(
                f"Invalid heart-beat header {header[:40]!r}",
                f"Two numbers of milliseconds are expected, like 10000,10000 (0: none; at most {HEART_BEAT_MS_MAX}).",
            )
        self.receive_interval_ms = can_send
        self.send_interval_ms = max(wants, self.heart_beat_ms_min) if wants else 0

    def _send(self, headers: Headers, body: bytes) -> Send:
        get = headers.get
        name = get("destination")
        if name is None:
            raise missing("SEND", "destination")
        names = self._names
        destination = names.known.get(name) or names.read(name)
        known = 1
        transaction = get("transaction")
        if transaction is not None:
            known = 2
        receipt = get("receipt")
        if receipt is not None:
            known += 1
        persistent = get("persistent")
        if persistent is not None:
            known += 1
        if "content-length" in headers:
            known += 1
            body_kind = _BYTES
        else:
            body_kind = _TEXT
        self._sequence = sequence = self._sequence + 1
        message = Message(
            destination,
            f"{self._message_id_prefix}{sequence}",
            body,
            body_kind,
            persistent=persistent == "true" or (persistent is not None and _is_persistent(persistent)),
            timestamp=self._now,
        )
        if len(headers) != known:
            later = apply_headers(message, headers, names, self._user)
            if later is not None:
                return Send(message, transaction, receipt, partial(_translate, message, later))
        if message.body_kind is _TEXT and len(body) <= QUICK_BYTES_MAX and not body.isascii():
            _keep_undecodable(message)  # a longer one is checked when it is written
        return Send(message, transaction, receipt)

    def _subscribe(self, headers: Headers, body: bytes) -> Subscribe:
        command = read_subscribe(headers, self._dialect, self._names)
        if command.id in self._subscriptions:
            raise refusal(f"Subscription {command.id[:200]!r} exists already", "Each needs its own id.")
        # An ordinal is never reused: a late ACK must not match another subscription.
        self._last_ordinal += 1
        ordinal = str(self._last_ordinal)
        subscription = StompSubscription(command.id, ordinal, "id" in headers, self._dialect)
        self._subscriptions[command.id] = self._ordinals[ordinal] = subscription
        subscription.destination = command.destination
        subscription.transformation = headers.get("transformation")
        subscription.is_browser = command.is_browser
        if command.selector is not None:
            self._is_pausing = True
        return command

    def _unsubscribe(self, headers: Headers, body: bytes) -> Unsubscribe:
        get = headers.get
        durable_name = durable_name_of(headers)
        id = get("id")
        if id is None and self._dialect is V10:
            id = self._id_of(get("destination"))
        if id is None and durable_name is None:
            raise missing("UNSUBSCRIBE", "destination" if self._dialect is V10 else "id")
        subscription = None if id is None else self._subscriptions.get(id)
        if subscription is None:
            # ActiveMQ's clients close a durable subscription first and delete it with a second UNSUBSCRIBE.
            if durable_name is None:
                raise refusal(f"No subscription matched {id!r}", "It was closed before, or never opened.")
            return Unsubscribe(None, durable_name=durable_name, receipt=get("receipt"))
        self._leaving = subscription
        self._is_pausing = True
        return Unsubscribe(id, durable_name=durable_name, receipt=get("receipt"))

    def _id_of(self, name: str | None) -> str | None:
        """Return the id of the subscription without an id that has that name, or the first one to that destination
        (STOMP 1.0)."""
        if name is None or name in self._subscriptions:
            return name
        destination = self._names.read(name)
        return next((each.id for each in self._subscriptions.values() if each.destination == destination), name)

    def _ack(self, headers: Headers, body: bytes) -> Ack | AckOfMessage:
        get = headers.get
        if self._dialect is V12:
            # STOMP 1.2, ACK: id repeats the ack header of the MESSAGE, which is "<ordinal>-<tag>" (deliver).
            ordinal, _, tag = get("id", "").partition("-")
            subscription = self._ordinals.get(ordinal)
            if subscription is not None and tag.isdecimal() and tag.isascii() and len(tag) <= _TAG_DIGITS_MAX:
                return Ack(subscription.id, int(tag), get("transaction"), get("receipt"))
            return _of_message("ACK", headers)
        id, tag_number = self._acknowledge_by_message_id("ACK", headers, get("transaction"))
        return Ack(id, tag_number, get("transaction"), get("receipt"))

    def _nack(self, headers: Headers, body: bytes) -> Nack | AckOfMessage:
        get = headers.get
        if self._dialect is V10:
            raise refusal("STOMP 1.0 has no NACK", "Name 1.1 or 1.2 in accept-version.")
        if self._dialect is V12:
            ordinal, _, tag = get("id", "").partition("-")
            subscription = self._ordinals.get(ordinal)
            if subscription is not None and tag.isdecimal() and tag.isascii() and len(tag) <= _TAG_DIGITS_MAX:
                subscription.check_nack()
                return Nack(subscription.id, int(tag), get("transaction"), get("receipt"))
            return _of_message("NACK", headers)
        named = self._subscriptions.get(headers.get("subscription", ""))
        if named is not None:
            named.check_nack()
        id, tag_number = self._acknowledge_by_message_id("NACK", headers, get("transaction"))
        return Nack(id, tag_number, get("transaction"), get("receipt"))

    def _acknowledge_by_message_id(self, command: str, headers: Headers, transaction: str | None) -> tuple[str, int]:
        """Return the delivery that message-id (and subscription) names (STOMP 1.0 and 1.1).

        The session forgets the delivery at once, or with the commit of its transaction: after ABORT, the client may
        acknowledge it again.
        """
        message_id = headers.get("message-id")
        if message_id is None:
            raise missing(command, "message-id")
        subscription_id = headers.get("subscription")
        if subscription_id is not None:
            named = self._subscriptions.get(subscription_id)
            candidates = [] if named is None else [named]
        elif self._dialect is V10:
            candidates = list(self._subscriptions.values())
        else:
            raise missing(command, "subscription")
        for subscription in candidates:
            tag = subscription.tags.get(message_id)
            if tag is not None:
                break
        else:
            raise _unknown_identity(command, headers)
        if transaction is None:
            subscription.forget(message_id)
        elif command == "ACK" and transaction in self._transaction_acks:
            self._transaction_acks[transaction].add((subscription, message_id))
        return subscription.id, tag

    def _begin(self, headers: Headers, body: bytes) -> Begin:
        transaction = _transaction("BEGIN", headers)
        if self._dialect is not V12:
            self._transaction_acks.setdefault(transaction, set())
        return Begin(transaction, headers.get("receipt"))

    def _commit(self, headers: Headers, body: bytes) -> Commit:
        transaction = _transaction("COMMIT", headers)
        for subscription, message_id in self._transaction_acks.pop(transaction, ()):
            subscription.forget(message_id)
        return Commit(transaction, headers.get("receipt"))

    def _abort(self, headers: Headers, body: bytes) -> Abort:
        transaction = _transaction("ABORT", headers)
        self._transaction_acks.pop(transaction, None)
        return Abort(transaction, headers.get("receipt"))

    def _disconnect(self, headers: Headers, body: bytes) -> Disconnect:
        self.end()
        return Disconnect(headers.get("receipt"))

    # ---- answers of the broker

    def connected(self, command: Connect, session_id: str, user: str | None = None) -> None:
        """Write CONNECTED, which is never escaped (STOMP 1.2, Value Encoding), also in versions that escape."""
        self.is_connected = True
        self._user = user
        self._write(
            (
                f"CONNECTED\nversion:{self._dialect.version}\nsession:{V10.escape(session_id)}\nserver:{SERVER}\n"
                f"heart-beat:{self.send_interval_ms},{self.receive_interval_ms}\n{self._connected_headers}\n\0\n"
            ).encode()
        )

    def receipt(self, receipt: str) -> None:
        """Write RECEIPT for the frame that requested it."""
        if not receipt.isalnum():
            receipt = self._dialect.escape(receipt)
        frame = b"RECEIPT\nreceipt-id:%b\n\n\0\n" % receipt.encode()
        self._out.append(frame)
        self.pending_bytes += len(frame)

    def deliver(
        self, subscription_id: str, tag: int, message: Message, redeliveries: int, ack_mode: AckMode
    ) -> Callable[[], None] | None:
        """Write MESSAGE. ``tag`` comes back in the Ack or Nack for it."""
        subscription = self._subscriptions[subscription_id]
        dialect = self._dialect
        transformation = subscription.transformation
        own = self._names.own
        body_bytes_max = self.limits.frame_bytes_max
        is_own = own and (message.destination in own or message.reply_to in own)
        write = self._names.write if is_own else write_destination
        if self._prepared is not None and self._prepared[0] is message:
            result = self._prepared[1]
            self._prepared = None
            if isinstance(result, Undeliverable):
                raise result
            rest = result
        else:
            try:
                rest = encode_once(message, dialect, transformation, write, inflated_bytes_max=body_bytes_max)
            except TakesLong:
                return partial(self._prepare, message, transformation, write)
        if ack_mode is _AUTO:
            start = subscription.start
        elif dialect is V12:
            start = b"%b%d\n" % (subscription.ack_start, tag)
        else:
            start = subscription.start
            subscription.remember(message.message_id, tag, ack_mode)
        if redeliveries:
            start += b"redelivered:true\n"
        head, body = rest
        if len(body) < SHARED_BODY_BYTES_MIN:
            frame = b"%b%b%b\0\n" % (start, head, body)
            self._out.append(frame)
            self.pending_bytes += len(frame)
        else:
            self._write(start + head)
            self._write(body)
            self._write(b"\0\n")
        return None

    def _prepare(self, message: Message, transformation: str | None, write: Callable[[Destination], str]) -> None:
        """Make the MESSAGE that takes long, for the next ``deliver``. Runs on a thread."""
        try:
            whole = encode(
                message, self._dialect, transformation, write, inflated_bytes_max=self.limits.frame_bytes_max
            )
        except Undeliverable as reason:
            self._prepared = message, reason
        else:
            self._prepared = message, whole

    def drop_prepared(self) -> None:
        self._prepared = None

    def nothing(self, subscription_id: str) -> None:
        """Write the end of a browser: a MESSAGE with ``browser:end`` (StompQueueBrowserSubscription)."""
        subscription = self._subscriptions.get(subscription_id)
        if subscription is None:
            return
        destination = self._dialect.escape(self._names.write(subscription.destination))
        self._write(
            b"%bdestination:%b\nmessage-id:0\nbrowser:end\ncontent-length:0\n\n\0\n"
            % (subscription.start, destination.encode("utf-8", "replace"))
        )

    def tell_prefetch(self, subscription_id: str, prefetch: int) -> None:
        raise AssertionError("no STOMP client pulls")

    def close_consumer(self, subscription_id: str, error: ClientError) -> None:
        """Write ERROR. The connection stays, and the id may be used again."""
        self._forget(subscription_id)
        self.fail(error)

    def prepared(self, receipt: str, is_read_only: bool) -> None:
        raise AssertionError("no STOMP client prepares a transaction")

    def recovered(self, receipt: str, branches: Sequence[XaTransactionId]) -> None:
        raise AssertionError("no STOMP client asks for prepared transactions")

    def fail(self, error: ClientError) -> None:
        """Write ERROR: one line in ``message``, and advice in the body."""
        if error.refused_id is not None:
            self._forget(error.refused_id)
        escape = self._dialect.escape
        body = f"{error.message}\n{error.detail}\n".encode("utf-8", "replace")
        lines = [f"ERROR\nmessage:{escape(error.message.replace(chr(10), ' '))}\ncontent-type:text/plain\n"]
        if error.receipt is not None:
            lines.append(f"receipt-id:{escape(str(error.receipt))}\n")
        if not self.is_connected:
            # STOMP 1.2, Protocol Negotiation: the error names the supported versions.
            lines.append(f"version:{','.join(DIALECTS)}\n")
        # Only if the body needs it, as in ActiveMQ: with it, stompit ends its Node process after a refused login.
        if b"\0" in body:
            lines.append(f"content-length:{len(body)}\n")
        self._write(b"%b\n%b\0\n" % ("".join(lines).encode("utf-8", "replace"), body))

    def tell_brokers(self) -> None:
        """Do nothing: STOMP has no frame for it."""

    def heart_beat(self) -> None:
        """Write a sign of life (STOMP 1.2, Heart-beating: an EOL)."""
        self._write(b"\n")


Handler = Callable[[StompSession, Headers, bytes], Command]

_BEFORE_CONNECT: Final[dict[str, Handler]] = {
    "CONNECT": StompSession._connect,
    "STOMP": StompSession._connect,
}
_CONNECTED: Final[dict[str, Handler]] = {
    "SEND": StompSession._send,
    "ACK": StompSession._ack,
    "NACK": StompSession._nack,
    "SUBSCRIBE": StompSession._subscribe,
    "UNSUBSCRIBE": StompSession._unsubscribe,
    "BEGIN": StompSession._begin,
    "COMMIT": StompSession._commit,
    "ABORT": StompSession._abort,
    "DISCONNECT": StompSession._disconnect,
}


def _transaction(command: str, headers: Headers) -> str:
    transaction = headers.get("transaction")
    if transaction is None:
        raise missing(command, "transaction")
    return transaction


def _translate(message: Message, become_map: Callable[[], None]) -> None:
    become_map()
    if message.body_kind is BodyKind.TEXT and not is_utf8(message.body):  # in pieces: it may be very long
        message.body_kind = BodyKind.BYTES


def _keep_undecodable(message: Message) -> None:
    """Change a text that is not UTF-8 to bytes, so that it is not damaged."""
    try:
        message.body.decode()
    except UnicodeDecodeError:
        message.body_kind = BodyKind.BYTES


def _is_persistent(value: str) -> bool:
    """Return whether the value is true, in other spellings than those of the hot path, such as ``True`` of stomp.py."""
    text = value.strip().lower()
    if text not in ("true", "false"):
        raise refusal(f"The header persistent has the value {value[:40]!r}", "It must be true or false.")
    return text == "true"


def _of_message(command: str, headers: Headers) -> AckOfMessage:
    """Acknowledge by message-id, which several client libraries send in the header id. STOMP 1.2: the id does not
    repeat the ack header of a MESSAGE."""
    id = headers.get("id")
    if id is None and "message-id" not in headers:
        raise missing(command, "id")
    if id is None or _LIKE_ACK.fullmatch(id):
        raise _unknown_identity(command, headers)
    get = headers.get
    return AckOfMessage(id, command == "NACK", get("transaction"), get("receipt"), get("subscription"))


# The form of the header ack, as the broker writes it.
_LIKE_ACK: Final = re.compile(r"[0-9]+-[0-9]+")
_TAG_DIGITS_MAX: Final = 18


def _unknown_identity(command: str, headers: Headers) -> ClientError:
    if "id" in headers:
        return refusal(
            f"Unexpected {command} received for id [{headers['id'][:200]}]",
            "id must repeat the ack header of a MESSAGE that an open subscription received and that is not acknowledged"
            " yet.",
        )
    return refusal(
        f"Unexpected {command} received for message-id [{headers['message-id'][:200]}]",
        "It must name a MESSAGE that an open subscription received and that is not acknowledged yet (STOMP 1.2: in the"
        " header id, by the ack header of the MESSAGE).",
    )
