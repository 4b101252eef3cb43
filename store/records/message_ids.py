"""The maker of a message's id: a client that numbers its messages, or a broker. Pure.

A message id is ``<connection>:<session>:<producer>:<sequence>``. JMS clients make theirs, with sessions that count
from 1, and send a message again under the same id when its receipt was lost. For clients that do not number their
messages the broker makes an id, which contains its epoch and is never made again: its session is -1, as in ActiveMQ's
ids for STOMP and MQTT clients. So the id alone shows its maker, in ActiveMQ's journals too.
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
_BROKER_SESSION_WITHIN = f":{_BROKER_SESSION}:"


def broker_producer(connection_id: str) -> str:
    """Return the producer of a broker's ids for ``connection_id``: append a colon and a sequence."""
    return f"{connection_id}:{_BROKER_SESSION}:1"


def broker_ids(connection_id: str) -> Iterator[str]:
    """Yield endless ids of a broker for ``connection_id``."""
    producer = broker_producer(connection_id)
    for sequence in count(1):
        yield f"{producer}:{sequence}"


def client_message_id(producer: str, sequence: int, user: str | None = None) -> str:
    """Return the id of a client's message ``sequence`` of ``producer``, a name of letters, digits, dots, hyphens
    and underscores. Users have separate producers: no user can use up the numbers of another."""
    if user is None:
        return f"ID:{producer}:1:1:{sequence}"
    return f"ID:{producer}@{_plain(user)}:1:1:{sequence}"


def _plain(user: str) -> str:
    return user if _PLAIN.fullmatch(user) else f"~{hashlib.sha256(user.encode('utf-8', 'surrogatepass')).hexdigest()}"


def user_of_producer(producer: str, user_of_connection: Callable[[str], str | None]) -> str | None:
    """Return the user of ``producer``, the part of a message id before its sequence: a word that is the same for all
    producers of that user. None: unknown."""
    connection_id = producer.rsplit(":", 2)[0]
    if is_of_numbered(connection_id):
        return connection_id.partition("@")[2]
    user = user_of_connection(connection_id)
    return None if user is None else _plain(user)


def is_of_numbered(connection_id: str) -> bool:
    """Return whether ids of ``client_message_id`` with a user may begin so: no client may use this connection id."""
    return "@" in connection_id and ":" not in connection_id.removeprefix("ID:")


def is_of_broker(session: int) -> bool:
    """Return whether ids of this session are a broker's, so that no client may make them."""
    return session < 0


# The id that was split last, because callers repeat it, and its parts.
_last: tuple[str, tuple[str, int]] = ("", ("", -1))


def numbered(message_id: str) -> tuple[str, int]:
    """Return (producer, sequence) of an id that ends with a number in clients' form; else the sequence is -1."""
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
    """Return whether a broker made this id: no client ever sends a message under it again."""
    if _BROKER_SESSION_WITHIN not in message_id:
        return False
    parts = message_id.rsplit(":", 3)
    return len(parts) == 4 and parts[1] == _BROKER_SESSION
