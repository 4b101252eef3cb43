"""`database`: one long transaction that holds row 1 of a table, as ActiveMQ's DefaultDatabaseLocker.

The lock lives as long as the transaction, and that as long as the connection: a master that loses its connection has
lost the lock, and nothing brings it back. Nobody waits for the row inside the database: a standby asks, and is told at
once. That is `FOR UPDATE NOWAIT`, and `BEGIN IMMEDIATE` in SQLite, where the whole file is the lock.

A master writes a stamp into the row, which stays uncommitted, and proves its ownership by reading it again: only the
transaction that wrote it sees it. ActiveMQ writes the time anew at each keep-alive; over weeks in one transaction that
would leave millions of dead rows behind.

When a master dies its host closes the connection and the lock is free at once. When it hangs, or its network is gone,
nobody closes anything. So the server is told, for this session, to end it after a silence; a master that is silent
for less has known before that its proof was out.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace

from locker.contract import (
    NO_PROOF,
    PROOF_KEEP_ALIVES,
    PROOF_SECONDS_MIN,
    Holder,
    Locker,
    LockError,
    LockLost,
    LockRefused,
    LockRequest,
    Proof,
)
from locker.lease import Signature, holder_in, new_nonce, signature_of
from locker.sql import Database, Session
from locker.sql_dialects import SQLITE
from locker.sql_errors import LockBusy
from locker.sql_holder import SqlHolderRow
from locker.sql_lease import create_schema
from locker.sql_statements import Statements

logger = logging.getLogger(__name__)

NAMELESS = "a broker that has left no name"

Inode = tuple[int, int]


def proof_seconds_of(request: LockRequest) -> float:
    """How long a proof of this kind holds: it outlives some keep-alives, and ends before a silent session is ended."""
    period = request.settings.lock_keep_alive_period_seconds
    return math.inf if period <= 0 else max(PROOF_KEEP_ALIVES * period, PROOF_SECONDS_MIN)


class DatabaseLocker(Locker):
    """A hand on row 1. `database` is where the lock is, `names` where the holder's name is kept: the same, or for
    SQLite a second file. Each has a connection of its own."""

    kind = "database"

    def __init__(
        self, request: LockRequest, database: Database, names: Database, statements: Statements, may_create: bool
    ) -> None:
        super().__init__(request)
        self._database = database
        self._names = names
        self._said = statements
        self._may_create = may_create
        self._has_created = False
        self._session = Session(database, self.where)
        self._holder_row = SqlHolderRow(Session(names), statements, may_create)
        self._asking: list[_Question] = []
        self._signature: Signature | None = None
        self._stamp: int | None = None
        self._file: Inode | None = None
        self._is_lost = False
        self._name_written_at = -math.inf
        self._proof = NO_PROOF

    @property
    def where(self) -> str:
        return f"the lock on row 1 of {self._said.table} in {self._database.where}"

    # Taking it

    def try_acquire(self) -> bool:
        if self._stamp is not None:
            return not self._is_lost
        known_at = self.clock.now()
        try:
            stamp = self._take()
        except LockBusy:
            self._session.rollback()
            return False
        except LockError:
            self._session.rollback()
            raise
        self._stamp, self._is_lost, self._file = stamp, False, self._inode()
        seconds = proof_seconds_of(self.request)
        self._proof = Proof(known_at, seconds)  # prove: row-locked-before "known_at" -> "self.clock.now()"
        holder = replace(self.request.holder, since_ms=stamp)
        nonce = new_nonce(self.request.random)
        self._signature = signature_of(holder, holder.name, nonce, self._name_valid_ms)
        self._write_name()
        return True

    def _take(self) -> int:
        """The stamp that we wrote. The transaction stays open."""
        try:
            self._lock_row()
        except LockRefused:
            if not self._may_create or self._has_created:
                raise
            self._session.rollback()
            create_schema(self._session, self._said)
            self._has_created = True
            self._lock_row()
        stamp = int(self._session.execute(f"SELECT {self._session.dialect.now_ms}").rows[0][0])
        override = self._said.overrides.get("lock_update_statement")
        if override is not None:
            hit = self._session.execute(override.sql, override.parameters(stamp)).count
        else:
            update = f"UPDATE {self._said.table} SET {self._said.time} = :stamp WHERE {self._said.the_row}"
            hit = self._session.execute(update, {"stamp": stamp}).count
        if hit != 1:  # prove: one-row-is-locked
            raise LockRefused(f"{self.where}: writing to the locked row hit {hit} rows, and not one")
        return stamp

    def _lock_row(self) -> None:
        """Raises LockBusy when somebody else has it, LockRefused when there is no such row."""
        self._session.begin()
        said = self._said
        override = said.overrides.get("lock_create_statement")
        condition = f" WHERE {said.the_row}" if said.one_row else ""
        ours = f"SELECT {said.time} FROM {said.table}{condition} {self._session.dialect.no_wait}"
        answer = self._session.execute(override.sql if override is not None else ours)
        if override is None and not answer.rows:
            raise LockRefused(f"{self.where}: there is no such row")

    # Keeping it

    def keep_alive(self) -> bool:
        if self._stamp is None or self._is_lost:
            return False
        known_at = self.clock.now()
        self._is_lost = not self._is_still_mine(self._stamp)
        seconds = proof_seconds_of(self.request)
        proof = Proof(known_at, seconds)  # prove: row-proved-before "known_at" -> "self.clock.now()"
        self._proof = NO_PROOF if self._is_lost else proof
        if not self._is_lost and known_at - self._name_written_at > self._name_valid_ms / 2000:
            self._write_name()
        return not self._is_lost

    def _is_still_mine(self, stamp: int) -> bool:
        """Our transaction still sees what it wrote. Whoever lost the connection or the transaction lost the lock."""
        if not self._session.is_connected:
            return False  # prove: lost-connection-is-a-lost-lock
        try:
            rows = self._session.execute(
                f"SELECT {self._said.time} FROM {self._said.table} WHERE {self._said.the_row}"
            ).rows
        except LockError as error:
            logger.warning("the transaction is gone: %s", error)
            return False
        # prove: own-stamp-is-seen " and int(rows[0][0]) == stamp"
        is_ours = len(rows) == 1 and rows[0][0] is not None and int(rows[0][0]) == stamp
        return is_ours and self._inode() == self._file  # prove: same-database-file " and self._inode() == self._file"

    def _inode(self) -> Inode | None:
        """Of SQLite's file: one who deletes or replaces it takes the lock away from its holder."""
        if self._database.dialect is not SQLITE:
            return None
        try:
            status = os.stat(str(self._database.url.database))
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def announce(self, epoch: int, admin: str | None = None) -> None:
        if self._signature is None or not self.keep_alive():
            raise LockLost(f"{self.where} is not ours: nothing to announce there")
        holder = self._signature.holder
        self._signature = replace(self._signature, holder=replace(holder, epoch=epoch, admin=admin or holder.admin))
        self._write_name()

    def release(self) -> None:
        signature, self._signature = self._signature, None
        self._stamp, self._is_lost, self._file, self._proof = None, False, None, NO_PROOF
        self._session.rollback()
        self._session.close()
        if signature is not None:
            self._holder_row.clear(signature.text)
        self._holder_row.close()
        while self._asking:
            self._asking.pop().close()
        self._has_created = False

    # Telling

    def proof(self) -> Proof:
        return self._proof

    def holder(self) -> Holder | None:
        """Any thread may ask: each that asks has connections of its own while it does."""
        signature = self._signature
        if signature is not None and not self._is_lost:
            return signature.holder
        question = self._asking.pop() if self._asking else _Question(self._database, self._names, self._said)
        try:
            found = question.holder(self._was_refused_lately)
        except LockError:
            question.close()
            raise
        self._asking.append(question)
        return found

    @property
    def _was_refused_lately(self) -> bool:
        """A poll has just said that somebody has it."""
        refused_at = self.refused_at_seconds
        return refused_at is not None and self.clock.now() - refused_at < 2 * self.poll_seconds

    @property
    def _name_valid_ms(self) -> int:
        return round(1000 * min(proof_seconds_of(self.request), 10 * PROOF_SECONDS_MIN))

    def _write_name(self) -> None:
        # With all rows locked, row 2 is too, and by ourselves.
        if self._signature is not None and (self._said.one_row or self._database is not self._names):
            self._holder_row.write(self._signature.text, self._name_valid_ms)
            self._name_written_at = self.clock.now()


class _Question:
    """Who has the lock, asked by one who does not want it."""

    def __init__(self, database: Database, names: Database, statements: Statements) -> None:
        self._session = Session(database)
        self._row = SqlHolderRow(Session(names), statements, may_create=False)
        self._said = statements

    def holder(self, is_held: bool) -> Holder | None:
        """None: nobody. `is_held`: that somebody has it is known. To find out takes the lock for a moment, in which
        nobody else gets it. Raises LockUnavailable."""
        if not is_held and self._is_free():
            return None
        row = self._row.read()
        return (row and holder_in(row)) or Holder(NAMELESS)

    def close(self) -> None:
        self._session.close()
        self._row.close()

    def _is_free(self) -> bool:
        said = self._said
        try:
            self._session.begin()
            self._session.execute(
                f"SELECT {said.time} FROM {said.table} WHERE {said.the_row} {self._session.dialect.no_wait}"
            )
        except LockBusy:
            return False
        except LockRefused:
            return True  # no table, or no right to lock its rows: nobody has it in this way
        finally:
            self._session.rollback()
        return True
