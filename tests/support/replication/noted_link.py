"""A link that notes what is sent, and takes it when a test lets it."""

from __future__ import annotations

import threading
import time

from tandemmq.broker.replication.messages import Bytes, Message
from tandemmq.broker.replication.network import Member

PATIENCE_SECONDS = 20.0


class NotedLink:
    def __init__(self, number: int = 2, life: int = 1) -> None:
        self.member = Member(f"{number:032x}", f"n{number}", life, None, "")
        self.is_ours = False
        self.sent: list[Message] = []
        self.unsent_bytes = 0
        self.closed = ""
        self.may_send = threading.Event()
        self.may_send.set()
        self._changed = threading.Condition()

    def send(self, message: Message) -> None:
        with self._changed:
            self.sent.append(message)
            self._changed.notify_all()

    def wait_sent(self, below: int, timeout: float) -> bool:
        return self.may_send.wait(timeout)

    def close(self, reason: str) -> None:
        with self._changed:
            self.closed = reason
            self._changed.notify_all()

    def wait(self, kind: type, count: int = 1) -> list[Message]:
        """Until so many of a kind were sent."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with self._changed:
            while len(found := [each for each in self.sent if type(each) is kind]) < count:
                assert self._changed.wait(deadline - time.monotonic()), f"{count} of {kind}; there is {self.sent}"
            return found

    def wait_closed(self) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: self.closed, PATIENCE_SECONDS)
            return self.closed

    def received(self) -> dict[int, bytearray]:
        """What the follower has of each file; fails where something does not follow."""
        found: dict[int, bytearray] = {}
        for message in self.sent:
            if isinstance(message, Bytes):
                file = found.setdefault(message.file, bytearray())
                assert message.offset <= len(file), "without a gap"
                file[message.offset : message.offset + len(message.data)] = message.data
        return found
