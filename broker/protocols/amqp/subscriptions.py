"""Durable and shared subscriptions of AMQP clients, which link names identify (AMQP JMS Mapping). Pure.

    durable  capabilities    name of the link       subscription
    1, 2     -               s                      s, durable, of the container
    0        shared          s|volatile1            s, of the container; it ends with its last consumer
    1, 2     shared          s, s|2                 s, durable, of the container
    any      shared, global  s|global, s|global2    the same, of all clients

A link without a source names a durable subscription, too: its attach looks it up, and its close deletes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandemmq.broker.core.commands import ClientError, ErrorKind, FindDurable, Receipt, Unsubscribe
from tandemmq.broker.core.topics.shared import OWN_TERMS
from tandemmq.broker.protocols.amqp.errors import (
    INVALID_FIELD,
    LINK_STOLEN,
    RESOURCE_LOCKED,
    AmqpError,
    Scope,
    condition_of,
)
from tandemmq.broker.protocols.amqp.schema import Attach, Error, Source
from tandemmq.store.records.message import Destination, DestinationKind

SHARED: Final = "shared"
GLOBAL: Final = "global"


@dataclass(slots=True, frozen=True)
class Subscription:
    """Durable or shared subscription that a link names. ``is_global``: it belongs to no container. ``is_looked_up``:
    the link has no source."""

    name: str
    container: str
    is_durable: bool
    is_shared: bool
    is_global: bool
    is_looked_up: bool = False

    @property
    def durable_name(self) -> str | None:
        return self.name if self.is_durable else None

    @property
    def share(self) -> str | None:
        """Name of the shared subscription in the engine."""
        if not self.is_shared:
            return None
        # prove: amqp-shares-are-apart "self.container.replace" -> "''.replace"
        owner = "" if self.is_global else self.container.replace("%", "%25").replace("/", "%2F")
        return f"{OWN_TERMS}{'durable' if self.is_durable else 'volatile'}/{owner}/{self.name}"


def subscription_of(attach: Attach, destination: Destination | None, container: str) -> Subscription | None:
    """Return the durable or shared subscription of a receiver's link; None for a plain subscription. ``destination``
    None: the link has no source. Raises AmqpError."""
    source = attach.source
    capabilities = source.capabilities if isinstance(source, Source) else attach.desired_capabilities
    is_looked_up = destination is None
    is_durable = is_looked_up or source.durable != 0
    is_shared = SHARED in capabilities
    if destination is not None and (destination.kind is not DestinationKind.TOPIC or not (is_durable or is_shared)):
        return None
    name = attach.name.partition("|")[0] if is_shared else attach.name
    if not name:
        raise AmqpError(INVALID_FIELD, "the link has no name, so its subscription has none", Scope.LINK)
    return Subscription(name, container, is_durable, is_shared, is_shared and GLOBAL in capabilities, is_looked_up)


def find(subscription: Subscription, receipt: Receipt | None = None) -> FindDurable:
    """Return the command that looks up a durable subscription."""
    return FindDurable(subscription.name, subscription.is_global, receipt)


def end(subscription: Subscription, id: str | None, seen: int | None, receipt: Receipt) -> Unsubscribe:
    """Return the command for a link that is closed: it also deletes the durable subscription."""
    return Unsubscribe(
        id,
        durable_name=subscription.durable_name,
        is_global=subscription.is_global,
        unless_used=True,
        seen=seen,
        receipt=receipt,
    )


def reason_of(error: ClientError, subscription: Subscription | None) -> Error:
    """Return the reason why a link is refused or detached."""
    if error.kind is ErrorKind.TAKEN_OVER:
        return Error(LINK_STOLEN, error.message)
    if subscription is not None and error.kind is ErrorKind.STATE:
        return Error(RESOURCE_LOCKED, error.message)
    return Error(condition_of(error), error.message)
