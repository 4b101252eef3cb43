"""The different selectors of a queue's consumers, and the holder that pays for the memory of each."""

from __future__ import annotations

from tandemmq.broker.core.delivery import Selector
from tandemmq.broker.core.memory import CHOICE_BYTES, Holder, Kind, Memory


class Choices:
    """Count each selector once, for the client that came first with it. When that client closes a consumer with it and
    others still have the selector, it counts for no client (``memory``)."""

    __slots__ = ("_memory", "_more", "_payers")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._payers: dict[Selector, Holder | Memory] = {}
        self._more: dict[Selector, int] = {}  # additional consumers, if there are any

    def joined(self, selector: Selector, payer: Holder | Memory) -> None:
        """Add a consumer with ``selector``. ``payer``: where its memory counts."""
        if selector in self._payers:
            self._more[selector] = self._more.get(selector, 0) + 1
        else:
            self._payers[selector] = payer
            payer.add(Kind.STATE, CHOICE_BYTES)

    def left(self, selector: Selector, payer: Holder | Memory) -> None:
        """Remove a consumer that ``joined`` with ``payer``."""
        more = self._more.pop(selector, 0)
        if not more:
            self._payers.pop(selector).add(Kind.STATE, -CHOICE_BYTES)
            return
        if more > 1:
            self._more[selector] = more - 1
        if self._payers[selector] is payer:
            self._payers[selector] = self._memory
            payer.add(Kind.STATE, -CHOICE_BYTES)
            self._memory.add(Kind.STATE, CHOICE_BYTES)
