"""Links of one AMQP session, by their handles. Pure.

The handles of the two directions are independent (AMQP 1.0, 2.6.2). The client may use a handle again after it has sent
its detach. This side uses the same number as the client if its own last detach with that number is written, otherwise
another number.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.protocols.amqp.errors import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    RESOURCE_LIMIT,
    UNATTACHED_HANDLE,
    AmqpError,
    Scope,
)
from tandemmq.broker.protocols.amqp.links import InLink, OutLink

# Highest handle of a client.
HANDLE_MAX: Final = 1_023
Link = InLink | OutLink


class LinkTable:
    """``in_links`` and ``out_links``: by the handle of the client."""

    __slots__ = ("_attached_before", "_detached", "_handle_max", "_used", "in_links", "out_links")

    def __init__(self, handle_max: int) -> None:
        self.in_links: dict[int, InLink] = {}
        self.out_links: dict[int, OutLink] = {}
        # Sets of handles, with one bit for each handle: their memory is bounded.
        self._detached = 0  # handles that this side has detached, and the client has not
        self._attached_before = 0  # handles that the client has attached at least once
        self._used = 0  # handles of this side, until its detach is written
        self._handle_max = min(handle_max, HANDLE_MAX)  # highest handle of this side

    def check_free(self, handle: int) -> None:
        """Raise AmqpError if the client cannot attach a link with that handle."""
        if handle > HANDLE_MAX:
            raise AmqpError(FRAMING_ERROR, f"the handle {handle} is above handle-max")  # AMQP 1.0, 2.7.2
        if handle in self.in_links or handle in self.out_links or _has(self._detached, handle):
            raise AmqpError(HANDLE_IN_USE, f"the handle {handle} is attached already", Scope.SESSION)

    def check_detached(self, handle: int) -> None:
        """Raise AmqpError unless this side has detached this handle and the client has not: frames may still come."""
        if not _has(self._detached, handle):
            raise AmqpError(UNATTACHED_HANDLE, f"the handle {handle} is not attached", Scope.SESSION)

    def check_attached_before(self, handle: int) -> None:
        """Raise AmqpError if the client has never attached this handle. A client may send a flow after its own detach,
        as go-amqp 1.7 does."""
        if not _has(self._attached_before, handle):
            self.check_detached(handle)

    def all(self) -> list[Link]:
        return [*self.in_links.values(), *self.out_links.values()]

    def add(self, link: Link) -> None:
        """Add a new link."""
        self._attached_before |= 1 << link.handle
        if isinstance(link, InLink):
            self.in_links[link.handle] = link
        else:
            self.out_links[link.handle] = link

    def remove(self, link: Link) -> bool:
        """Remove a link; return False if it was removed before."""
        if isinstance(link, InLink):
            if self.in_links.get(link.handle) is not link:
                return False
            del self.in_links[link.handle]
        else:
            if self.out_links.get(link.handle) is not link:
                return False
            del self.out_links[link.handle]
        return True

    # ---- handles

    def take_handle(self, handle: int) -> int:
        """Return this side's handle for a link that the client attached with ``handle``. Raises AmqpError."""
        used = self._used
        if handle > self._handle_max or _has(used, handle):
            handle = (~used & (used + 1)).bit_length() - 1  # the lowest free one
            if handle > self._handle_max:
                text = "handle-max of the client leaves no handle for the link"
                raise AmqpError(RESOURCE_LIMIT, text, Scope.SESSION)
        self._used |= 1 << handle
        return handle

    def free_handle(self, handle: int) -> None:
        """Note that this side's detach is written."""
        self._used &= ~(1 << handle)

    def note_detached(self, handle: int) -> None:
        """Note that this side detached a link first."""
        self._detached |= 1 << handle

    def finish_detach(self, handle: int) -> bool:
        """Return whether a detach of the client answers a detach of this side."""
        if not _has(self._detached, handle):
            return False
        self._detached &= ~(1 << handle)
        return True


def _has(handles: int, handle: int) -> bool:
    """Return whether a handle is in a set. The client may send any number of 32 bits."""
    return handle <= HANDLE_MAX and handles >> handle & 1 == 1
