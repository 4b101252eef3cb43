"""Limits for messages of producers: free disk space, memory, pauses by an operator, and the stored bytes of a user.

A command that exceeds a limit waits (broker.engine.flow_control), or fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.core import names
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import ClientError, Commit, ErrorKind, Prepare, Send, refusal
from tandemmq.broker.core.memory import Memory
from tandemmq.broker.core.open_transaction import Usage
from tandemmq.broker.core.operations import Target
from tandemmq.broker.core.queue.queue import Queue
from tandemmq.broker.core.topics.topic import Topic
from tandemmq.store.operations import AddMessage, Atomic, Operation, PrepareTransaction
from tandemmq.store.records.altered import altered
from tandemmq.store.records.message import Destination, Message
from tandemmq.store.writer.space import StoreFull

log = logging.getLogger(__name__)

FULL_ADVICE: Final = "Nothing was stored. Send it later: consumers continue, and acknowledged messages free space."
# Names of the limits, as producers see them.
STORE_LIMIT: Final = "store"
MEMORY_LIMIT: Final = "memory_limit"
PAUSED: Final = "pause"

RECORD_HEADER_BYTES: Final = 5

# Commands that may have to wait for room.
Waits = Send | Commit | Prepare
# A limit for a message, and the destination that the limit belongs to, or None for a limit of the broker.
Line = tuple[str, Destination | None]


@dataclass(frozen=True, slots=True)
class MustWait:
    """Reason to wait: a command of a client exceeds a limit now. Nothing was done; it waits, or fails with ``error``.

    ``limit`` is the setting that is reached, ``of`` the destination that it belongs to (None: the broker), ``used``
    its usage. ``destination`` is where the message was sent; its policy decides whether to wait. ``count``: number of
    messages that are not taken.
    """

    reason: str
    advice: str
    limit: str
    destination: Destination
    of: Destination | None = None
    used: int = 0
    count: int = 1

    @property
    def line(self) -> Line:
        return self.limit, self.of

    def error(self) -> ClientError:
        return refusal(self.reason, self.advice, ErrorKind.RESOURCE)


def store_full(reason: str, destination: Destination, count: int = 1) -> MustWait:
    """Return the reason to wait for messages that the store cannot take now."""
    return MustWait(reason, FULL_ADVICE, STORE_LIMIT, destination, count=count)


def paused(destinations: Iterable[Destination], closed: set[Destination]) -> MustWait | None:
    """Return the reason to wait if an operator paused the producers of one of ``destinations``. ``closed``: those that
    are paused."""
    for destination in destinations if closed else ():
        if destination in closed:
            reason = f"The producers of {destination} are paused"
            return MustWait(reason, "An operator can resume them.", PAUSED, destination, of=destination)
    return None


def memory_full(message: Message, target: Target, memory: Memory) -> MustWait | None:
    """Return the reason why a message that is not stored must wait, if any. ClientError: the message alone
    exceeds the limit."""
    if isinstance(target, Topic) and not target.durables:
        return None
    destination = target.destination
    for share in (target.share,) if isinstance(target, Queue) else target.shares:
        if share.limit and share.used >= share.limit:
            reason = f"Messages of {destination} use all of its memory"
            limit = f"memory_limit is {share.limit} bytes there"
        elif share.not_persistent + message.size > memory.free_for_destinations:
            reason = f"Non-persistent messages of {destination} use all free memory"
            limit = f"memory_limit of the broker is {memory.limit} bytes, of which {memory.used} are used"
        else:
            continue
        if message.size > memory.limit:
            reason = f"A non-persistent message of {message.size} bytes is larger than the memory of {destination}"
            log.warning("%s: memory_limit of the broker is %d bytes", reason, memory.limit)
            advice = f"memory_limit of the broker is {memory.limit} bytes. Send it with persistent:true."
            raise refusal(reason, advice, ErrorKind.RESOURCE)
        advice = f"{limit}. Send with persistent:true, or later."
        return MustWait(reason, advice, MEMORY_LIMIT, destination, of=destination, used=share.used)
    return None


class StoredBytes:
    """Counts the bytes in the store for each user, if ``user_stored_bytes_max`` limits them. Runs on the loop.

    A message counts for its ``sender`` as long as the store needs its record: from the moment when the engine gives it
    to the store, or, in a transaction, from the moment when the client sent it. The store counts the messages that it
    has, also after a failover (store.state.user_bytes); this class counts those that are on their way to it. A message
    that exceeds the limit is refused. A message that the broker stores later for a user also counts, but is not
    refused: the broker already has the message. ``most``: the limit of one user, in bytes; ``to_store`` hands an
    operation to the store, ``balance`` returns the bytes of a user that the store has."""

    def __init__(self, most: int, to_store: Callable[[Operation], None], balance: Callable[[str], int]) -> None:
        self._most = most
        self._to_store = to_store
        self._balance = balance
        self._usages: dict[str, Usage] = {}

    def append(self, operation: Operation) -> None:
        """Hand an operation to the store, and count it."""
        if isinstance(operation, AddMessage):
            usage = self._charge(operation)
            try:
                self._to_store(operation)
            except StoreFull:
                if usage is not None:
                    usage.handed_over -= operation.charged
                raise
            return
        if isinstance(operation, Atomic | PrepareTransaction):
            for part in operation.operations:
                if isinstance(part, AddMessage):
                    self._charge(part)
        self._to_store(operation)

    def _charge(self, add: AddMessage) -> Usage | None:
        if add.message.sender is None:
            return None
        usage = self.usage(add.message.sender)
        add.charged = len(add.payload) + RECORD_HEADER_BYTES
        usage.handed_over += add.charged
        return usage

    def usage(self, user: str) -> Usage:
        """Return the usage of ``user`` that the store does not count yet. Transactions add the bytes of their messages
        to it."""
        usage = self._usages.get(user)
        if usage is None:
            usage = self._usages[user] = Usage()
        return usage

    def used(self, user: str) -> int:
        """Return the bytes of ``user``: in the store, submitted to it, and in open transactions."""
        usage = self._usages.get(user)
        mine = 0 if usage is None else usage.handed_over + usage.in_transactions
        return mine + self._balance(user)

    def note_sender(self, client: Client, command: Send) -> str | None:
        """Set the user that the message is charged to, and return it: the user of ``client``, if it was authenticated.
        Messages that the broker stores for itself count for no user."""
        destination = command.message.destination
        user = client.principal.owner
        if client.owns(destination) or (names.is_private(destination) and destination != names.MQTT_RETAINED):
            user = None
        message = command.message
        if message.sender != user:
            if message.holders:  # it is in a queue, too
                command.message = message = altered(message)
            message.sender = user
        return user

    def has_room(self, user: str, size: int, limits: int = 1) -> bool:
        """Return whether a message of ``size`` bytes may be stored for ``user``; ``limits`` multiplies the limit."""
        # prove: stored-bytes-of-a-user "<= self._most" -> "<= 1 << 62"
        return self.used(user) + size <= self._most * limits

    def check(self, user: str, size: int, limits: int = 1) -> None:
        """Raise ClientError if a message of ``size`` bytes is too much for ``user``."""
        if not self.has_room(user, size, limits):
            raise refusal(
                f"Messages of user {user} take {self.used(user)} bytes in the store",
                f"user_stored_bytes_max is {self._most}: a message of {size} bytes does not fit. Send it after "
                "consumers have taken messages, or delete some.",
                ErrorKind.RESOURCE,
            )
