"""Results of a command that cannot be carried out: an error for its client, or a reason to wait."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.private_access import PrivateAccess
from tandemmq.store.records.message import Destination

# A limit for a message, and the destination that the limit belongs to, or None for a limit of the broker.
Line = tuple[str, Destination | None]


def may(access: PrivateAccess, principal: Principal, operation: Operation, destination: Destination) -> bool:
    """Return whether PrivateAccess.check would allow the operation."""
    return access.may(principal, operation, destination)


@dataclass(frozen=True, slots=True)
class MustWait:
    """Reason to wait: a command of a client exceeds a limit now. Nothing was done; it waits, or fails with ``error``.

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
