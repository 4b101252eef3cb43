"""The different selectors of the consumers of a queue, and who pays what each of them takes in memory."""

from __future__ import annotations

from tandemmq.broker.core.delivery import Selector
from tandemmq.broker.core.memory import CHOICE_BYTES, Holder, Kind, Memory


class Choices:
    """Each selector counts once, for the client that came first with it. It counts for nobody (``memory``) from when
    that client has one consumer less and others still have the selector."""

    __slots__ = ("_memory", "_more", "_payers")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._payers: dict[Selector, Holder | Memory] = {}
        self._more: dict[Selector, int] = {}  # consumers beside one, where there are any

    def joined(self, selector: Selector, payer: Holder | Memory) -> None:
        """A consumer has it. ``payer``: where what it takes counts."""
        if selector in self._payers:
            self._more[selector] = self._more.get(selector, 0) + 1
        else:
            self._payers[selector] = payer
            payer.add(Kind.STATE, CHOICE_BYTES)

    def left(self, selector: Selector, payer: Holder | Memory) -> None:
        """One consumer less has it, which had joined so."""
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
