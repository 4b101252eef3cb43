"""What becomes of ActiveMQ's IO exception handlers: DefaultIOExceptionHandler, LeaseLockerIOExceptionHandler and
JDBCIOExceptionHandler, and of the broker's own settings about its end.

There is no handler to choose here. One table (broker.ha.states) has the result of each failure, by type, errno and
SQLSTATE; ``tandemmq doctor errors`` prints it. So nearly every setting is either what that table does anyway, or would
let a master go on that may be one of two. Properties and defaults are those of ActiveMQ 5.17.
"""

from __future__ import annotations

from typing import Final

from tandemmq.config.kahadb_property import always, fixed, mapped, never, properties, refused
from tandemmq.config.section import Section

SECTION: Final = "io_exception_handler"


class IOExceptionHandlerSettings(Section):
    """The table [io_exception_handler]: every key in it is one of ActiveMQ's, see HANDLER."""


_HANDLER: Final = {
    ("ioExceptionHandler", "`defaultIOExceptionHandler`"): fixed(
        (
            "lease-locker",
            "leaselockerioexceptionhandler",
            "org.apache.activemq.util.leaselockerioexceptionhandler",
            "jdbc",
            "jdbcioexceptionhandler",
            "org.apache.activemq.store.jdbc.jdbcioexceptionhandler",
        ),
        "Clients are cut off when a failure puts ownership in doubt, and served again only with the lock: what the "
        "lease-locker handler was made for, with any kind of lock and store. The default handler goes on without the "
        "database.",
        key="io_exception_handler.type",
    ),
    ("ignoreAllErrors", "`false`"): never(
        "After a failed write or sync nobody knows what is on the disk: a master that went on would confirm what may "
        "be lost."
    ),
    ("ignoreNoSpaceErrors", "`true`"): always(
        "A disk that fills up costs nobody the master: producers are refused with the reason while there is room for "
        "acknowledgements yet, see `store.disk_reserve`. Stopping would leave the same full disk to the other broker."
    ),
    ("noSpaceMessage", "`space`"): refused(
        "A full disk is known by its errno, ENOSPC or EDQUOT, not by a word in a message. Leave it out."
    ),
    ("ignoreSQLExceptions", "`true`; lease-locker and JDBC: `false`"): never(
        "A database that errs proves nothing: the master goes on while its last proof holds, and demotes itself then."
    ),
    ("sqlExceptionMessage", "– (all match)"): refused(
        "An error of the database is known by its SQLSTATE, not by a word in a message. Leave it out."
    ),
    ("stopStartConnectors", "`false`; lease-locker and JDBC: `true`"): always(
        "A master that cannot go on cuts its clients off, so that they go to the other one, and serves again when it "
        "is master again, in the same process. To keep them connected would leave them without an answer."
    ),
    ("resumeCheckSleepPeriod", "`5000`"): mapped(
        "locker.retry_interval",
        "The longest pause before a broker that was demoted tries again. It begins with 0.2 s and doubles, so that a "
        "short trouble is over soon.",
    ),
    ("systemExitOnShutdown", "`false`"): never(
        "A demotion does not end the process: it drops everything it knew of the store and stands by, as a new "
        "process would. A failure that is the operator's to mend ends it with 1, for the supervisor to see."
    ),
}

_BROKER: Final = {
    ("restartAllowed", "`true`"): always(
        "A broker that was demoted stands by again: without, the pair would be one broker after the first incident."
    ),
    ("systemExitOnShutdown", "`false`"): never(
        "Standing by again takes no new process. The process ends by SIGTERM, or by a failure that is the operator's "
        "to mend."
    ),
    ("systemExitOnShutdownExitCode", "`0`"): refused(
        "A process that ends by SIGTERM ends with 0, one that cannot go on with 1, one with wrong settings with 2."
    ),
}

HANDLER: Final = properties(SECTION, _HANDLER)
BROKER: Final = properties("broker", _BROKER)
