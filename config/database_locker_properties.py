"""What becomes of the settings of ActiveMQ's database lockers, and of the shared-file one's own."""

from __future__ import annotations

from typing import Final

from config.kahadb_property import Outcome, Property, snake_case


def _accepted(name: str, default: str, here: str) -> Property:
    return Property(name, default, Outcome.ACCEPTED, here, f"locker.{snake_case(name)}")


def _refused(name: str, here: str) -> Property:
    return Property(name, "–", Outcome.REFUSED, here, f"locker.{snake_case(name)}")


KINDS: Final = (
    _accepted("directory", "that of the store", "As there: where `shared-file` has its file."),
    _accepted("dataSource", "–", "An SQLAlchemy URL instead of a Java object; needed for both kinds on a database."),
    _accepted(
        "statements",
        "–",
        "The table `[locker.statements]`: names and SQL as they stand; `?` are ActiveMQ's parameters, in its order.",
    ),
    _accepted("queryTimeout", "`-1`", "As there, in seconds; but no answer is waited for without a bound."),
    _accepted("createTablesOnStartup", "`false`", "As there, and on by default."),
    _accepted("leaseHolderId", "the broker's name", "As there. Two brokers with one are refused, not both masters."),
    _accepted(
        "maxAllowableDiffFromDBTime",
        "`0`",
        "A greater difference is warned of. Leases go by the database's clock always, so there is nothing to adjust.",
    ),
    _refused(
        "handleStartException",
        "What goes wrong at the first poll ends the start; later it is said once, and the lock is asked again.",
    ),
    _refused("exceptionHandler", "A Java object. docs/failures.md says what each failure leads to."),
)
