"""Request of a replay: choice of the messages, and the target."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tandemmq.client.tls import NO_FILES, TlsFiles

ALL: Final = "all"
UNACKNOWLEDGED: Final = "unacknowledged"
# Each task is a connection and a producer. The broker remembers the ids of 64 producers, so at most half of them are
# used.
TASKS_DEFAULT: Final = 8
TASKS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Choice of messages. ``since`` (included) and ``until`` (excluded): times at which the broker received the
    messages.

    ``destinations``: texts for ``sends.destination_of``; empty: all. ``where``: SQL condition over the columns of the
    table ``messages``. ``only``: ALL, or UNACKNOWLEDGED, which requires journals. ``is_expired_sent``: includes expired
    messages, and sends all messages without an expiration. ``is_ordered``: one task sends all messages of a
    destination, in their order.
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
    """Target of a replay. ``url``: failover URL of the brokers. The passcode is the first line of ``passcode_file``.
    The tasks read this file and the files of ``tls``.

    ``destination``: replaces the destinations of the messages. ``per_second``: rate of all tasks together. ``tasks``:
    maximum number of connections, also limited by the tasks that Spark runs at once and by TASKS_MAX.
    """

    url: str
    login: str | None = None
    passcode_file: str | None = None
    destination: str | None = None
    per_second: float | None = None
    tasks: int = TASKS_DEFAULT
    tls: TlsFiles = NO_FILES
