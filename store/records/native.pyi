"""Encoder of stored messages in C (native.c). The module exists only if the build compiled it."""

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
    text: bytes,
    tail: bytes,
    /,
) -> bytes | None:
    """Return the payload that ``encode_add(message, encode_message(message))`` would return, for a text or bytes
    message with only these header fields.

    producer, destination  encoded OpenWire objects
    properties             encoded map; b"": no properties
    field                  encoded fields of the record before the message id: the transaction, if any, and the
                           destination
    key                    the message id in UTF-8
    text                   encoded text of the message id (``Message.text_view``)
    tail                   encoded fields of the priority

    Return None if modified UTF-8 differs from ``body``, a text. Raises OverflowError for a number that is out of range.
    """
