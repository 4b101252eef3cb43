"""Results of a command that cannot be carried out: an error for its client, or a wait for room."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.private_access import PrivateAccess
from tandemmq.store.records.message import Destination

# A limit that a message has to pass, and the destination that it belongs to: None for the broker's.
Line = tuple[str, Destination | None]


def may(access: PrivateAccess, principal: Principal, operation: Operation, destination: Destination) -> bool:
    """Return whether PrivateAccess.check would allow the operation."""
    return access.may(principal, operation, destination)


@dataclass(frozen=True, slots=True)
class MustWait:
    """Reason to wait: there is no room now for what a client sent. Nothing was done; it waits, or fails by ``error``.

    ``limit`` is the setting that is reached, ``of`` the destination that it belongs to (None: the broker), ``used``
    its usage. ``destination`` is where the message was sent; its policy says whether to wait. ``count``: number of
    messages that are not taken.
    """

    reason: str
    advice: str
    limit: str
    destination: Destination
    of: Destination | None = None
    used: int = 0
    count: int = 1

    @property
    def line(self) -> Line:
        return self.limit, self.of

    def error(self) -> ClientError:
        return refusal(self.reason, self.advice, ErrorKind.RESOURCE)
