"""Journals of the real ActiveMQ read by us, and journals of ours read by the real ActiveMQ: record by record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemmq.journal.format import encode_batch
from tandemmq.store.records.acknowledgements import MessageAck, SubscriptionInfo, decode_ack, encode_ack
from tandemmq.store.records.commands import (
    AckMap,
    AddMessage,
    Command,
    Commit,
    Prepare,
    ProducerAudit,
    RemoveDestination,
    RemoveMessage,
    Rollback,
    Subscription,
    Trace,
    UpdateMessage,
    decode,
    encode,
    encode_add,
    encode_commit,
    encode_prepare,
    encode_remove,
    encode_remove_destination,
    encode_rollback,
    encode_subscription,
    encode_trace,
    encode_unsubscribe,
    encode_update,
)
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import decode_message, detect_version, encode_message
from tandemmq.store.records.properties import Byte, Char, Float, Long, Short
from tandemmq.store.records.transactions import LocalTransactionId, TransactionId, XaTransactionId
from tests.interop.conftest import ActiveMQ, Owner
from tests.support.journal.in_memory import scan_bytes

pytestmark = [pytest.mark.service, pytest.mark.promise("bytes-are-activemqs")]


PROPERTY_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "double",
    str: "string",
    bytes: "bytes",
    dict: "map",
    list: "list",
    Byte: "byte",
    Short: "short",
    Long: "long",
    Float: "float",
    Char: "character",
}
FAR_FUTURE = 4102444800000
NOW = 1700000000000
PRODUCER = "ID:tandem-3-1:1:1"


# ---- the same JSON as java/Tandem.java


def described(message: Message) -> dict[str, Any]:
    return {
        "id": message.message_id,
        "jmsId": message.message_id,
        "destination": str(message.destination),
        "kind": int(message.body_kind),
        "body": message.body.decode() if message.body_kind is BodyKind.TEXT else message.body.hex(),
        "properties": {name: typed(value) for name, value in (message.properties or {}).items()},
        "persistent": message.persistent,
        "priority": message.priority,
        "timestamp": message.timestamp,
        "expiration": message.expiration,
        "correlationId": message.correlation_id,
        "replyTo": message.reply_to and str(message.reply_to),
        "type": message.type,
        "groupId": message.group_id,
        "groupSequence": message.group_sequence,
        "userId": message.user_id,
        "redeliveryCounter": message.redelivery_counter,
        "originalDestination": message.original_destination and str(message.original_destination),
    }


def typed(value: Any) -> list[Any]:
    name = PROPERTY_TYPES[type(value)]
    if isinstance(value, dict):
        return [name, {key: typed(item) for key, item in value.items()}]
    if isinstance(value, list):
        return [name, [typed(item) for item in value]]
    return [name, value.hex() if isinstance(value, bytes) else value]


# ---- a journal in the plainest words


class Replay:
    """Content of a journal by its records, decided as kahadb does, in memory and in the simplest way."""

    def __init__(self, commands: list[Command]) -> None:
        self.queues: dict[Destination, dict[str, Message]] = {}
        self.subscriptions: dict[str, tuple[Subscription, dict[str, Message]]] = {}
        self.open: dict[TransactionId, list[AddMessage | RemoveMessage]] = {}
        self.prepared: list[TransactionId] = []
        for command in commands:
            self._apply(command)

    def _apply(self, command: Command) -> None:
        match command:
            case AddMessage() | RemoveMessage() if command.transaction is not None:
                self.open.setdefault(command.transaction, []).append(command)
            case AddMessage():
                for held in self._owners(command.destination):
                    held.setdefault(command.message_id, decode_message(command.message))
            case RemoveMessage(_, message_id, _, None):
                self.queues[command.destination].pop(message_id, None)
            case RemoveMessage(_, message_id, _, key) if key in self.subscriptions:
                self.subscriptions[key][1].pop(message_id, None)
            case UpdateMessage(add):
                for held in self._owners(add.destination):
                    held[add.message_id] = decode_message(add.message)
            case Prepare(transaction):
                self.prepared.append(transaction)
            case Commit(transaction) | Rollback(transaction):
                operations = self.open.pop(transaction, [])
                self.prepared = [other for other in self.prepared if other != transaction]
                for operation in operations if isinstance(command, Commit) else []:
                    self._apply(operation._replace(transaction=None))
            case RemoveDestination(destination):
                self.queues.pop(destination, None)
            case Subscription(_, key, None):
                self.subscriptions.pop(key, None)
            case Subscription(_, key):
                self.subscriptions.setdefault(key, (command, {}))

    def _owners(self, destination: Destination) -> list[dict[str, Message]]:
        if destination.is_topic:
            return [held for info, held in self.subscriptions.values() if info.destination == destination]
        return [self.queues.setdefault(destination, {})]

    def owners(self) -> Iterator[Owner]:
        for destination in sorted(self.queues, key=str):
            messages = [described(message) for message in self.queues[destination].values()]
            yield {"owner": "queue", "destination": str(destination), "messages": messages}
        for _, (subscription, held) in sorted(self.subscriptions.items()):
            info = subscription.info
            assert info is not None
            yield {
                "owner": "subscription",
                "destination": str(subscription.destination),
                "clientId": info.client_id,
                "name": info.name,
                "selector": info.selector,
                "noLocal": info.no_local,
                "messages": [described(message) for message in held.values()],
            }
        for transaction in self.prepared:
            assert isinstance(transaction, XaTransactionId)
            yield {
                "owner": "prepared",
                "formatId": transaction.format_id,
                "globalId": transaction.global_id.hex(),
                "branch": transaction.branch.hex(),
            }


def payloads_in(directory: Path) -> list[bytes]:
    found = []
    for path in sorted(directory.glob("db-*.log"), key=lambda path: int(path.stem[3:])):
        batches = scan_bytes(path.read_bytes(), int(path.stem[3:]))
        found += [payload for batch in batches for _, payload in batch.records]
    return found


def owners_in(directory: Path) -> list[Owner]:
    return list(Replay([decode(payload) for payload in payloads_in(directory)]).owners())


# ---- ActiveMQ wrote it


@pytest.fixture(scope="module", params=["stop", "halt"])
def foreign(request: pytest.FixtureRequest, activemq: ActiveMQ, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A directory that ActiveMQ filled and left (or was killed), and its report of the content."""
    directory = tmp_path_factory.mktemp("foreign")
    return directory, activemq("produce", directory, request.param)


def test_a_journal_of_activemq_says_what_activemq_holds(foreign: tuple[Path, list[Owner]]) -> None:
    directory, owners = foreign

    assert owners_in(directory) == [owner for owner in owners if owner.get("messages") != [] or "clientId" in owner]


def test_every_command_of_activemq_is_written_as_activemq_wrote_it(foreign: tuple[Path, list[Owner]]) -> None:
    directory, _ = foreign
    kinds = set()

    for payload in payloads_in(directory):
        command = decode(payload)
        kinds.add(type(command))
        if not isinstance(command, AckMap | ProducerAudit):
            assert encode(command).hex() == payload.hex()

    assert kinds >= {
        Trace,
        AddMessage,
        RemoveMessage,
        Commit,
        Rollback,
        Prepare,
        RemoveDestination,
        Subscription,
    }


def test_every_message_of_activemq_reads_the_same_when_we_wrote_it(foreign: tuple[Path, list[Owner]]) -> None:
    directory, _ = foreign
    frames = [c.message for c in map(decode, payloads_in(directory)) if isinstance(c, AddMessage)]

    for frame in frames:
        message = decode_message(frame)
        assert described(decode_message(encode_message(message))) == described(message)
    assert detect_version(frames) == 11


def test_every_acknowledgement_of_activemq_names_its_message(foreign: tuple[Path, list[Owner]]) -> None:
    directory, _ = foreign
    removes = [c for c in map(decode, payloads_in(directory)) if isinstance(c, RemoveMessage)]

    acks = [(remove, decode_ack(remove.ack)) for remove in removes if remove.ack]

    assert len(acks) >= 5
    for remove, ack in acks:
        assert ack.last_message_id == remove.message_id
        assert ack.destination == remove.destination
        assert ack.transaction == remove.transaction


# ---- we wrote it

ORDERS = Destination(DestinationKind.QUEUE, "orders")
DOOMED = Destination(DestinationKind.QUEUE, "doomed")
NEWS = Destination(DestinationKind.TOPIC, "news.größe")
LOCAL = LocalTransactionId("ID:tandem-3-1", 1)
IN_DOUBT = "acknowledged by a prepared transaction"
XA = XaTransactionId(-7, b"\1\2\3", b"\x09")


class Pen:
    """Writes records in order, each message with the next id."""

    def __init__(self) -> None:
        self.payloads = [encode_trace("TANDEMMQ 1 {}")]
        self._sequence = 0

    def add(
        self,
        destination: Destination,
        body: bytes,
        kind: BodyKind = BodyKind.TEXT,
        transaction: TransactionId | None = None,
        **fields: Any,
    ) -> Message:
        self._sequence += 1
        fields = {"persistent": True, "timestamp": NOW + self._sequence, **fields}
        message = Message(destination, f"{PRODUCER}:{self._sequence}", body, kind, **fields)
        self.payloads.append(encode_add(message, encode_message(message), transaction))
        return message

    def write(self, directory: Path) -> None:
        batch, _ = encode_batch(self.payloads)
        (directory / "db-1.log").write_bytes(batch)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A directory with every kind of record that we write."""
    pen = Pen()
    answers = Destination(DestinationKind.QUEUE, "answers")
    everything = {
        "boolean": True,
        "byte": Byte(-5),
        "short": Short(-300),
        "int": 70000,
        "long": Long(5),
        "wide": Long(2**40),
        "float": Float(1.5),
        "double": -2.25,
        "string": "grüße 😀",
        "char": Char("ß"),
        "null": None,
        "big": "x" * 9000,
        "list": [1, "x", Long(7), None, False, {"deep": b"\0\xff"}],
        "map": {"inner": Char("Z"), "bytes": b"ab"},
    }
    pen.add(
        ORDERS,
        "héllo 😀 \0 end".encode(),
        properties=everything,
        correlation_id="corr-1 €",
        reply_to=answers,
        type="order",
        group_id="group-1",
        group_sequence=3,
        user_id="system",
        expiration=FAR_FUTURE,
        redelivery_counter=2,
        original_destination=answers,
    )
    pen.add(ORDERS, b"", priority=0)
    pen.add(ORDERS, bytes(range(256)), BodyKind.BYTES, priority=9, reply_to=NEWS)
    pen.add(ORDERS, b"", BodyKind.BYTES)
    pen.add(ORDERS, b"\0\0\0\1\0\3age\5\0\0\0\x2a", BodyKind.MAP)
    pen.add(ORDERS, b"\x09\0\3one\6" + (2).to_bytes(8, "big"), BodyKind.STREAM)
    pen.add(ORDERS, b"", BodyKind.NONE)
    done = pen.add(ORDERS, b"acknowledged")
    pen.payloads.append(encode_remove(ORDERS, done.message_id))
    old = pen.add(ORDERS, b"redelivered once")
    old.redelivery_counter = 1
    pen.payloads.append(encode_update(old, encode_message(old)))

    pen.add(ORDERS, b"committed", transaction=LOCAL)
    taken = pen.add(ORDERS, b"taken in a transaction")
    pen.payloads.append(encode_remove(ORDERS, taken.message_id, LOCAL))
    pen.payloads.append(encode_commit(LOCAL))
    second = LOCAL._replace(value=2)
    pen.add(ORDERS, b"rolled back", transaction=second)
    pen.payloads.append(encode_rollback(second))
    pen.add(ORDERS, b"never committed", transaction=LOCAL._replace(value=3))
    kept = pen.add(ORDERS, IN_DOUBT.encode())
    pen.add(ORDERS, b"sent by a prepared transaction", transaction=XA)
    consumer = "ID:tandem-3-1:1:1"
    ack = MessageAck(ORDERS, kept.message_id, consumer, XA, first_message_id=kept.message_id)
    pen.payloads.append(encode_remove(ORDERS, kept.message_id, XA, ack=encode_ack(ack)))
    pen.payloads.append(encode_prepare(XA))

    pen.add(DOOMED, b"goes with its queue")
    pen.payloads.append(encode_remove_destination(DOOMED))

    pen.payloads.append(encode_subscription(NEWS, "client-1", "all"))
    pen.payloads.append(encode_subscription(NEWS, "client-1", "red", "colour = 'red'", no_local=True))
    pen.payloads.append(encode_subscription(NEWS, "client-1", "gone"))
    read = pen.add(NEWS, b"read by all", properties={"colour": "red"})
    pen.payloads.append(encode_remove(NEWS, read.message_id, subscription_key="client-1:all"))
    pen.payloads.append(encode_unsubscribe(NEWS, "client-1", "gone"))
    blue = pen.add(NEWS, b"blue", properties={"colour": "blue"})
    pen.payloads.append(encode_remove(NEWS, blue.message_id, subscription_key="client-1:red", ack=b""))
    pen.write(tmp_path)
    return tmp_path


def test_activemq_holds_what_our_journal_says(ours: Path, activemq: ActiveMQ) -> None:
    # ActiveMQ takes the message that a prepared transaction acknowledges out of sight, and rolls back what is open.
    expected = owners_in(ours)
    queue = next(owner for owner in expected if owner["destination"] == str(ORDERS))
    assert len(queue["messages"]) == 10

    queue["messages"] = [message for message in queue["messages"] if message["body"] != IN_DOUBT]
    assert activemq("dump", ours) == expected


def test_a_jms_client_receives_what_our_journal_says(ours: Path, activemq: ActiveMQ) -> None:
    held = {
        (owner["destination"], owner.get("name")): owner["messages"] for owner in owners_in(ours) if "messages" in owner
    }

    received = {(owner["destination"], owner.get("name")): owner["messages"] for owner in activemq("consume", ours)}

    assert received[str(ORDERS), None] == [m for m in held[str(ORDERS), None] if m["body"] != IN_DOUBT]
    assert received[str(NEWS), "all"] == held[str(NEWS), "all"]
    assert [m["body"] for m in received[str(NEWS), "red"]] == ["read by all"]
    # What it took, it took from our records: its acknowledgements name our messages.
    left = {
        (owner["destination"], owner.get("name")): owner["messages"] for owner in owners_in(ours) if "messages" in owner
    }
    assert [m["body"] for m in left[str(ORDERS), None]] == [IN_DOUBT]
    assert left[str(NEWS), "all"] == left[str(NEWS), "red"] == []


def test_a_foreign_id_is_found_again_by_activemq(tmp_path: Path, activemq: ActiveMQ) -> None:
    message = Message(ORDERS, "from elsewhere", b"x", BodyKind.TEXT, persistent=True, timestamp=NOW)
    pen = Pen()
    pen.payloads.append(encode_add(message, encode_message(message)))
    pen.write(tmp_path)

    (owner,) = activemq("consume", tmp_path)

    assert [m["jmsId"] for m in owner["messages"]] == ["ID:from elsewhere"]
    assert owners_in(tmp_path)[0]["messages"] == []


def test_subscription_info_is_that_of_activemq(foreign: tuple[Path, list[Owner]]) -> None:
    directory, _ = foreign
    created = [c for c in map(decode, payloads_in(directory)) if isinstance(c, Subscription) and c.info]

    news = Destination(DestinationKind.TOPIC, "news")
    assert [c.info for c in created][:2] == [
        SubscriptionInfo("client-1", news, "offline", None, news),
        SubscriptionInfo("client-1", news, "choosy", "colour = 'red'", news),
    ]
