"""Messages that are named in damaged bytes, if they can still be read. No Spark.

    | control record 28, perhaps damaged | record | record | ... the first that does not fit ends it

The result is not certain: a checksum shows that a byte is wrong, but not which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tandemmq.journal.format import CONTROL_SIZE, RECORD_HEADER, RECORD_HEADER_SIZE, USER_RECORD
from tandemmq.pipeline.columns import ADD_MESSAGE, REMOVE_MESSAGE, UPDATE_MESSAGE
from tandemmq.pipeline.places import Access, open_file
from tandemmq.store.records.commands import AddMessage, RemoveMessage, UpdateMessage, decode
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.records.message import SCHEMES

# Maximum number of bytes that are read of one place; a batch is shorter.
PLACE_BYTES_MAX: Final = 64 << 20
_NAMES: Final = {AddMessage: ADD_MESSAGE, UpdateMessage: UPDATE_MESSAGE, RemoveMessage: REMOVE_MESSAGE}


class Named(NamedTuple):
    """A record within damage that names a message."""

    offset: int
    length: int
    command: str
    destination_type: str
    destination: str
    message_id: str


def named(path: str, start: int, stop: int, access: Access = ()) -> list[Named]:
    """Return the records between ``start``, where a batch begins, and ``stop`` that name messages. ``access``: settings
    to reach a remote path. Raises FileNotFoundError, NotRegular, NoPlace, OSError."""
    source = open_file(path, access)
    try:
        content = source.read(start, min(stop - start, PLACE_BYTES_MAX))
    finally:
        source.release()
    return list(_named(content, start))


def _named(content: bytes, start: int) -> Iterator[Named]:
    at = CONTROL_SIZE
    while at + RECORD_HEADER_SIZE <= len(content):
        size, kind = RECORD_HEADER.unpack_from(content, at)
        if size < RECORD_HEADER_SIZE or at + size > len(content):
            return
        if kind == USER_RECORD and size > RECORD_HEADER_SIZE:
            found = _read(content[at + RECORD_HEADER_SIZE : at + size])
            if found is not None:
                yield Named(start + at, size, *found)
        at += size


def _read(payload: bytes) -> tuple[str, str, str, str] | None:
    try:
        command = decode(payload)
    except RecordDamaged:
        return None
    name = _NAMES.get(type(command))
    if name is None:
        return None
    named = command.add if isinstance(command, UpdateMessage) else command
    assert isinstance(named, AddMessage | RemoveMessage), "_NAMES has only these commands"
    return name, SCHEMES[named.destination.kind], named.destination.name, named.message_id
