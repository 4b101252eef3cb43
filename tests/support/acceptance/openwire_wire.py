"""A small OpenWire client over a plain socket that can send commands no well-behaved client sends, and reads every
answer."""

from __future__ import annotations

import itertools
import socket
import struct
from typing import Any

from tandemmq.broker.protocols.openwire import schema
from tandemmq.broker.protocols.openwire.codec import STORED, WireFormat
from tandemmq.broker.protocols.openwire.types import ConnectionId, ConsumerId, MessageId, ProducerId, SessionId
from tandemmq.broker.protocols.openwire.wireformat import our_info
from tandemmq.store.records.message import Destination, DestinationKind

INFO = STORED.encode(our_info(max_frame_size=1 << 40, provider_version="test", inactivity_ms=0, initial_delay_ms=0))
#: Timeout for an answer that must come.
SECONDS_MAX = 20.0

_numbers = itertools.count(1)


class Refused(Exception):
    """An ExceptionResponse, or a ConnectionError if no answer was expected: the class of the Java exception and its
    message."""

    def __init__(self, exception: Any) -> None:
        super().__init__(f"{exception.class_name}: {exception.message}")
        self.kind: str = exception.class_name.rpartition(".")[2]


class OpenWire:
    """One connection, to ``port`` or over an open socket, with session 1. ConnectionError: the broker closed the
    connection."""

    def __init__(self, port: int | socket.socket, source: str = "127.0.0.1", host: str = "127.0.0.1") -> None:
        is_open = isinstance(port, socket.socket)
        self.socket = port if is_open else socket.create_connection((host, port), SECONDS_MAX, (source, 0))
        self.wire: WireFormat = STORED
        self.id = f"ID:test-{next(_numbers)}"
        self._commands = itertools.count(1)
        self._values = itertools.count(1)
        self.dispatched: list[schema.MessageDispatch] = []
        self.broker_info = schema.BrokerInfo()

    # ---- bytes

    def read(self) -> Any:
        """Return the next command."""
        size = self._exactly(4)
        return self.wire.decode(size + self._exactly(struct.unpack(">i", size)[0]))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(min(count - len(data), 1 << 20))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data

    def is_closed(self) -> bool:
        """Return whether the broker closes the connection in time; commands before that are discarded."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    # ---- commands

    def greet(self) -> OpenWire:
        """Exchange WireFormatInfo, and read the broker's name."""
        self.socket.sendall(INFO)
        while not isinstance(info := self.read(), schema.BrokerInfo):
            pass
        self.broker_info = info
        return self

    def connect(self, login: str | None = None, password: str | None = None, **fields: Any) -> OpenWire:
        self.greet()
        self.id = fields.pop("connection", self.id)
        client_id = fields.pop("client_id", self.id)
        self.ask(schema.ConnectionInfo, connection_id=ConnectionId(self.id), client_id=client_id,
                 user_name=login, password=password)  # fmt: skip
        self.ask(schema.SessionInfo, session_id=SessionId(self.id, 1))
        return self

    def ask(self, make: Any, **fields: Any) -> Any:
        """Send a command and wait for the answer. Raises Refused."""
        number = next(self._commands)
        self.socket.sendall(self.wire.encode(make(command_id=number, response_required=True, **fields)))
        while True:
            heard = self.read()
            if isinstance(heard, schema.MessageDispatch):
                self.dispatched.append(heard)
            elif isinstance(heard, schema.ConnectionError) or (
                isinstance(heard, schema.ExceptionResponse) and heard.correlation_id == number
            ):
                raise Refused(heard.exception)
            elif isinstance(heard, schema.Response) and heard.correlation_id == number:
                return heard

    def consume(self, destination: Destination, **fields: Any) -> ConsumerId:
        id = ConsumerId(self.id, 1, next(self._values))
        self.ask(schema.ConsumerInfo, consumer_id=id, destination=destination, prefetch_size=100, **fields)
        return id

    def produce(self, destination: Destination | None) -> ProducerId:
        id = ProducerId(self.id, next(self._values), 1)
        self.ask(schema.ProducerInfo, producer_id=id, destination=destination)
        return id

    def send(self, destination: Destination, body: bytes = b"", make: Any = schema.ActiveMQTextMessage,
             is_persistent: bool = True, **fields: Any) -> None:  # fmt: skip
        """Send a message through an anonymous producer, so that the broker answers the message itself."""
        producer = self.produce(None)
        fields.setdefault("content", struct.pack(">i", len(body)) + body)
        self.ask(make, producer_id=producer, destination=destination, message_id=MessageId(None, producer, 1, 0),
                 persistent=is_persistent, priority=4, **fields)  # fmt: skip

    def create(self, destination: Destination) -> None:
        self._change(destination, schema.DestinationOperation.ADD)

    def delete(self, destination: Destination) -> None:
        self._change(destination, schema.DestinationOperation.REMOVE)

    def _change(self, destination: Destination, operation: schema.DestinationOperation) -> None:
        id = ConnectionId(self.id)
        self.ask(schema.DestinationInfo, connection_id=id, destination=destination, operation_type=int(operation))

    def transact(self, kind: schema.TransactionType, transaction: Any) -> Any:
        id = ConnectionId(self.id)
        return self.ask(schema.TransactionInfo, connection_id=id, transaction_id=transaction, type=int(kind))

    def next_dispatched(self) -> schema.MessageDispatch:
        while not self.dispatched:
            heard = self.read()
            if isinstance(heard, schema.MessageDispatch):
                self.dispatched.append(heard)
        return self.dispatched.pop(0)

    def next_message(self) -> schema.WireMessage:
        message = self.next_dispatched().message
        assert message is not None, "a message, and not the end of a pull"
        return message

    def next_content(self) -> bytes:
        content = self.next_message().content
        assert isinstance(content, bytes), "it has a body"
        return content


def queue(name: str) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def topic(name: str) -> Destination:
    return Destination(DestinationKind.TOPIC, name)
