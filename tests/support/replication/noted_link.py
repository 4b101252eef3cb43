"""A link that records sent messages, and takes them when a test allows it."""

from __future__ import annotations

from collections.abc import Callable

from tandemmq.broker.replication.messages import Bytes, Message
from tandemmq.broker.replication.network import Member
from tandemmq.store.threads import OS_THREADS, Threads

PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.005


class NotedLink:
    def __init__(self, number: int = 2, life: int = 1, threads: Threads = OS_THREADS) -> None:
        self.member = Member(f"{number:032x}", f"n{number}", life, None, "")
        self.is_ours = False
        self.sent: list[Message] = []
        self.unsent_bytes = 0
        self.closed = ""
        self.may_send = threads.event()
        self.may_send.set()
        self._threads = threads

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def wait_sent(self, below: int, timeout: float) -> bool:
        return self.may_send.wait(timeout)

    def close(self, reason: str) -> None:
        self.closed = reason

    def until(self, condition: Callable[[], object]) -> None:
        deadline = self._threads.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self._threads.monotonic() < deadline, f"there is {self.sent}, and it ended by {self.closed!r}"
            self._threads.sleep(POLL_SECONDS)

    def wait(self, kind: type, count: int = 1) -> list[Message]:
        """Wait until ``count`` messages of a kind are sent; return them."""
        self.until(lambda: sum(type(each) is kind for each in self.sent) >= count)
        return [each for each in self.sent if type(each) is kind]

    def received(self) -> dict[int, bytearray]:
        """Return the follower's content of each file. Fails if there is a gap."""
        found: dict[int, bytearray] = {}
        for message in self.sent:
            if isinstance(message, Bytes):
                file = found.setdefault(message.file, bytearray())
                assert message.offset <= len(file), "without a gap"
                file[message.offset : message.offset + len(message.data)] = message.data
        return found
