"""AMQP addresses and the broker's destinations. Pure.

    queue://a  topic://a  temp-queue://a  temp-topic://a     by the scheme
    a                                                        by the capability of the terminus: a topic, else a queue

Composites and wildcards stay in the name: the engine resolves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tandemmq.broker.core.names import SCHEMES
from tandemmq.broker.protocols.amqp.errors import INVALID_FIELD, AmqpError, Scope, not_implemented
from tandemmq.store.records.message import Destination, DestinationKind

# Capabilities of a terminus (AMQP JMS Mapping).
_TOPIC: Final = "topic"


def destination_of(address: Any, capabilities: Sequence[str] = ()) -> Destination:
    """Return the destination of a terminus. Raises AmqpError with the scope of a link."""
    if not isinstance(address, str) or not address:
        raise AmqpError(INVALID_FIELD, "the address is not set", Scope.LINK)
    if "?" in address:
        raise not_implemented("options of an address")
    found = scheme_of(address)
    if found is not None:
        if not found.name:
            raise AmqpError(INVALID_FIELD, f"the address {address[:200]!r} has no name", Scope.LINK)
        return found
    return Destination(DestinationKind.TOPIC if _TOPIC in capabilities else DestinationKind.QUEUE, address)


def scheme_of(address: str) -> Destination | None:
    """Return the destination of an address with a scheme; None for another address."""
    for scheme, kind in SCHEMES.items():
        if address.startswith(scheme):
            return Destination(kind, address.removeprefix(scheme))
    return None


def reply_to_of(address: str) -> Destination:
    """Return the destination of a reply-to. An address without a scheme is a queue."""
    return scheme_of(address) or Destination(DestinationKind.QUEUE, address)


def address_of(destination: Destination) -> str:
    """Return the address of a destination."""
    return str(destination)
