"""Request of a replay: the messages, and the target."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tandemmq.client.tls import NO_FILES, TlsFiles

ALL: Final = "all"
UNACKNOWLEDGED: Final = "unacknowledged"
# Each task is a connection and a producer, and the broker remembers the ids of 64 producers: use half of them at most.
TASKS_DEFAULT: Final = 8
TASKS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Choice of messages. Times are those at which the broker took them, ``since`` included, ``until`` not.

    ``destinations``: as ``sends.destination_of`` reads them; empty: all. ``where``: SQL over the columns of the table
    messages. ``only``: ALL, or UNACKNOWLEDGED, which needs journals. ``is_expired_sent``: includes expired messages;
    then no message has an expiration. ``is_ordered``: one task sends each destination, in its order.
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
    """Target of a replay: the failover URL of the brokers. The passcode is the first line of ``passcode_file``; tasks
    read it, and the files of ``tls``.

    ``destination``: replaces the messages' own. ``per_second``: rate of all tasks together. ``tasks``: connections at
    most, limited by the tasks that Spark runs at once, and by TASKS_MAX.
    """

    url: str
    login: str | None = None
    passcode_file: str | None = None
    destination: str | None = None
    per_second: float | None = None
    tasks: int = TASKS_DEFAULT
    tls: TlsFiles = NO_FILES
