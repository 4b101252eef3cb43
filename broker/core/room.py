"""What a sender is told for whose message there is no room now."""

from __future__ import annotations

from broker.core.commands import ClientError, ErrorKind
from store.records.message import Destination


class NoRoom(ClientError):
    """There is no room now, but there may be again: its sender may wait for it.

    ``limit`` is the setting that is reached, ``of`` whose it is (None: the broker's), ``used`` what is used of it.
    ``destination``: what was sent to, whose policy says whether to wait. ``count``: so many messages are not taken.
    """

    def __init__(
        self,
        reason: str,
        advice: str,
        *,
        limit: str,
        destination: Destination,
        of: Destination | None = None,
        used: int = 0,
        count: int = 1,
    ) -> None:
        super().__init__(reason, advice, is_fatal=False, kind=ErrorKind.RESOURCE)
        self.limit = limit
        self.destination = destination
        self.of = of
        self.used = used
        self.count = count

    def of_another(self, destination: Destination) -> NoRoom:
        """What is sent to ``destination`` would have to wait for the same."""
        return NoRoom(self.message, self.detail, limit=self.limit, destination=destination, of=self.of, used=self.used)
