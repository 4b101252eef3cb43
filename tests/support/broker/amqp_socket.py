"""AMQP 1.0 client over a socket. It sends and returns the exact bytes of messages, and waits for each answer."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Self, TypeVar

from tandemmq.broker.protocols.amqp import frames, schema
from tandemmq.broker.protocols.amqp.codec import read_composite, write_composite
from tandemmq.broker.protocols.amqp.frames import FrameCutter, frame_of
from tandemmq.broker.protocols.amqp.schema import Composite
from tandemmq.broker.protocols.amqp.types import Reader

SECONDS_MAX = 20.0
WINDOW = 1 << 20
PIECE_BYTES = 100_000
Kind = TypeVar("Kind", bound=Composite)


class Refused(Exception):
    """A login or link was refused, with this code or condition."""


class AmqpSocket:
    """A connection with one session. ``with AmqpSocket(port) as client: ...``

    ``tls``: log in by the certificate of this context (SASL EXTERNAL). Raises Refused if the login is refused.
    """

    def __init__(
        self, port: int, user: str = "me", password: str = "word", *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._cutter = FrameCutter(1 << 24)
        self._handles = 0
        self._deliveries = 0
        self._socket.sendall(frames.SASL)
        assert self._header() == frames.SASL
        self._await(schema.SaslMechanisms)
        init = schema.SaslInit("PLAIN", f"\0{user}\0{password}".encode())
        self._send_frame(init if tls is None else schema.SaslInit("EXTERNAL", b""), type=frames.OF_SASL)
        outcome, _ = self._await(schema.SaslOutcome)
        if outcome.code:
            raise Refused(outcome.code)
        self._socket.sendall(frames.AMQP)
        assert self._header() == frames.AMQP
        self._send_frame(schema.Open("socket"))
        self._await(schema.Open)
        self._send_frame(schema.Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW))
        self._await(schema.Begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send_frame(schema.Close())
        self._await(schema.Close)
        self.drop()

    def drop(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, address: str, *messages: bytes, message_format: int = 0) -> None:
        """Send encoded messages, and wait until each is accepted."""
        handle = self._attach(role=False, target=schema.Target(address=address), source=schema.Source())
        for each in messages:
            transfer = schema.Transfer(
                handle=handle,
                delivery_id=self._deliveries,
                delivery_tag=b"%d" % self._deliveries,
                message_format=message_format,
            )
            self._deliveries += 1
            for start in range(0, max(len(each), 1), PIECE_BYTES):
                transfer.more = start + PIECE_BYTES < len(each)
                self._send_frame(transfer, payload=each[start : start + PIECE_BYTES])
                transfer = schema.Transfer(handle=handle)
            disposition, _ = self._await(schema.Disposition)
            assert disposition.state == schema.Accepted(), disposition

    def receive(self, address: str, count: int) -> list[bytes]:
        """Receive encoded messages, and accept them."""
        handle = self._attach(
            role=True, target=schema.Target(), source=schema.Source(address=address), initial_delivery_count=None
        )
        self._send_frame(
            schema.Flow(
                next_incoming_id=0,
                incoming_window=WINDOW,
                next_outgoing_id=self._deliveries,
                outgoing_window=WINDOW,
                handle=handle,
                delivery_count=0,
                link_credit=count,
            )
        )
        found = []
        while len(found) < count:
            transfer, payload = self._await(schema.Transfer)
            assert not transfer.more, "the messages of tests fit into a frame"
            found.append(payload)
            assert transfer.delivery_id is not None
            self._send_frame(
                schema.Disposition(role=True, first=transfer.delivery_id, settled=True, state=schema.Accepted())
            )
        return found

    def _attach(self, **fields: Any) -> int:
        handle = self._handles
        self._handles += 1
        fields.setdefault("initial_delivery_count", 0)
        self._send_frame(schema.Attach(name=f"link-{handle}", handle=handle, **fields))
        attach, _ = self._await(schema.Attach)
        if (attach.source if fields["role"] else attach.target) is None:
            detach, _ = self._await(schema.Detach)
            raise Refused(detach.error.condition)
        return handle

    def _send_frame(self, performative: Composite, *, payload: bytes = b"", type: int = frames.OF_AMQP) -> None:
        self._socket.sendall(frame_of(0, write_composite(performative) + payload, type))

    def _await(self, kind: type[Kind]) -> tuple[Kind, bytes]:
        """Return the next performative of one kind, and its payload. Flows are ignored."""
        while True:
            frame = self._cutter.next_frame()
            if frame is None:
                self._cutter.feed(self._read())
                continue
            if not frame.body:
                continue
            reader = Reader(frame.body)
            performative = read_composite(reader)
            if isinstance(performative, kind):
                return performative, frame.body[reader.at :]
            assert isinstance(performative, schema.Flow), performative

    def _header(self) -> bytes:
        while (found := self._cutter.header()) is None:
            self._cutter.feed(self._read())
        return found

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 16)
        assert data, "the broker closed the connection"
        return data
