"""Encoder of stored messages in C (native.c). The module exists only if the build compiled it."""

def plain_add(
    message_id: str,
    producers: dict[str, bytes],
    kind: int,
    destination: bytes,
    broker_sequence: int,
    persistent: bool,
    expiration: int,
    priority: int,
    timestamp: int,
    body: bytes,
    properties: bytes,
    field: bytes,
    text: bytes,
    tail: bytes,
    /,
) -> bytes | None:
    """Return the payload that ``encode_add(message, encode_message(message))`` would return, for a text or bytes
    message with only these header fields.

    producers              encoded ProducerIds by their text: the message id before its last colon
    destination            encoded OpenWire object
    broker_sequence        0: the number in the message id
    properties             encoded map; b"": no properties
    field                  encoded fields of the record before the message id: the transaction, if any, and the
                           destination
    text                   encoded text of the message id (``Message.text_view``)
    tail                   encoded fields of the priority

    Return None if modified UTF-8 differs from ``body``, a text, or if the message id is not an ASCII text that ends
    with a positive number after the text of a producer. Raises OverflowError for a number that is out of range.
    """

def plain_remove(message_id: str, producers: dict[str, bytes], field: bytes, /) -> bytes | None:
    """Return the payload that ``encode_remove(destination, message_id)`` would return; ``field``: the encoded field of
    the destination. Return None for a message id for which ``plain_add`` returns None."""
