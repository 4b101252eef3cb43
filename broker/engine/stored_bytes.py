"""Count the bytes in the store for each user, if ``user_stored_bytes_max`` limits them. On the loop.

A message counts for its ``sender`` as long as the store needs its record: from the moment when the engine gives it to
the store, or, in a transaction, from the moment when the client sent it. The store counts the messages that it has,
also after a failover (store.state.user_bytes); this module counts those that are on their way to it. A message that
exceeds the limit is refused. What the broker stores later for a user also counts, but is not refused: the broker
already has the message.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.core import names
from tandemmq.broker.core.client import Client
from tandemmq.broker.core.commands import ErrorKind, Send, refusal
from tandemmq.broker.core.transaction import Usage
from tandemmq.broker.engine.ports import Store
from tandemmq.store.operations import AddMessage, Atomic, Operation, PrepareTransaction
from tandemmq.store.records.altered import altered
from tandemmq.store.writer.space import StoreFull

RECORD_HEADER_BYTES: Final = 5


class StoredBytes:
    """Counts for each user the bytes that are given to ``store``. ``most``: the limit of one user, in bytes."""

    def __init__(self, store: Store, most: int) -> None:
        self._store = store
        self._most = most
        self._usages: dict[str, Usage] = {}

    def append(self, operation: Operation) -> None:
        """Hand an operation to the store, and count it."""
        if isinstance(operation, AddMessage):
            usage = self._charge(operation)
            try:
                self._store.append(operation)
            except StoreFull:
                if usage is not None:
                    usage.handed_over -= operation.charged
                raise
            return
        if isinstance(operation, Atomic | PrepareTransaction):
            for part in operation.operations:
                if isinstance(part, AddMessage):
                    self._charge(part)
        self._store.append(operation)

    def _charge(self, add: AddMessage) -> Usage | None:
        if add.message.sender is None:
            return None
        usage = self.usage(add.message.sender)
        add.charged = len(add.payload) + RECORD_HEADER_BYTES
        usage.handed_over += add.charged
        return usage

    def usage(self, user: str) -> Usage:
        """Return the bytes of ``user`` on the way to the store. Transactions count there what is sent in them."""
        usage = self._usages.get(user)
        if usage is None:
            usage = self._usages[user] = Usage()
        return usage

    def used(self, user: str) -> int:
        """Return the bytes of ``user``: in the store, on the way there, and in open transactions."""
        usage = self._usages.get(user)
        mine = 0 if usage is None else usage.handed_over + usage.in_transactions
        return mine + self._store.user_balance(user)

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
                f"user_stored_bytes_max is {self._most}: a message of {size} bytes has no room. Send it when consumers "
                "have taken some, or delete some.",
                ErrorKind.RESOURCE,
            )
