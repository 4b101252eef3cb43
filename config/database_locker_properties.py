"""The treatment of the settings of ActiveMQ's database lockers and of its shared-file locker."""

from __future__ import annotations

from typing import Final

from tandemmq.config.kahadb_property import accepted, properties, refused

_KINDS: Final = {
    ("directory", "that of the store"): accepted("Directory of the file of `shared-file`."),
    ("dataSource", "–"): accepted("An SQLAlchemy URL. Required for both kinds of database lock."),
    ("statements", "–"): accepted(
        "The table `[locker.statements]`: names and SQL as in ActiveMQ, with its `?` parameters in its order."
    ),
    ("queryTimeout", "`-1`"): accepted("In seconds. A wait for an answer is always limited."),
    ("createTablesOnStartup", "`false`"): accepted("On by default."),
    ("leaseHolderId", "the broker's name"): accepted("A second broker with the same id is refused."),
    ("maxAllowableDiffFromDBTime", "`0`"): accepted(
        "A larger difference is a warning. Leases always use the clock of the database."
    ),
    ("handleStartException", "–"): refused(
        "An error at the first poll ends the start. Later errors are logged once, and the lock is polled again."
    ),
    ("exceptionHandler", "–"): refused("A Java object. docs/troubleshooting.md has the result of each failure."),
}

KINDS: Final = properties("locker", _KINDS)
