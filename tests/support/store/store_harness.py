"""A real store in a directory, run by a test instead of an event loop."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from tandemmq.disk import Disk
from tandemmq.journal.format import END_RECORD_SIZE, encode_batch, location
from tandemmq.store.maintenance.compaction import Compaction
from tandemmq.store.operations import AddMessage, Operation, Owner, Page, PagedMessage, RemoveMessage
from tandemmq.store.records.commands import encode_add, encode_remove, with_sender
from tandemmq.store.records.message import BodyKind, Destination, DestinationKind, Message
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.state.tail import Position
from tandemmq.store.store import Store, Watching
from tandemmq.store.threads import OS_THREADS, Threads

KIB = 1024
# No automatic checkpoints: neither by time, nor because the machine is slow for a moment.
SMALL = StoreSettings(
    journal_max_file_length=64 * KIB,
    checkpoint_interval=3600.0,
    recovery_budget=3600.0,
    failover_budget=3600.0,
    fence_check_interval=0.05,
)
# No automatic compaction: the test controls the positions.
STILL = StoreSettings(
    journal_max_file_length=64 * KIB, checkpoint_interval=3600.0, fence_check_interval=0.01, enable_compaction=False
)
# Each checkpoint reclaims files, without compaction.
RESTLESS = StoreSettings(
    journal_max_file_length=64 * KIB, checkpoint_records=60, cleanup_interval=0.0, fence_check_interval=0.01,
    enable_compaction=False,
)  # fmt: skip
Q = Destination(DestinationKind.QUEUE, "Q.A")
Done = TypeVar("Done", bound=Operation)


class Term:
    """One epoch of one broker: its store, and the completed operations. ``watching``: argument for the start of the
    store."""

    watching: Watching | None = None
    threads: Threads = OS_THREADS

    def __init__(self, directory: str, broker: str = "a", settings: StoreSettings = SMALL, *, disk: Disk = os) -> None:
        self._begin(Standby(directory, f"{directory}/index", broker, settings, disk=disk))

    @classmethod
    def of(cls, standby: Standby, threads: Threads = OS_THREADS) -> Term:
        """Return the term of a former standby, on these threads."""
        term = cls.__new__(cls)
        term._begin(standby, threads)
        return term

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop normally, or like a kill if the test failed."""
        self.close() if kind is None else self.crash()

    def _begin(self, standby: Standby, threads: Threads = OS_THREADS) -> None:
        self.threads = threads
        self.loop = threads.inbox()
        self.turn: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []
        self.durable_operations: list[Operation] = []
        self.lost: BaseException | None = None
        self.has_proof = True
        self.drained_count = 0
        try:
            self.store: Store = standby.promote(
                has_proof=lambda: self.has_proof,
                call_soon=self.loop.put,
                call_later=self._call_later,
                on_lost=self._on_lost,
            )
        except BaseException:
            standby.close()
            raise
        self.owners: list[Owner] = self.store.owners()
        self.store.start(self, self.watching)
        self.sequence = 0

    # methods of the engine

    def durable(self, operations: list[Operation]) -> None:
        self.durable_operations += operations

    def drained(self) -> None:
        self.drained_count += 1

    def _on_lost(self, error: BaseException) -> None:
        self.lost = error

    # methods of the loop

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        (self.later if seconds else self.turn).append(function)

    def end_turn(self) -> None:
        """End the turn, and let some time pass."""
        turn, self.turn[:], self.later[:] = self.turn + self.later, [], []
        for function in turn:
            function()

    def step(self) -> None:
        """Run one turn, and the first event within a moment."""
        self.end_turn()
        try:
            self.loop.get(timeout=0.05)()
        except queue.Empty:
            pass

    def wait(self, until: Callable[[], bool], seconds: float = 30.0) -> None:
        """Run the loop until ``until`` is true. Fails if it is not in time, or if the store is lost."""
        deadline = self.threads.monotonic() + seconds
        while not until():
            self.step()
            assert self.lost is None, f"the store is lost: {self.lost!r}"
            assert self.threads.monotonic() < deadline, "the condition is not true in time"

    def wait_durable(self, count: int) -> None:
        self.wait(lambda: len(self.durable_operations) >= count)

    def wait_lost(self, seconds: float = 30.0) -> BaseException:
        deadline = self.threads.monotonic() + seconds
        while self.lost is None:
            self.step()
            assert self.threads.monotonic() < deadline, "the store continues"
        return self.lost

    # requests like those of an engine

    def message(self, destination: Destination = Q, body: bytes | None = None, producer: str = "p") -> Message:
        self.sequence += 1
        return Message(
            destination,
            f"ID:{self.store.epoch}-{producer}:1:1:{self.sequence}",
            body if body is not None else f"body {self.sequence}".encode(),
            BodyKind.BYTES,
            persistent=True,
            timestamp=1,
        )

    def add(self, destination: Destination = Q, body: bytes | None = None, owners: tuple[int, ...] = ()) -> AddMessage:
        """Append a message. Every third message counts for no user, the others for one: ``check`` compares the
        counts."""
        message = self.message(destination, body)
        message.sender = (None, "ann", "bob")[self.sequence % 3]
        held_by = owners or (self.store.queue(destination),)
        payload = with_sender(encode_add(message, encode_message(message)), message.sender)
        operation = AddMessage(message, held_by, payload)
        self.store.append(operation)
        return operation

    def remove(self, added: AddMessage | PagedMessage, owner: int, key: str | None = None) -> RemoveMessage:
        message = added.message
        operation = RemoveMessage(
            owner,
            added.order_key,
            added.location,
            message.message_id,
            encode_remove(message.destination, message.message_id, None, key),
            size=added.size,
        )
        self.store.append(operation)
        return operation

    def do(self, operation: Done) -> Done:
        """Append an operation; on return it is durable."""
        self.store.append(operation)
        self.wait(lambda: operation in self.durable_operations)
        return operation

    def take(
        self, messages: Sequence[AddMessage | PagedMessage], owner: int | None = None, key: str | None = None
    ) -> None:
        """Acknowledge messages durably. Default of ``owner``: the queue Q."""
        before = len(self.durable_operations)
        for message in messages:
            self.remove(message, self.store.queue(Q) if owner is None else owner, key)
        self.wait_durable(before + len(messages))

    def add_durably(self, count: int, destination: Destination = Q, body: bytes | None = None) -> list[AddMessage]:
        before = len(self.durable_operations)
        added = [self.add(destination, body) for _ in range(count)]
        self.wait_durable(before + count)
        return added

    def write_late(self, count: int = 1) -> None:
        """Write like a master that was stopped within a write and continues: a batch for each message, without a
        check."""
        writer = self.store._storage._end.writer
        file, offset = writer.position
        path = writer._files.path(file)
        with open(path, "r+b") as stream:
            for _ in range(count):
                message = self.message()
                batch, _ = encode_batch([encode_add(message, encode_message(message))], location(file, offset))
                stream.seek(offset)
                stream.write(batch)
                offset += len(batch) - END_RECORD_SIZE

    @property
    def position(self) -> Position:
        """Return the position up to which its state contains the journal."""
        position = self.store.ask(lambda state: state.position).result(30)
        assert position is not None
        return position

    def page(
        self, owner: int, after: int = 0, count: int = 1000, bytes_max: int = 1 << 30, keys: Sequence[int] | None = None
    ) -> Page:
        page = Page(owner, after, count, bytes_max, keys=keys)
        self.store.append(page)
        self.wait(lambda: page in self.durable_operations)
        return page

    def compaction_of(self, file: int) -> Callable[[], int]:
        """Return a compaction of one file: each call makes one step, and returns the number of copied bytes."""
        upkeep = self.store._storage._upkeep
        compaction = Compaction(self.store._state, upkeep._pages, upkeep._write_copies, [file], 0)
        return lambda: self.store.ask(lambda _: compaction.step()).result(10)

    def bodies(self, destination: Destination = Q) -> list[bytes]:
        """Return the bodies of a queue, in order, read page by page."""
        owner = self.store.queue(destination)
        after = 0
        found: list[bytes] = []
        while True:
            page = self.page(owner, after, count=7)
            found += [paged.message.body for paged in page.messages]
            if page.is_end:
                return found
            after = page.messages[-1].order_key

    def close(self) -> None:
        self.end_turn()
        self.store.close()

    def crash(self) -> None:
        """Stop as kill -9 does: nothing more is written."""
        self.store.drop()
