"""What becomes of a command that cannot be carried out: its client is told why, or it waits for room."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.broker.core.access import Operation
from tandemmq.broker.core.commands import ClientError, ErrorKind, refusal
from tandemmq.broker.core.principal import Principal
from tandemmq.broker.core.private_access import PrivateAccess
from tandemmq.store.records.message import Destination

# A limit that a message has to pass, and whose it is: None the broker's.
Line = tuple[str, Destination | None]


def may(access: PrivateAccess, principal: Principal, operation: Operation, destination: Destination) -> bool:
    """As PrivateAccess.check, without an error."""
    return access.may(principal, operation, destination)


@dataclass(frozen=True, slots=True)
class MustWait:
    """There is no room now for what a client sent. Nothing was done; it waits, or fails by ``error``.

    ``limit`` is the setting that is reached, ``of`` whose it is (None: the broker's), ``used`` what is used of it.
    ``destination``: what was sent to, whose policy says whether to wait. ``count``: so many messages are not taken.
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
