"""What a replay is asked for: which messages, and where to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tandemmq.client.tls import NO_FILES, TlsFiles

ALL: Final = "all"
UNACKNOWLEDGED: Final = "unacknowledged"
# Each task is a connection and a producer, and the broker remembers the ids of 64 producers: half of them, at most.
TASKS_DEFAULT: Final = 8
TASKS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Which messages. Times are when the broker took them, ``since`` included, ``until`` not.

    ``destinations``: as ``sends.destination_of`` reads them; none: all. ``where``: SQL over the columns of the table
    messages. ``only``: ALL, or UNACKNOWLEDGED, which journals tell. ``is_expired_sent``: what has expired, too; then
    none has an end. ``is_ordered``: each destination is sent in one piece, in its order.
    """

    destinations: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    where: str | None = None
    only: str = ALL
    is_expired_sent: bool = False
    is_ordered: bool = True


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: the failover URL of the brokers. The first line of ``passcode_file`` counts; tasks read it, and the
    files of ``tls``.

    ``destination``: all messages go there instead of to their own. ``per_second``: messages of all tasks together.
    ``tasks``: so many connections at most, and never more than Spark runs tasks at once, nor than TASKS_MAX.
    """

    url: str
    login: str | None = None
    passcode_file: str | None = None
    destination: str | None = None
    per_second: float | None = None
    tasks: int = TASKS_DEFAULT
    tls: TlsFiles = NO_FILES
