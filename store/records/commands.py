"""Codec of KahaDB's commands, the payloads of journal records.

    i1 command number, varint length, protobuf message           (journal-data.proto, class of that name)

Bytes after the protobuf message are ignored, as in ActiveMQ; :func:`trailing` returns them. Fields are written in the
same order as by ActiveMQ, and omitted in the same cases; unknown fields are damage. All commands can be decoded; only
those that a message store needs can be encoded. Messages, acknowledgements, audits and maps in them stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tandemmq.store.records.acknowledgements import (
    SubscriptionInfo,
    ack_of_branch,
    decode_subscription_info,
    encode_subscription_info,
)
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.loose import key_bytes, producers
from tandemmq.store.records.message import Destination, DestinationKind, Message
from tandemmq.store.records.protobuf import (
    SHORT,
    SHORT_SIZE,
    bytes_field,
    decode_varint,
    read_fields,
    signed,
    varint,
    varint_field,
)
from tandemmq.store.records.remembered import remember
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId

try:
    from tandemmq.store.records import native
except ImportError:  # not compiled
    native = None  # type: ignore[assignment]

plain_remove: Final[Callable[..., bytes | None] | None] = None if native is None else native.plain_remove

TRACE, ADD, REMOVE, PREPARE, COMMIT, ROLLBACK, REMOVE_DESTINATION, SUBSCRIPTION, AUDIT, ACK_MAP, UPDATE = range(11)
REWRITTEN: Final = 16
_NAMES: Final = (
    "TRACE ADD_MESSAGE REMOVE_MESSAGE PREPARE COMMIT ROLLBACK REMOVE_DESTINATION SUBSCRIPTION PRODUCER_AUDIT ACK_MAP "
    "UPDATE_MESSAGE SCHEDULE_ADD SCHEDULE_RESCHEDULE SCHEDULE_REMOVE SCHEDULE_REMOVE_MANY SCHEDULE_DESTROY REWRITTEN"
)
# Names of the commands, by number.
NAMES: Final = dict(enumerate(_NAMES.split()))

DEFAULT_PRIORITY: Final = 4


class Trace(NamedTuple):
    """KahaTraceCommand: a text without effect. ActiveMQ writes one at each start, and one without text to force a
    sync."""

    message: str | None


class AddMessage(NamedTuple):
    """KahaAddMessageCommand. ``message`` is the OpenWire frame. ``sender`` is the user that is charged for the bytes of
    the record (docs/formats/store.md); it is stored after the command, where ActiveMQ ignores it."""

    destination: Destination
    message_id: str
    message: bytes
    transaction: TransactionId | None = None
    priority: int = DEFAULT_PRIORITY
    priority_supported: bool = False
    sender: str | None = None


class UpdateMessage(NamedTuple):
    """KahaUpdateMessageCommand: a complete new copy of a stored message."""

    add: AddMessage


class RemoveMessage(NamedTuple):
    """KahaRemoveMessageCommand. With a subscription key, it applies only to that durable subscription.

    ``ack`` is an OpenWire MessageAck; b"" if a selector did not match; None: there is none.
    """

    destination: Destination
    message_id: str
    transaction: TransactionId | None = None
    subscription_key: str | None = None
    ack: bytes | None = None


class Prepare(NamedTuple):
    transaction: TransactionId


class Commit(NamedTuple):
    transaction: TransactionId


class Rollback(NamedTuple):
    transaction: TransactionId


class RemoveDestination(NamedTuple):
    """KahaRemoveDestinationCommand: removes a destination and all its messages."""

    destination: Destination


class Subscription(NamedTuple):
    """KahaSubscriptionCommand. Without ``info`` it removes the subscription."""

    destination: Destination
    subscription_key: str
    info: SubscriptionInfo | None = None
    retroactive: bool = False


class ProducerAudit(NamedTuple):
    """KahaProducerAuditCommand: a Java object (store.kahadb.java_objects)."""

    audit: bytes


class AckMap(NamedTuple):
    """KahaAckMessageFileMapCommand: a Java object that can be derived from the journal."""

    map: bytes


class Schedule(NamedTuple):
    """Command of the scheduler's store (numbers 11 to 15), which has its own journal. ``fields``: field number ->
    value."""

    kind: int
    fields: dict[int, str | int | bytes]


class Rewritten(NamedTuple):
    """KahaRewrittenDataFileCommand: this file has copies of the removes and commits of ``source_file``."""

    source_file: int
    rewrite_type: int | None = None
    skip_if_source_exists: bool = True


Command = (
    Trace
    | AddMessage
    | RemoveMessage
    | Prepare
    | Commit
    | Rollback
    | RemoveDestination
    | Subscription
    | ProducerAudit
    | AckMap
    | UpdateMessage
    | Schedule
    | Rewritten
)


# ---- writing


def _destination_body(destination: Destination) -> bytes:
    return varint_field(0x08, destination.kind) + bytes_field(0x12, destination.name.encode("utf-8", "surrogatepass"))


# Destination -> the bytes of field 2 of Add and Remove
destination_fields: Final[dict[Destination, bytes]] = {}
# A durable subscription's key -> the bytes of field 5 of Remove
_subscription_fields: Final[dict[str, bytes]] = {}


def destination_field(destination: Destination) -> bytes:
    """Return field 2 of all commands with a destination. The result is cached."""
    field = destination_fields.get(destination)
    if field is None:
        field = bytes_field(0x12, _destination_body(destination))
        remember(destination_fields, destination, field, len(field))
    return field


# The last transaction and its field: the commands of a transaction usually follow each other.
_last_transaction: tuple[TransactionId | None, bytes] = (None, b"")


def transaction_field(transaction: TransactionId) -> bytes:
    """Return field 1, KahaTransactionInfo, of all commands that may belong to a transaction."""
    global _last_transaction
    last = _last_transaction
    if last[0] is transaction:
        return last[1]
    field = _transaction_field(transaction)
    _last_transaction = transaction, field
    return field


def _transaction_field(transaction: TransactionId) -> bytes:
    if isinstance(transaction, LocalTransactionId):
        connection_id = transaction.connection_id.encode("utf-8", "surrogatepass")
        info = bytes_field(0x0A, bytes_field(0x0A, connection_id) + varint_field(0x08, transaction.value))
    else:
        info = bytes_field(
            0x12,
            varint_field(0x08, transaction.format_id)
            + bytes_field(0x12, transaction.branch)
            + bytes_field(0x1A, transaction.global_id),
        )
    return bytes_field(0x0A, info)


# Fields for each priority of a frame, -128 to 127. It is limited to 0 to 9 (as ActiveMQ's Message.setPriority does).
PRIORITIES: Final = tuple(
    varint_field(0x28, min(max(priority, 0), 9)) + b"\x30\0" for priority in (*range(128), *range(-128, 0))
)


def encode_add(message: Message, openwire: bytes, transaction: TransactionId | None = None) -> bytes:
    """Return the payload that stores ``message``, whose frame is ``openwire``. With a transaction, the message is
    stored when that commits."""
    head = b"" if transaction is None else transaction_field(transaction)
    tail = PRIORITIES[message.priority]
    message_id = key_bytes(message.message_id)
    field = destination_fields.get(message.destination) or destination_field(message.destination)
    key_size, frame_size = len(message_id), len(openwire)
    key_length = SHORT[key_size] if key_size < SHORT_SIZE else varint(key_size)
    frame_length = SHORT[frame_size] if frame_size < SHORT_SIZE else varint(frame_size)
    size = len(head) + len(field) + len(key_length) + key_size + len(frame_length) + frame_size + len(tail) + 2
    length = SHORT[size] if size < SHORT_SIZE else varint(size)
    # One join, so that the frame, which is most of the payload, is copied only once.
    return b"".join(
        (b"\1", length, head, field, b"\x1a", key_length, message_id, b"\x22", frame_length, openwire, tail)
    )


def encode_remove(
    destination: Destination,
    message_id: str,
    transaction: TransactionId | None = None,
    subscription_key: str | None = None,
    ack: bytes | None = None,
) -> bytes:
    """Return the payload that removes a message from a queue or, with ``subscription_key``, from one durable
    subscription.

    ``ack`` (an OpenWire MessageAck) may be omitted. In an XA transaction it is then made from the other arguments,
    because ActiveMQ needs it to recover a prepared branch.
    """
    if transaction is None and ack is None and subscription_key is None:  # the most frequent case
        field = destination_fields.get(destination) or destination_field(destination)
        if plain_remove is not None:
            payload = plain_remove(message_id, producers, field)
            if payload is not None:
                return payload
        key = key_bytes(message_id)
        key_size = len(key)
        if key_size < 128:
            size = len(field) + 2 + key_size
            length = SHORT[size] if size < SHORT_SIZE else varint(size)
            return b"".join((b"\2", length, field, b"\x1a", SHORT[key_size], key))
    else:
        key = key_bytes(message_id)
    head = b""
    if transaction is not None:
        head = transaction_field(transaction)
        if not ack and isinstance(transaction, XaTransactionId):  # prove: branch-has-acks
            ack = ack_of_branch(destination, message_id, transaction, is_unmatched=ack is not None)
    field = destination_fields.get(destination) or destination_field(destination)
    key_size = len(key)
    key_length = SHORT[key_size] if key_size < SHORT_SIZE else varint(key_size)
    tail = b"" if ack is None else bytes_field(0x22, ack)
    if subscription_key is not None:
        tail += _subscription_fields.get(subscription_key) or _subscription_field(subscription_key)
    size = len(head) + len(field) + 1 + len(key_length) + key_size + len(tail)
    length = SHORT[size] if size < SHORT_SIZE else varint(size)
    return b"".join((b"\2", length, head, field, b"\x1a", key_length, key, tail))


def _subscription_field(subscription_key: str) -> bytes:
    field = bytes_field(0x2A, subscription_key.encode("utf-8", "surrogatepass"))
    return remember(_subscription_fields, subscription_key, field, len(field))


def encode_update(message: Message, openwire: bytes) -> bytes:
    """Return the payload that replaces a stored message by a new copy."""
    return _command(UPDATE, b"\x0a" + encode_add(message, openwire)[1:])


def encode_prepare(transaction: TransactionId) -> bytes:
    return _command(PREPARE, transaction_field(transaction))


def encode_commit(transaction: TransactionId) -> bytes:
    return _command(COMMIT, transaction_field(transaction))


def encode_rollback(transaction: TransactionId) -> bytes:
    return _command(ROLLBACK, transaction_field(transaction))


def encode_remove_destination(destination: Destination) -> bytes:
    return _command(REMOVE_DESTINATION, bytes_field(0x0A, _destination_body(destination)))


def subscription_key(client_id: str, name: str) -> str:
    """Return KahaDB's key of a durable subscription."""
    return f"{client_id}:{name}"


def encode_subscription(
    destination: Destination,
    client_id: str,
    name: str,
    selector: str | None = None,
    no_local: bool = False,
    retroactive: bool = False,
    *,
    subscribed: Destination | None = None,
) -> bytes:
    """Return the payload that creates or replaces a durable subscription of one topic. ``subscribed``: the pattern to
    which the client subscribed, if it is not the topic itself."""
    info = SubscriptionInfo(client_id, destination, name, selector, subscribed or destination, no_local)
    return encode(Subscription(destination, subscription_key(client_id, name), info, retroactive))


def encode_unsubscribe(destination: Destination, client_id: str, name: str) -> bytes:
    """Return the payload that deletes a durable subscription."""
    return encode(Subscription(destination, subscription_key(client_id, name)))


def encode_producer_audit(audit: bytes) -> bytes:
    """Return the payload with the producer audit, a Java object (store.kahadb.java_objects)."""
    return _command(AUDIT, bytes_field(0x0A, audit))


def encode_trace(text: str | None) -> bytes:
    return _command(TRACE, b"" if text is None else bytes_field(0x0A, text.encode("utf-8", "surrogatepass")))


def encode_rewritten(source_file: int, rewrite_type: int | None = 1, skip_if_source_exists: bool = True) -> bytes:
    """Return the payload that begins a file of copies. As in ActiveMQ, ``skip_if_source_exists`` is written only if it
    is False."""
    body = varint_field(0x08, source_file)
    if rewrite_type is not None:
        body += varint_field(0x10, rewrite_type)
    if not skip_if_source_exists:
        body += varint_field(0x18, 0)
    return _command(REWRITTEN, body)


# Commands that contain only a transaction id.
_STEPS: Final[dict[type, int]] = {Prepare: PREPARE, Commit: COMMIT, Rollback: ROLLBACK}


def encode(command: Command) -> bytes:
    """Return the payload of a command. Raises TypeError for commands that only ActiveMQ writes."""
    match command:
        case AddMessage():
            return with_sender(_add_of(b"\1", command), command.sender)
        case UpdateMessage(add):
            return with_sender(_command(UPDATE, _add_of(b"\x0a", add)), add.sender)
        case RemoveMessage(destination, message_id, transaction, key, ack):
            return encode_remove(destination, message_id, transaction, key, ack)
        case Subscription(destination, key, info, retroactive):
            body = bytes_field(0x0A, _destination_body(destination)) + bytes_field(0x12, key.encode())
            if info is not None:
                body += varint_field(0x18, retroactive) + bytes_field(0x22, encode_subscription_info(info))
            return _command(SUBSCRIPTION, body)
        case Trace(text):
            return encode_trace(text)
        case Prepare(transaction) | Commit(transaction) | Rollback(transaction):
            return _command(_STEPS[type(command)], transaction_field(transaction))
        case RemoveDestination(destination):
            return encode_remove_destination(destination)
        case Rewritten(source_file, rewrite_type, skip):
            return encode_rewritten(source_file, rewrite_type, skip)
    raise TypeError(f"{type(command).__name__} cannot be encoded")


# Kind of the bytes after a command (store.records.hints).
SENDER: Final = 4
_SENDER_HEAD: Final = 3  # kind u8, length u16
SENDER_BYTES_MAX: Final = (1 << 16) - 1


def with_sender(payload: bytes, sender: str | None) -> bytes:
    """Return ``payload``, which stores a message, with the user that is charged for its bytes (None: no user). A name
    that is too long is omitted."""
    if sender is None:
        return payload
    name = sender.encode("utf-8", "surrogatepass")
    if len(name) > SENDER_BYTES_MAX:
        return payload
    return b"".join((payload, b"\4", len(name).to_bytes(2, "big"), name))


def sender_end(rest: bytes) -> int:
    """Return the end of the sender in ``rest``, the bytes after a command; 0: there is no sender."""
    if len(rest) < _SENDER_HEAD or rest[0] != SENDER:
        return 0
    end = _SENDER_HEAD + int.from_bytes(rest[1:_SENDER_HEAD], "big")
    return end if end <= len(rest) else 0


def sender_in(payload: bytes) -> str | None:
    """Return the user that is charged for the bytes of the record with this payload, or None."""
    rest = trailing(payload)
    end = sender_end(rest)
    try:
        return _text(rest[_SENDER_HEAD:end]) if end else None
    except UnicodeDecodeError:
        return None


def _add_of(start: bytes, add: AddMessage) -> bytes:
    tail = varint_field(0x28, add.priority) + varint_field(0x30, add.priority_supported)
    head = b"" if add.transaction is None else transaction_field(add.transaction)
    field = destination_field(add.destination)
    message_id = bytes_field(0x1A, key_bytes(add.message_id))
    body = b"".join((head, field, message_id, bytes_field(0x22, add.message), tail))
    return start + varint(len(body)) + body


def _command(kind: int, body: bytes) -> bytes:
    return varint(kind) + varint(len(body)) + body


# ---- reading


def decode(payload: bytes | memoryview) -> Command:
    """Return the command in a record's payload. Raises RecordDamaged for any invalid bytes."""
    data = payload if type(payload) is bytes else bytes(payload)
    try:
        kind = data[0]
        length = data[1]
        start = 2
        if length > 0x7F:
            length, start = decode_varint(data, 1)
        end = start + length
        if end > len(data):
            raise RecordDamaged(f"a command claims {end} bytes and has {len(data)}")
        known, build = _READERS[kind]
        command = build(read_fields(data, start, end, known))
        return command if end == len(data) else _with_sender_of(command, data)
    except IndexError:
        raise RecordDamaged("a command is truncated") from None
    except KeyError as error:
        raise RecordDamaged(f"the number of a command or field is unknown: {error}") from None
    except ValueError as error:
        raise RecordDamaged(f"a command is damaged: {error}") from None


def _with_sender_of(command: Command, payload: bytes) -> Command:
    """Return ``command`` with the sender in ``payload``, if there is one."""
    add = added(command)
    sender = None if add is None else sender_in(payload)
    if add is None or sender is None:
        return command
    add = add._replace(sender=sender)
    return UpdateMessage(add) if isinstance(command, UpdateMessage) else add


def added(command: Command) -> AddMessage | None:
    """Return the message that a command stores: an Add itself, or the Add in an Update; None for other commands."""
    if isinstance(command, UpdateMessage):
        return command.add
    return command if isinstance(command, AddMessage) else None


def stored_message(payload: bytes) -> bytes:
    """Return the OpenWire frame in the payload of an Add or Update. Other fields of an Add are not checked. Raises
    RecordDamaged."""
    try:
        if payload[0] != ADD:
            stored = added(decode(payload))
            assert stored is not None, "the payload is no Add or Update"
            return stored.message
        _, at = decode_varint(payload, 1)
        while True:
            tag = payload[at]
            length = payload[at + 1]
            at += 2
            if length > 0x7F:
                length, at = decode_varint(payload, at - 1)
            if tag == 0x22:
                break
            if tag & 7:
                at += length
    except IndexError:
        raise RecordDamaged("a command is truncated") from None
    if at + length > len(payload):
        raise RecordDamaged("a message reaches over the end of its command")
    return payload[at : at + length]


def plain_add_or_remove(payload: bytes) -> tuple[int, Destination, str, str | None, int] | None:
    """Decode the two most frequent commands, several times as fast as ``decode``.

    Return (ADD or REMOVE, destination, message id, subscription key, priority of an added message). Return None for
    other commands, for commands of transactions, and if the fields are not exactly those that KahaDB writes: then use
    ``decode``.
    """
    kind = payload[0]
    if kind != ADD and kind != REMOVE:
        return None
    try:
        at = 2 if payload[1] < 0x80 else 3 if payload[2] < 0x80 else 4 if payload[3] < 0x80 else 5
        if payload[at] != 0x12 or payload[at + 1] > 0x7F:
            return None
        start = at + 2
        end = start + payload[at + 1]
        if payload[end] != 0x1A or payload[end + 1] > 0x7F:
            return None
        destination = _destinations.get(payload[start:end])
        if destination is None:
            return None
        start = end + 2
        end = start + payload[end + 1]
        message_id = payload[start:end].decode()
        if kind == ADD:
            if payload[end] != 0x22:
                return None
            # After the frame: priority, whether the destination is prioritized, and no bytes after the command.
            stop = len(payload) - 4
            length = payload[end + 1]
            if length > 0x7F:
                end += 1
                length += (payload[end + 1] << 7) - 0x80
                if length > 0x3FFF:
                    end += 1
                    length += (payload[end + 1] << 14) - 0x4000
            if end + 2 + length != stop or payload[stop] != 0x28 or payload[stop + 2] != 0x30:
                return None
            return ADD, destination, message_id, None, payload[stop + 1]
        if end == len(payload):
            return REMOVE, destination, message_id, None, DEFAULT_PRIORITY
        if payload[end] == 0x2A and end + 2 + payload[end + 1] == len(payload) and payload[end + 1] < 0x80:
            return REMOVE, destination, message_id, _text(payload[end + 2 :]), DEFAULT_PRIORITY
    except (IndexError, UnicodeDecodeError, RecordDamaged):
        pass
    return None


def decode_destination(field: bytes) -> Destination:
    """Return the destination in a KahaDestination, the destination field of a command. Raises RecordDamaged."""
    try:
        return _destination(field)
    except (IndexError, KeyError, ValueError) as error:
        raise RecordDamaged(f"a destination is damaged: {error}") from None


def trailing(payload: bytes) -> bytes:
    """Return the bytes after the command in a record's payload, which ActiveMQ ignores. Raises RecordDamaged."""
    try:
        length, start = decode_varint(payload, 1)
    except IndexError:
        raise RecordDamaged("a command is truncated") from None
    return payload[start + length :]


Fields = dict[int, Any]


def _fields(data: bytes, *tags: int) -> Fields:
    return read_fields(data, 0, len(data), frozenset(tags))


# the bytes of a KahaDestination -> Destination
_destinations: Final[dict[bytes, Destination]] = {}


def _destination(data: bytes) -> Destination:
    found = _destinations.get(data)
    if found is None:
        fields = _fields(data, 0x08, 0x12)
        found = Destination(DestinationKind(fields[0x08]), _text(fields[0x12]))
        remember(_destinations, data, found, len(data))
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _transaction(data: bytes) -> TransactionId:
    info = _fields(data, 0x0A, 0x12, 0x1A)
    if 0x0A in info:  # as in KahaDB: if there is a local id, the transaction is local, otherwise XA
        local = _fields(info[0x0A], 0x0A, 0x08)  # two fields of number 1, with different wire types
        return LocalTransactionId(_text(local[0x0A]), signed(local[0x08]))
    xa = _fields(info[0x12], 0x08, 0x12, 0x1A)
    return XaTransactionId(signed(xa[0x08]), xa[0x1A], xa[0x12])


def _add(fields: Fields) -> AddMessage:
    get = fields.get
    transaction = get(0x0A)
    return AddMessage(
        _destination(fields[0x12]),
        fields[0x1A].decode(),
        fields[0x22],
        None if transaction is None else _transaction(transaction),
        get(0x28, DEFAULT_PRIORITY),
        get(0x30, 0) != 0,
    )


def _remove(fields: Fields) -> RemoveMessage:
    get = fields.get
    transaction = get(0x0A)
    key = get(0x2A)
    return RemoveMessage(
        _destination(fields[0x12]),
        fields[0x1A].decode(),
        None if transaction is None else _transaction(transaction),
        None if key is None else _text(key),
        get(0x22),
    )


def _subscription(fields: Fields) -> Subscription:
    info = fields.get(0x22)
    return Subscription(
        _destination(fields[0x0A]),
        _text(fields[0x12]),
        None if info is None else decode_subscription_info(info),
        fields.get(0x18, 0) != 0,
    )


def _rewritten(fields: Fields) -> Rewritten:
    rewrite_type = fields.get(0x10)
    return Rewritten(
        signed(fields[0x08]),
        None if rewrite_type is None else signed(rewrite_type),
        fields.get(0x18, 1) != 0,
    )


def _schedule(kind: int) -> Callable[[Fields], Schedule]:
    def build(fields: Fields) -> Schedule:
        values: dict[int, str | int | bytes] = {}
        for tag, value in fields.items():
            if isinstance(value, int):
                values[tag >> 3] = signed(value)
            else:
                values[tag >> 3] = value if (kind, tag) == _SCHEDULED_MESSAGE else _text(value)
        return Schedule(kind, values)

    return build


_ADD_TAGS: Final = frozenset((0x0A, 0x12, 0x1A, 0x22, 0x28, 0x30))
_TRANSACTION_TAGS: Final = frozenset((0x0A,))
_SCHEDULED_MESSAGE: Final = (11, 0x42)
_SCHEDULE_TAGS: Final = {
    11: (0x0A, 0x12, 0x18, 0x22, 0x28, 0x30, 0x38, 0x42, 0x48),  # AddScheduledJob
    12: (0x0A, 0x12, 0x18, 0x20, 0x28),  # RescheduleJob
    13: (0x0A, 0x12, 0x18),  # RemoveScheduledJob
    14: (0x0A, 0x10, 0x18),  # RemoveScheduledJobs
    15: (0x0A,),  # DestroyScheduler
}

_READERS: Final[dict[int, tuple[frozenset[int], Callable[[Fields], Command]]]] = {
    TRACE: (frozenset((0x0A,)), lambda fields: Trace(_text(fields[0x0A]) if fields else None)),
    ADD: (_ADD_TAGS, _add),
    REMOVE: (frozenset((0x0A, 0x12, 0x1A, 0x22, 0x2A)), _remove),
    PREPARE: (_TRANSACTION_TAGS, lambda fields: Prepare(_transaction(fields[0x0A]))),
    COMMIT: (_TRANSACTION_TAGS, lambda fields: Commit(_transaction(fields[0x0A]))),
    ROLLBACK: (_TRANSACTION_TAGS, lambda fields: Rollback(_transaction(fields[0x0A]))),
    REMOVE_DESTINATION: (_TRANSACTION_TAGS, lambda fields: RemoveDestination(_destination(fields[0x0A]))),
    SUBSCRIPTION: (frozenset((0x0A, 0x12, 0x18, 0x22)), _subscription),
    AUDIT: (frozenset((0x0A,)), lambda fields: ProducerAudit(fields[0x0A])),
    ACK_MAP: (frozenset((0x0A,)), lambda fields: AckMap(fields[0x0A])),
    UPDATE: (frozenset((0x0A,)), lambda fields: UpdateMessage(_add(_fields(fields[0x0A], *_ADD_TAGS)))),
    REWRITTEN: (frozenset((0x08, 0x10, 0x18)), _rewritten),
    **{kind: (frozenset(tags), _schedule(kind)) for kind, tags in _SCHEDULE_TAGS.items()},
}
