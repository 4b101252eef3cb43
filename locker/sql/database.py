"""Lock `database`: one long transaction that locks row 1 of a table, as in ActiveMQ's DefaultDatabaseLocker.

The lock ends with the transaction, and the transaction ends with the connection. So a master that loses its connection
has lost the lock. A standby does not wait for the row inside the database: it polls with `FOR UPDATE NOWAIT`, or with
`BEGIN IMMEDIATE` in SQLite, which locks the whole file.

A master writes a time stamp into the row and does not commit it. It proves its ownership by reading the stamp, which
only its own transaction can see. ActiveMQ updates the stamp at each keep-alive; in a transaction that lasts for weeks,
that would leave millions of dead rows. Because other sessions do not see the changes of the transaction, the name of
the holder is in row 2:

    ID 2   TIME until which the name is valid, by the database's clock   BROKER_NAME as in locker.sql.lease_database

Row 2 is written by another connection, and each statement is committed. The row is optional: without it, standbys know
that a broker has the lock, but not its name. ActiveMQ uses only row 1.

If a master dies, its host closes the connection, and the lock is free at once. If a master hangs or its network fails,
the connection stays open. So the server is set to end the session after a silence; the proof of a silent master expires
before that.
"""

# proofs: row-lock

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace

from tandemmq.disk import Identity, identity_of
from tandemmq.locker.contract import (
    NO_PROOF,
    PROOF_SECONDS_MIN,
    Holder,
    Locker,
    LockError,
    LockLost,
    LockRefused,
    LockRequest,
    Proof,
)
from tandemmq.locker.sql.connection import SQLITE, Database, Session
from tandemmq.locker.sql.errors import LockBusy
from tandemmq.locker.sql.lease_database import LeaseRow, Signature, holder_in, signature_of
from tandemmq.locker.sql.table import Statements, create_schema, read_row

logger = logging.getLogger(__name__)


class SqlHolderRow:
    """Row 2 of the table, with the name of the holder. Only `read` raises errors. For one thread at a time."""

    def __init__(self, session: Session, statements: Statements, may_create: bool) -> None:
        self._session = session
        self._sql = statements
        self._may_create = may_create

    def write(self, name: str, valid_ms: int) -> None:
        """Write this name, which is valid for `valid_ms` from now on."""
        try:
            self._write(name, valid_ms)
        except LockError as error:
            logger.debug("the holder's name is not written: %s", error)

    def clear(self, name: str) -> None:
        """Remove the name if the row has this name."""
        sql = self._sql
        clear = f"UPDATE {sql.table} SET {sql.name} = NULL, {sql.time} = 0 WHERE {sql.id} = 2 AND {sql.name} = :name"
        try:
            self._session.execute(clear, {"name": name})
        except LockError as error:
            logger.debug("the holder's name is not cleared: %s", error)

    def read(self) -> LeaseRow | None:
        """Return the row, or None if it does not exist. Raises LockUnavailable."""
        sql, now = self._sql, self._session.dialect.now_ms
        try:
            rows = self._session.execute(
                f"SELECT {sql.name}, {sql.time}, {now} FROM {sql.table} WHERE {sql.id} = 2"
            ).rows
        except LockRefused:
            return None
        return read_row(rows[0], rows[0][2]) if rows else None

    def close(self) -> None:
        self._session.close()

    def _write(self, name: str, valid_ms: int) -> None:
        sql, now = self._sql, self._session.dialect.now_ms
        values = {"name": name, "valid": valid_ms}
        update = f"UPDATE {sql.table} SET {sql.name} = :name, {sql.time} = {now} + :valid WHERE {sql.id} = 2"
        try:
            if self._session.execute(update, values).count == 1:
                return
        except LockRefused:
            if not self._may_create:
                raise
            create_schema(self._session, sql)
        insert = f"INSERT INTO {sql.table}({sql.id}, {sql.time}, {sql.name}) VALUES (2, {now} + :valid, :name)"
        self._session.execute(insert, values)


NAMELESS = "a broker that has left no name"


class DatabaseLocker(Locker):
    """Lock on row 1. `database` has the lock, `names` the name of the holder: the same database, or a second file for
    SQLite. Each has its own connection."""

    kind = "database"

    def __init__(
        self, request: LockRequest, database: Database, names: Database, statements: Statements, may_create: bool
    ) -> None:
        super().__init__(request)
        self._database = database
        self._names = names
        self._statements = statements
        self._may_create = may_create
        self._has_created = False
        self._session = Session(database, self.where)
        self._holder_row = SqlHolderRow(Session(names), statements, may_create)
        self._queries: list[_HolderQuery] = []
        self._signature: Signature | None = None
        self._stamp: int | None = None
        self._file: Identity | None = None
        self._is_lost = False
        self._name_written_at = -math.inf

    @property
    def where(self) -> str:
        return f"the lock on row 1 of {self._statements.table} in {self._database.where}"

    # Acquiring

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
        seconds = self._proof_seconds()
        self._proof = Proof(known_at, seconds)  # prove: row-locked-before "known_at" -> "self.clock.now()"
        holder = replace(self.request.holder, since_ms=stamp)
        self._signature = signature_of(holder, holder.name, self.request.random, self._name_valid_ms)
        self._write_name()
        return True

    def _take(self) -> int:
        """Lock the row, write a stamp into it, and return the stamp. The transaction stays open."""
        try:
            self._lock_row()
        except LockRefused:
            if not self._may_create or self._has_created:
                raise
            self._session.rollback()
            create_schema(self._session, self._statements)
            self._has_created = True
            self._lock_row()
        stamp = int(self._session.execute(f"SELECT {self._session.dialect.now_ms}").rows[0][0])
        override = self._statements.overrides.get("lock_update_statement")
        if override is not None:
            hit = self._session.execute(override.sql, override.parameters(stamp)).count
        else:
            update = (
                f"UPDATE {self._statements.table} SET {self._statements.time} = :stamp WHERE {self._statements.the_row}"
            )
            hit = self._session.execute(update, {"stamp": stamp}).count
        if hit != 1:  # prove: one-row-is-locked
            raise LockRefused(f"{self.where}: the update of the locked row changed {hit} rows instead of one")
        return stamp

    def _lock_row(self) -> None:
        """Lock the row. Raises LockBusy if another session has locked it, LockRefused if the row does not exist."""
        self._session.begin()
        options = self._statements
        override = options.overrides.get("lock_create_statement")
        condition = f" WHERE {options.the_row}" if options.one_row else ""
        ours = f"SELECT {options.time} FROM {options.table}{condition} {self._session.dialect.no_wait}"
        answer = self._session.execute(override.sql if override is not None else ours)
        if override is None and not answer.rows:
            raise LockRefused(f"{self.where}: the row does not exist")

    # Proving

    def keep_alive(self) -> bool:
        if self._stamp is None or self._is_lost:
            return False
        known_at = self.clock.now()
        self._is_lost = not self._is_still_mine(self._stamp)
        seconds = self._proof_seconds()
        proof = Proof(known_at, seconds)  # prove: row-proved-before "known_at" -> "self.clock.now()"
        self._proof = NO_PROOF if self._is_lost else proof
        if not self._is_lost and known_at - self._name_written_at > self._name_valid_ms / 2000:
            self._write_name()
        return not self._is_lost

    def _is_still_mine(self, stamp: int) -> bool:
        """Return whether our transaction still sees its stamp. Without the connection or the transaction, the lock is
        lost."""
        if not self._session.is_connected:
            return False  # prove: lost-connection-is-a-lost-lock
        try:
            rows = self._session.execute(
                f"SELECT {self._statements.time} FROM {self._statements.table} WHERE {self._statements.the_row}"
            ).rows
        except LockError as error:
            logger.warning("the transaction is lost: %s", error)
            return False
        # prove: own-stamp-is-seen " and int(rows[0][0]) == stamp"
        is_ours = len(rows) == 1 and rows[0][0] is not None and int(rows[0][0]) == stamp
        return is_ours and self._inode() == self._file  # prove: same-database-file " and self._inode() == self._file"

    def _inode(self) -> Identity | None:
        """Return the identity of SQLite's file; None for other databases. The identity changes if the file is replaced;
        its holder has then lost the lock."""
        if self._database.dialect is not SQLITE:
            return None
        try:
            return identity_of(os.stat(str(self._database.url.database)))
        except OSError:
            return None

    def announce(self, epoch: int, admin: str | None = None) -> None:
        if self._signature is None or not self.keep_alive():
            raise LockLost(f"{self.where} is not held by this process: nothing to announce")
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
        while self._queries:
            self._queries.pop().close()
        self._has_created = False

    # Reporting

    def holder(self) -> Holder | None:
        """Return the holder. Any thread: each call uses its own connections."""
        signature = self._signature
        if signature is not None and not self._is_lost:
            return signature.holder
        query = self._queries.pop() if self._queries else _HolderQuery(self._database, self._names, self._statements)
        try:
            found = query.holder(self._was_refused_lately)
        except LockError:
            query.close()
            raise
        self._queries.append(query)
        return found

    @property
    def _was_refused_lately(self) -> bool:
        """Return whether one of the last polls found that another broker has the lock."""
        refused_at = self.refused_at_seconds
        return refused_at is not None and self.clock.now() - refused_at < 2 * self.poll_seconds

    @property
    def _name_valid_ms(self) -> int:
        return round(1000 * min(self._proof_seconds(), 10 * PROOF_SECONDS_MIN))

    def _write_name(self) -> None:
        # If our lock statement locks all rows, our other connection cannot write row 2.
        if self._signature is not None and (self._statements.one_row or self._database is not self._names):
            self._holder_row.write(self._signature.text, self._name_valid_ms)
            self._name_written_at = self.clock.now()


class _HolderQuery:
    """Connections that query the holder of the lock without acquiring it."""

    def __init__(self, database: Database, names: Database, statements: Statements) -> None:
        self._session = Session(database)
        self._row = SqlHolderRow(Session(names), statements, may_create=False)
        self._statements = statements

    def holder(self, is_held: bool) -> Holder | None:
        """Return the holder, or None if the lock is free. Raises LockUnavailable.

        `is_held`: the caller knows that the lock is held. Otherwise it is tested by locking the row for a moment, in
        which no other session can lock it.
        """
        if not is_held and self._is_free():
            return None
        row = self._row.read()
        return (row and holder_in(row)) or Holder(NAMELESS)

    def close(self) -> None:
        self._session.close()
        self._row.close()

    def _is_free(self) -> bool:
        options = self._statements
        try:
            self._session.begin()
            self._session.execute(
                f"SELECT {options.time} FROM {options.table} WHERE {options.the_row} {self._session.dialect.no_wait}"
            )
        except LockBusy:
            return False
        except LockRefused:
            return True  # no table, or no right to lock its rows: no broker can hold the lock
        finally:
            self._session.rollback()
        return True
