"""What becomes of the settings of ActiveMQ's database lockers, and of the shared-file one's own."""

from __future__ import annotations

from typing import Final

from tandemmq.config.kahadb_property import accepted, properties, refused

_KINDS: Final = {
    ("directory", "that of the store"): accepted("As there: where `shared-file` has its file."),
    ("dataSource", "–"): accepted("An SQLAlchemy URL instead of a Java object; needed for both kinds on a database."),
    ("statements", "–"): accepted(
        "The table `[locker.statements]`: names and SQL as they stand; `?` are ActiveMQ's parameters, in its order."
    ),
    ("queryTimeout", "`-1`"): accepted("As there, in seconds; but no answer is waited for without a bound."),
    ("createTablesOnStartup", "`false`"): accepted("As there, and on by default."),
    ("leaseHolderId", "the broker's name"): accepted("As there. Two brokers with one are refused, not both masters."),
    ("maxAllowableDiffFromDBTime", "`0`"): accepted(
        "A greater difference is warned of. Leases go by the database's clock always, so there is nothing to adjust."
    ),
    ("handleStartException", "–"): refused(
        "What goes wrong at the first poll ends the start; later it is said once, and the lock is asked again."
    ),
    ("exceptionHandler", "–"): refused("A Java object. docs/troubleshooting.md has the result of each failure."),
}

KINDS: Final = properties("locker", _KINDS)
