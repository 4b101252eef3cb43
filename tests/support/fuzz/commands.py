"""A fuzzer for a running broker, with clients that send arbitrary commands.

Each case is a connection that logs in and sends frames of the vectors, changed or not, with the ids of this connection,
so that the code after the decoder is reached. The broker must continue, serve others, and restart with its store, and
its log must have no traceback.
"""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from tandemmq.bench.peers.ports import free_port
from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED
from tandemmq.broker.protocols.openwire.errors import WireError
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, MessageId, ProducerId, SessionId
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.acceptance.broker_process import BrokerProcess
from tests.support.acceptance.openwire_wire import OpenWire, queue
from tests.support.fuzz.books import traceback_of
from tests.support.fuzz.openwire import changed
from tests.support.protocols.openwire.vectors import vectors

FRAMES_MAX = 40
NAMES = [
    "A", "B", "A.>", "*", "A,B", "topic://A", "ActiveMQ.Advisory.>", "ActiveMQ.DLQ", "ActiveMQ.Scheduler.Management",
]  # fmt: skip
SELECTORS = [None, "a = 1", "JMSPriority > 3", "a LIKE '%x%'", "nonsense ("]


#: Usual commands of a client. All others are rare, because most of them end the connection.
USUAL = (
    schema.MessageAck, schema.ConsumerInfo, schema.ProducerInfo, schema.RemoveInfo, schema.TransactionInfo,
    schema.DestinationInfo, schema.MessagePull, schema.ConsumerControl, schema.RemoveSubscriptionInfo,
    schema.SessionInfo, schema.WireMessage,
)  # fmt: skip
Known = tuple[list[list[Any]], list[Any]]


def commands() -> Known:
    """Return the vectors of client commands: the usual ones by type, and the rest."""
    usual: dict[type, list[Any]] = {}
    rare = []
    for vector in vectors():
        for frame in vector.frames:
            try:
                command = vector.wire_format().decode(frame)
            except WireError:
                continue
            if isinstance(command, USUAL):
                kind = schema.WireMessage if isinstance(command, schema.WireMessage) else type(command)
                usual.setdefault(kind, []).append(command)
            elif not isinstance(command, schema.ConnectionInfo | schema.WireFormatInfo | schema.ShutdownInfo):
                rare.append(command)
    return list(usual.values()), rare


def adopted(dice: random.Random, value: Any, connection: str) -> Any:
    """Return ``value`` with ids of this connection, chosen from few, and other names."""
    if isinstance(value, ConnectionId):
        return ConnectionId(connection)
    if isinstance(value, SessionId):
        return SessionId(connection, 1)
    if isinstance(value, ConsumerId):
        return ConsumerId(connection, 1, dice.randrange(3))
    if isinstance(value, ProducerId):
        return ProducerId(connection, dice.randrange(3), 1)
    if isinstance(value, MessageId):
        return MessageId(None, ProducerId(connection, dice.randrange(3), 1), dice.randrange(8), 0)
    if isinstance(value, LocalTransactionId | XaTransactionId) and dice.random() < 0.2:
        return XaTransactionId(1, connection.encode(), bytes([dice.randrange(3)]))
    if isinstance(value, LocalTransactionId):
        return LocalTransactionId(connection, dice.randrange(3))
    if isinstance(value, Destination):
        kind = dice.choice(list(DestinationKind))
        return Destination(kind, f"{connection}:{dice.randrange(2)}" if kind > 1 else dice.choice(NAMES))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: adopted(dice, getattr(value, field.name), connection) for field in fields(value)}
        )
    return value


def any_command(dice: random.Random, known: Known, connection: str) -> bytes:
    usual, rare = known
    chosen = dice.choice(rare) if dice.random() < 0.005 else dice.choice(dice.choice(usual))
    command = adopted(dice, chosen, connection)
    command.response_required = dice.random() < 0.5
    if isinstance(command, schema.ConsumerInfo):
        command.selector = dice.choice(SELECTORS)
    if isinstance(command, schema.TransactionInfo):
        command.type = dice.choice((0, 0, 0, *range(9)))
    if isinstance(command, schema.WireMessage | schema.MessageAck) and dice.random() < 0.6:
        command.transaction_id = None
    if isinstance(command, schema.RemoveInfo) and isinstance(command.object_id, ConnectionId | SessionId):
        command.object_id = ConsumerId(connection, 1, dice.randrange(3))
    if isinstance(command, schema.DestinationInfo):
        command.operation_type = dice.randrange(3)
    if isinstance(command, schema.MessageAck):
        command.ack_type = dice.choice((0, 2, 2, 2, *range(-1, 7)))
        command.message_count = dice.choice((0, 1, 1, 2, -1))
    return STORED.encode(command)


def run(seed: int, cases: int) -> Counter[str]:
    """Run the cases. AssertionError, with the seed: the broker failed."""
    dice = random.Random(seed)
    known = commands()
    frames = [STORED.encode(command) for command in known[1][:200]]
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory) / "data", "a")
        broker.leaves_stomp_to_settings = True
        port = free_port()
        broker.options = ("--openwire", f"127.0.0.1:{port}", "--stomp", f"127.0.0.1:{broker.stomp}")
        broker.start().wait_role("master")
        try:
            for case in range(cases):
                client = OpenWire(port).connect()
                for number in range(3):
                    client.ask(schema.ProducerInfo, producer_id=ProducerId(client.id, number, 1))
                stream = b""
                for _ in range(dice.randrange(1, FRAMES_MAX)):
                    frame = any_command(dice, known, client.id)
                    stream += changed(dice, frame, frames) if dice.random() < 0.01 else frame
                with contextlib.suppress(ConnectionError):
                    client.socket.sendall(stream)
                    client.socket.shutdown(socket.SHUT_WR)
                assert client.is_closed(), f"seed {seed}, case {case}: the connection is left open"
                client.close()
                if case % 100 == 0:
                    _check(broker, port, f"seed {seed}, case {case}")
            _check(broker, port, f"seed {seed}, the end")
            assert broker.terminate() == 0, f"seed {seed}: the broker failed: {broker.log.read_text()[-4000:]}"
            broker.start().wait_role("master")
        finally:
            broker.stop()
    return Counter(cases=cases)


def _check(broker: BrokerProcess, port: int, when: str) -> None:
    assert not (found := traceback_of(broker)), f"{when}: {found}"
    client = OpenWire(port).connect()
    client.send(queue("served"), b"x")
    client.close()
