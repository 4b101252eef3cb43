"""Treatment of ActiveMQ's IO exception handlers: DefaultIOExceptionHandler, LeaseLockerIOExceptionHandler and
JDBCIOExceptionHandler, and of the broker's own settings for its end.

There is no choice of handlers here. One table (broker.ha.states) has the result of each failure, by type, errno and
SQLSTATE; ``tandemmq doctor errors`` prints it. So nearly every setting is either already the behaviour of that table,
or would allow two masters at the same time. Properties and defaults are those of ActiveMQ 5.17.
"""

from __future__ import annotations

from typing import Final

from tandemmq.config.kahadb_property import always, fixed, mapped, never, properties, refused
from tandemmq.config.section import Section

SECTION: Final = "io_exception_handler"


class IOExceptionHandlerSettings(Section):
    """Table [io_exception_handler]: each key in it is one of ActiveMQ's, see HANDLER."""


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
        "If a failure puts ownership in doubt, clients are disconnected and served again only with the lock, as with "
        "the lease-locker handler. This holds for all locks and stores.",
        key="io_exception_handler.type",
    ),
    ("ignoreAllErrors", "`false`"): never(
        "After a failed write or sync the content of the disk is unknown, so the master stops confirming."
    ),
    ("ignoreNoSpaceErrors", "`true`"): always(
        "On a full disk the master stays master while `store.disk_reserve` lasts, for acknowledgements. Producers wait "
        "or are refused with the reason."
    ),
    ("noSpaceMessage", "`space`"): refused("A full disk is recognised by its errno (ENOSPC, EDQUOT). Leave it out."),
    ("ignoreSQLExceptions", "`true`; lease-locker and JDBC: `false`"): never(
        "After a database error the master continues until its last proof of ownership expires, then becomes a standby."
    ),
    ("sqlExceptionMessage", "– (all match)"): refused(
        "Database errors are recognised by their SQLSTATE. Leave it out."
    ),
    ("stopStartConnectors", "`false`; lease-locker and JDBC: `true`"): always(
        "A master that cannot continue disconnects its clients, so they connect to the other broker. It serves again "
        "when it is master again, in the same process."
    ),
    ("resumeCheckSleepPeriod", "`5000`"): mapped(
        "locker.retry_interval",
        "The longest pause before a demoted broker tries again. The first pause is 0.2 s; each further one doubles.",
    ),
    ("systemExitOnShutdown", "`false`"): never(
        "A demotion does not end the process: the broker becomes a standby. A failed first start or an internal "
        "error ends it with exit code 1."
    ),
}

_BROKER: Final = {
    ("restartAllowed", "`true`"): always("A demoted broker becomes a standby again."),
    ("systemExitOnShutdown", "`false`"): never(
        "The process ends only by SIGTERM, Ctrl-C, a failed first start or an internal error."
    ),
    ("systemExitOnShutdownExitCode", "`0`"): refused(
        "Exit codes: 0 after SIGTERM, 1 if the broker cannot continue, 2 for wrong settings."
    ),
}

HANDLER: Final = properties(SECTION, _HANDLER)
BROKER: Final = properties("broker", _BROKER)
