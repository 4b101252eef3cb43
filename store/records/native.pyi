"""Compiled from native.c, where a compiler was asked for; else there is no such module."""

def plain_add(
    kind: int,
    producer: bytes,
    destination: bytes,
    sequence: int,
    broker_sequence: int,
    persistent: bool,
    expiration: int,
    priority: int,
    timestamp: int,
    body: bytes,
    properties: bytes,
    field: bytes,
    key: bytes,
    tail: bytes,
    /,
) -> bytes | None:
    """``encode_add(message, encode_message(message))`` of a text or bytes whose header has nothing but this.

    ``producer`` and ``destination``: OpenWire objects; ``properties``: their map, empty where there is none; ``field``:
    the destination as field of the record; ``key``: the message id; ``tail``: the priority as fields. None: a text that
    Java writes otherwise. Raises OverflowError for a number that its field has no room for.
    """
