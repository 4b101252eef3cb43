"""What becomes of ActiveMQ's IO exception handlers: DefaultIOExceptionHandler, LeaseLockerIOExceptionHandler and
JDBCIOExceptionHandler, and of the broker's own settings about its end.

There is no handler to choose here. What each failure leads to is one table (broker.states), by type, errno and
SQLSTATE; docs/failures.md prints it. So nearly every setting is either what that table does anyway, or would let a
master go on that may be one of two. Properties and defaults are those of ActiveMQ 5.17.
"""

from __future__ import annotations

from typing import Final

from config.kahadb_property import Outcome, Property, snake_case
from config.section import Section

SECTION: Final = "io_exception_handler"


class IOExceptionHandlerSettings(Section):
    """The table [io_exception_handler]: every key in it is one of ActiveMQ's, see HANDLER."""


def _fixed(name: str, default: str, values: tuple[bool | str, ...], here: str, section: str = SECTION) -> Property:
    return Property(name, default, Outcome.FIXED, here, f"{section}.{snake_case(name)}", values=values)


def _refused(name: str, default: str, here: str, section: str = SECTION) -> Property:
    return Property(name, default, Outcome.REFUSED, here, f"{section}.{snake_case(name)}")


HANDLER: Final = (
    Property(
        "ioExceptionHandler",
        "`defaultIOExceptionHandler`",
        Outcome.FIXED,
        "Clients are cut off when a failure puts ownership in doubt, and served again only with the lock: what the "
        "lease-locker handler was made for, with any kind of lock and store. The default handler goes on without the "
        "database.",
        f"{SECTION}.type",
        values=(
            "lease-locker",
            "leaselockerioexceptionhandler",
            "org.apache.activemq.util.leaselockerioexceptionhandler",
            "jdbc",
            "jdbcioexceptionhandler",
            "org.apache.activemq.store.jdbc.jdbcioexceptionhandler",
        ),
    ),
    _fixed(
        "ignoreAllErrors",
        "`false`",
        (False,),
        "After a failed write or sync nobody knows what is on the disk: a master that went on would confirm what may "
        "be lost.",
    ),
    _fixed(
        "ignoreNoSpaceErrors",
        "`true`",
        (True,),
        "A disk that fills up costs nobody the master: producers are refused with the reason while there is room for "
        "acknowledgements yet, see `store.disk_reserve`. Stopping would leave the same full disk to the other broker.",
    ),
    _refused(
        "noSpaceMessage",
        "`space`",
        "A full disk is known by its errno, ENOSPC or EDQUOT, not by a word in a message. Leave it out.",
    ),
    _fixed(
        "ignoreSQLExceptions",
        "`true`; lease-locker and JDBC: `false`",
        (False,),
        "A database that errs proves nothing: the master goes on while its last proof holds, and demotes itself then.",
    ),
    _refused(
        "sqlExceptionMessage",
        "– (all match)",
        "An error of the database is known by its SQLSTATE, not by a word in a message. Leave it out.",
    ),
    _fixed(
        "stopStartConnectors",
        "`false`; lease-locker and JDBC: `true`",
        (True,),
        "A master that cannot go on cuts its clients off, so that they go to the other one, and serves again when it "
        "is master again, in the same process. To keep them connected would leave them without an answer.",
    ),
    Property(
        "resumeCheckSleepPeriod",
        "`5000`",
        Outcome.MAPPED,
        "The longest pause before a broker that was demoted tries again. It begins with 0.2 s and doubles, so that a "
        "short trouble is over soon.",
        f"{SECTION}.resume_check_sleep_period",
        "locker.retry_interval",
    ),
    _fixed(
        "systemExitOnShutdown",
        "`false`",
        (False,),
        "A demotion does not end the process: it drops everything it knew of the store and stands by, as a new process "
        "would. A failure that is the operator's to mend ends it with 1, for the supervisor to see.",
    ),
)

BROKER: Final = (
    _fixed(
        "restartAllowed",
        "`true`",
        (True,),
        "A broker that was demoted stands by again: without, the pair would be one broker after the first incident.",
        "broker",
    ),
    _fixed(
        "systemExitOnShutdown",
        "`false`",
        (False,),
        "Standing by again takes no new process. The process ends by SIGTERM, or by a failure that is the operator's "
        "to mend.",
        "broker",
    ),
    _refused(
        "systemExitOnShutdownExitCode",
        "`0`",
        "A process that ends by SIGTERM ends with 0, one that cannot go on with 1, one with wrong settings with 2.",
        "broker",
    ),
)
