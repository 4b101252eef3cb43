"""The end of a membership: the directory of a stopped node becomes that of a single broker.

Nothing is converted: the promise file gets another name, and the journal counts as it is. Records that the set had
not made final count here, too; records that only other nodes have do not. `Leaver.standing` reports both beforehand.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tandemmq.broker.replication.copy import JournalCopy
from tandemmq.broker.replication.peers import place_of, read_known
from tandemmq.broker.replication.promise import SLOT_BYTES, SLOT_COUNT, Promise, PromiseFileInUse, decode_slot
from tandemmq.broker.replication.quorum import Place, Position
from tandemmq.disk import has_name, open_regular, read_fully, sync_directory
from tandemmq.journal.files import JournalFiles
from tandemmq.store.membership import PROMISE_FILE
from tandemmq.store.records.headers import SetHeader
from tandemmq.store.threads import OS_THREADS

LEFT: Final = f"{PROMISE_FILE}.left"


class NotMember(Exception):
    """The directory has no promise file."""


@dataclass(frozen=True, slots=True)
class LastKnown:
    """Last report of another node."""

    node: str
    position: Position
    is_voter: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a stopped node, and its knowledge of the others. ``final``: the place up to which at least all was
    final; None: unknown.

    ``promise`` is None if no slot can be read, ``set`` if the journal has no header of a set. ``known_at``: time of the
    other knowledge, in seconds since 1970; None: there is none.
    """

    promise: Promise | None
    set: SetHeader | None
    position: Position
    damage: str | None
    final: Place | None
    others: Mapping[str, LastKnown]
    known_at: float | None

    @property
    def has_all_final(self) -> bool:
        """Return whether all of this journal was known to be final."""
        return self.final is not None and self.final >= self.position[1:]

    def ahead(self) -> list[LastKnown]:
        """Return the nodes that had more when they last reported."""
        return [each for each in self.others.values() if each.position > self.position]

    def unheard(self) -> list[str]:
        """Return the names of the voters of which nothing is known."""
        if self.set is None:
            return []
        own = None if self.promise is None else self.promise.store
        return [
            self.set.names.get(each, each[:8]) for each in self.set.voters if each != own and each not in self.others
        ]


class Leaver:
    """Ends the membership of a directory whose promise file is locked (`leaver`)."""

    def __init__(self, directory: str, promise: Promise | None) -> None:
        self._directory = directory
        self._promise = promise

    def standing(self) -> Standing:
        """Read the end of the journal, and sync it."""
        copy = JournalCopy(JournalFiles(self._directory), OS_THREADS)
        try:
            found = copy.scan()
        finally:
            copy.close()
        promise, known = self._promise, read_known(self._directory)
        members, at = ({}, None) if known is None else known
        own = members.pop(promise.store, {}) if promise is not None else {}
        others = {store: _last_known(store, said) for store, said in members.items()}
        damage = None if found.damage is None else str(found.damage)
        if damage is None and promise is not None and not promise.is_whole:
            damage = "it lacks files that it once had, or had not caught up"
        return Standing(promise, found.header, found.position, damage, place_of(own.get("final")), others, at)

    def leave(self) -> str:
        """Rename the promise file, durable on return. Return its new path."""
        left = os.path.join(self._directory, LEFT)
        os.replace(os.path.join(self._directory, PROMISE_FILE), left)
        sync_directory(os, self._directory)
        return left


@contextmanager
def leaver(directory: str) -> Iterator[Leaver]:
    """Lock the promise file: while this is open no node runs there. Raises NotMember, PromiseFileInUse, PromiseUnknown,
    OSError."""
    path = os.path.join(directory, PROMISE_FILE)
    try:
        fd = open_regular(os, path, os.O_RDWR)
    except FileNotFoundError as error:
        raise NotMember(f"{directory} belongs to no replicated set: there is no {PROMISE_FILE} in it") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PromiseFileInUse(f"a process runs in {directory}: stop it first") from error
        if not has_name(os, fd, path):  # prove: left-promise-is-the-locked-file "not has_name(os, fd, path)" -> "False"
            raise PromiseFileInUse(f"{PROMISE_FILE} in {directory} was replaced or renamed while it was opened")
        data = read_fully(os, fd, SLOT_BYTES * SLOT_COUNT, 0)
        slots = [decode_slot(data[at : at + SLOT_BYTES]) for at in range(0, SLOT_BYTES * SLOT_COUNT, SLOT_BYTES)]
        readable = [slot for slot in slots if slot is not None]
        yield Leaver(directory, max(readable, key=lambda slot: slot[0])[1] if readable else None)
    finally:
        os.close(fd)


def _last_known(store: str, said: Mapping[str, Any]) -> LastKnown:
    position = said.get("position")
    is_position = isinstance(position, list) and len(position) == 3 and all(type(each) is int for each in position)
    return LastKnown(
        str(said.get("node") or store[:8]),
        Position(*position) if is_position and position is not None else Position(0, 0, 0),
        bool(said.get("is_voter")),
    )
