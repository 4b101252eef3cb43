"""The links of one AMQP session by their handles. Pure.

The handles of the two directions are independent (AMQP 1.0, 2.6.2). The client may use a handle again when it has sent
its detach. This side's handle is the client's number if its last detach with it is written, otherwise another one.
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

# Handles of the client go up to this.
HANDLE_MAX: Final = 1_023
Link = InLink | OutLink


class LinkTable:
    """``in_links`` and ``out_links``: by the handle of the client."""

    __slots__ = ("_handle_max", "_left", "_past", "_used", "in_links", "out_links")

    def __init__(self, handle_max: int) -> None:
        self.in_links: dict[int, InLink] = {}
        self.out_links: dict[int, OutLink] = {}
        # Sets of handles, a bit for each: a client that never detaches cannot make them grow.
        self._left = 0  # handles that this side detached, and the client did not yet
        self._past = 0  # handles that the client used once
        self._used = 0  # this side's, until its detach is written
        self._handle_max = min(handle_max, HANDLE_MAX)  # of this side's

    def check_free(self, handle: int) -> None:
        """Raise AmqpError if the client cannot attach a link with that handle."""
        if handle > HANDLE_MAX:
            raise AmqpError(FRAMING_ERROR, f"the handle {handle} is above handle-max")  # AMQP 1.0, 2.7.2
        if handle in self.in_links or handle in self.out_links or _has(self._left, handle):
            raise AmqpError(HANDLE_IN_USE, f"the handle {handle} is attached already", Scope.SESSION)

    def check_left(self, handle: int) -> None:
        """Raise AmqpError if the client names a link that is not attached, unless this side detached it first."""
        if not _has(self._left, handle):
            raise AmqpError(UNATTACHED_HANDLE, f"the handle {handle} is not attached", Scope.SESSION)

    def check_past(self, handle: int) -> None:
        """Raise AmqpError if the client grants credit to a link that never was. It may do so behind its own detach:
        go-amqp 1.7 does."""
        if not _has(self._past, handle):
            self.check_left(handle)

    def all(self) -> list[Link]:
        return [*self.in_links.values(), *self.out_links.values()]

    def add(self, link: Link) -> None:
        """Add a new link."""
        self._past |= 1 << link.handle
        if isinstance(link, InLink):
            self.in_links[link.handle] = link
        else:
            self.out_links[link.handle] = link

    def remove(self, link: Link) -> bool:
        """Remove a link that is over; return False if that happened already."""
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
        """Return this side's handle for a link to which the client gave ``handle``. Raises AmqpError."""
        used = self._used
        if handle > self._handle_max or _has(used, handle):
            handle = (~used & (used + 1)).bit_length() - 1  # the lowest that is free
            if handle > self._handle_max:
                text = "handle-max of the client leaves no handle for the link"
                raise AmqpError(RESOURCE_LIMIT, text, Scope.SESSION)
        self._used |= 1 << handle
        return handle

    def free_handle(self, handle: int) -> None:
        """Note that this side's detach is written."""
        self._used &= ~(1 << handle)

    def leave(self, handle: int) -> None:
        """Note that this side detached a link first."""
        self._left |= 1 << handle

    def is_left(self, handle: int) -> bool:
        """Return whether this side detached the link first, and the client does it now."""
        if not _has(self._left, handle):
            return False
        self._left &= ~(1 << handle)
        return True


def _has(handles: int, handle: int) -> bool:
    """Return whether a handle is in a set. The client may name any number of 32 bits."""
    return handle <= HANDLE_MAX and handles >> handle & 1 == 1
