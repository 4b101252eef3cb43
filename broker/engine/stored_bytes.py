"""The bytes in the store that count for each user, where ``user_stored_bytes_max`` limits them. On the loop.

A message counts for its ``sender`` as long as the store needs its record: from the moment when it is handed over, and
what a client sent in a transaction from the moment when it was sent. The store counts what it has, over failovers
(store.state.user_bytes); here is what is on its way there. What a client sends beyond the limit is refused. What the
broker does later for a user counts, too, and is not refused: it holds the message already.
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
    """Counts for each user what is handed to ``store``. ``most``: the limit of one user, in bytes."""

    def __init__(self, store: Store, most: int) -> None:
        self._store = store
        self._most = most
        self._usages: dict[str, Usage] = {}

    def append(self, operation: Operation) -> None:
        """As the store's, of what is counted."""
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
        """What is on its way into the store for ``user``. A transaction counts there what is sent in it."""
        usage = self._usages.get(user)
        if usage is None:
            usage = self._usages[user] = Usage()
        return usage

    def used(self, user: str) -> int:
        """What counts for ``user``: in the store, on the way there, and in open transactions."""
        usage = self._usages.get(user)
        mine = 0 if usage is None else usage.handed_over + usage.in_transactions
        return mine + self._store.user_balance(user)

    def note_sender(self, client: Client, command: Send) -> str | None:
        """Say in the message for whom it counts: for the user of ``client``, if that has proved its name. What the
        broker keeps for itself counts for no user."""
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
        """Whether a message of ``size`` bytes may be stored for ``user``, whose limit is multiplied by ``limits``."""
        # prove: stored-bytes-of-a-user "<= self._most" -> "<= 1 << 62"
        return self.used(user) + size <= self._most * limits

    def check(self, user: str, size: int, limits: int = 1) -> None:
        """ClientError when a message of ``size`` bytes is too much for ``user``."""
        if not self.has_room(user, size, limits):
            raise refusal(
                f"Messages of user {user} take {self.used(user)} bytes in the store",
                f"user_stored_bytes_max is {self._most}: a message of {size} bytes has no room. Send it when consumers "
                "have taken some, or delete some.",
                ErrorKind.RESOURCE,
            )
