"""Message ids: made by a client that numbers its messages, or by a broker. Pure.

A message id is ``<connection>:<session>:<producer>:<sequence>``. JMS clients make their ids, with sessions from 1 on,
and send a message again with the same id if its receipt was lost. For clients that do not number their messages, the
broker makes an id. The id contains the epoch, so it is unique. Its session is -1, as in ActiveMQ's ids for STOMP
and MQTT clients. So an id shows who made it, also in ActiveMQ's journals.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

SEQUENCE_MAX: Final = (1 << 63) - 1  # a signed 64-bit number in OpenWire and in Java
_DIGITS_MAX: Final = 19  # of SEQUENCE_MAX
_BROKER_SESSION: Final = "-1"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BROKER_SESSION_END: Final = f":{_BROKER_SESSION}"


def broker_producer(connection_id: str) -> str:
    """Return the producer of the ids that a broker makes for ``connection_id``: an id without ``:<sequence>``."""
    return f"{connection_id}:{_BROKER_SESSION}:1"


def broker_ids(connection_id: str) -> Iterator[str]:
    """Yield ids that a broker makes for ``connection_id``, without end."""
    producer = broker_producer(connection_id)
    for sequence in count(1):
        yield f"{producer}:{sequence}"


def client_message_id(producer: str, sequence: int, user: str | None = None) -> str:
    """Return the id of the message ``sequence`` of ``producer``, both set by a client. The name of a producer has
    letters, digits, dots, hyphens and underscores. Each user has its own producers, so that no user can use the numbers
    of another."""
    if user is None:
        return f"ID:{producer}:1:1:{sequence}"
    return f"ID:{producer}@{_plain(user)}:1:1:{sequence}"


def _plain(user: str) -> str:
    return user if _PLAIN.fullmatch(user) else f"~{hashlib.sha256(user.encode('utf-8', 'surrogatepass')).hexdigest()}"


def user_of_producer(producer: str, user_of_connection: Callable[[str], str | None]) -> str | None:
    """Return a text that identifies the user of ``producer``, the part of a message id before its sequence. It is the
    same for all producers of a user. None: unknown."""
    connection_id = producer.rsplit(":", 2)[0]
    if is_of_numbered(connection_id):
        return connection_id.partition("@")[2]
    user = user_of_connection(connection_id)
    return None if user is None else _plain(user)


def is_of_numbered(connection_id: str) -> bool:
    """Return whether ``client_message_id`` can make ids that begin with this connection id. No client may use such a
    connection id."""
    return "@" in connection_id and ":" not in connection_id.removeprefix("ID:")


def is_of_broker(session: int) -> bool:
    """Return whether only a broker may make ids with this session."""
    return session < 0


# The last id that was split, and its parts: callers often pass the same id again.
_last: tuple[str, tuple[str, int]] = ("", ("", -1))


def numbered(message_id: str) -> tuple[str, int]:
    """Return (producer, sequence) of a message id. If it does not end with a valid number, return (the id, -1)."""
    global _last
    last = _last
    if last[0] is message_id:
        return last[1]
    parts = _numbered(message_id)
    _last = message_id, parts
    return parts


def _numbered(message_id: str) -> tuple[str, int]:
    producer, _, digits = message_id.rpartition(":")
    if producer and digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX:
        sequence = int(digits)
        if sequence <= SEQUENCE_MAX and (digits[0] != "0" or (sequence == 0 and len(digits) == 1)):
            return producer, sequence
    return message_id, -1


def is_made_by_broker(message_id: str) -> bool:
    """Return whether a broker made this id. Then no client sends a message with this id again."""
    last = message_id.rfind(":")
    if last < 0:
        return False
    end = message_id.rfind(":", 0, last)
    return end >= 3 and message_id[end - 3 : end] == _BROKER_SESSION_END
