"""The other end of a STOMP session, for tests: it sends frames and reads the answers."""

from __future__ import annotations

from tandemmq.broker.core.commands import AckMode, Command, Connect
from tandemmq.broker.protocols.stomp.dialects import DIALECTS
from tandemmq.broker.protocols.stomp.frames import FrameParser, Limits
from tandemmq.broker.protocols.stomp.session import StompSession
from tandemmq.store.records.message import Message
from tests.support.protocols.commands import one

# Decoder limits for frames of the broker: a client accepts all of them.
_ANY = Limits(header_line_bytes_max=1 << 30, headers_max=1 << 20, head_bytes_max=1 << 30)


class StompPeer:
    """A client of one version, connected under ``id``, and its session."""

    def __init__(self, version: str = "1.2", id: str = "ID:a-1-1", limits: Limits | None = None) -> None:
        self.session = StompSession(id, lambda: 5, limits or Limits(), secret=lambda: "secret")
        self.was_prepared = False
        self._dialect = DIALECTS[version]
        command = one(Connect, self.say(f"CONNECT\naccept-version:{version}\n\n"))
        self.session.connected(command, id)
        self.session.take()

    def say(self, frame: str) -> list[Command]:
        return list(self.session.receive(frame.encode() + b"\0"))

    def subscribe(self, *headers: str, id: str = "0") -> None:
        """Subscribe to the queue a."""
        self.say("\n".join(("SUBSCRIBE", f"id:{id}", "destination:/queue/a", *headers, "", "")))

    def heard(self) -> list[tuple[dict[str, str], bytes]]:
        """Return the headers and the body of each message since the last call."""
        parser = FrameParser(_ANY)
        parser.dialect = self._dialect
        parser.feed(self.session.take().replace(b"MESSAGE\n", b"SEND\n"))
        found = []
        while parser.data:
            if (frame := parser.next_frame()) is not None:
                found.append(frame[1:])
        return found

    def sees(self, message: Message, *, id: str = "0") -> tuple[dict[str, str], bytes]:
        """Deliver ``message``, prepared in advance if that takes long (``was_prepared``); return its headers and
        body."""
        prepare = self.session.deliver(id, 1, message, 0, AckMode.AUTO)
        self.was_prepared = prepare is not None
        if prepare is not None:
            assert self.session.take() == b""
            prepare()
            assert self.session.deliver(id, 1, message, 0, AckMode.AUTO) is None
        (seen,) = self.heard()
        return seen
