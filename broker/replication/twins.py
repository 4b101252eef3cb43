"""Two directories with one store id, whose processes both live: a cloned disk. No member may let one of them in.

One directory has one process at a time, so of two processes of one store either all of the one is before the other, or
there are two directories. A process is known by its life and its address. Whoever completes a handshake proves that it
lived when that was begun, or later; a handshake ends within HANDSHAKE_SECONDS_MAX. So a process that is heard more than
TWIN_SECONDS after another one was heard first lived after that one did. If that is so both ways, both live.
"""

# proofs: twins

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.replication.handshake import HANDSHAKE_SECONDS_MAX
from tandemmq.broker.replication.messages import Hello
from tandemmq.broker.replication.network import Link

log = logging.getLogger(__name__)

#: Longer than a handshake takes, also by a clock that runs more slowly.
TWIN_SECONDS: Final = HANDSHAKE_SECONDS_MAX + 1.0
#: Who was not heard of for so long is gone. A process that is refused dials again each second.
SILENT_SECONDS: Final = 30.0

Process = tuple[int, str]  # life and address


@dataclass(slots=True)
class _Heard:
    """``first`` and ``last``: when, by the clock, it completed a handshake. ``left_at``: when a link to it went last.
    ``links``: that are up now."""

    node: str
    first: float
    last: float
    left_at: float
    links: list[Link]

    def is_silent(self, now: float) -> bool:
        return not self.links and now - max(self.last, self.left_at) >= SILENT_SECONDS


class Twins:
    """What one member heard of the processes of each store. The network's thread; ``problem`` any thread.

    ``now``: the clock by which handshakes end, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heard: dict[str, dict[Process, _Heard]] = {}
        self._told: dict[str, tuple[str, float]] = {}  # by store: who uses it, and when that was seen last

    @property
    def problem(self) -> str:
        """Which stores are used by two nodes; "": none is."""
        now = self._now()
        return "; ".join(told for told, at in list(self._told.values()) if now - at < SILENT_SECONDS)

    def refusal(self, store: str) -> str | None:
        """Why nodes of this store are refused: two of them live. None: at most one lives."""
        told, at = self._told.get(store, ("", 0.0))
        return told if told and self._now() - at < SILENT_SECONDS else None

    def heard(self, hello: Hello) -> None:
        """This node completed a handshake now, and knows the token."""
        now, store = self._now(), hello.store
        heard = self._alive(store, now)
        one = heard.setdefault((hello.life, hello.address), _Heard(hello.node, now, now, now, []))
        one.last = now
        others = [each for each in heard.values() if each is not one]
        # Of two that are known, the one that starts again is another process, at its address.
        elsewhere = any(address != hello.address for _, address in heard)
        # prove: a-known-twin-is-not-let-in-by-a-start "elsewhere" -> "False"
        told = self.refusal(store) if elsewhere else None
        if any(_both_live(one, other) for other in others):
            told = _told(store, heard)
        if told is not None:
            _hang_up([one, *others], "two nodes have this store id")  # prove: twins-lose-their-links
            if self.refusal(store) is None:
                log.error("%s", told)
            self._told[store] = told, now  # prove: twins-are-not-let-in
            return
        self._told.pop(store, None)
        if now > one.first + TWIN_SECONDS:
            # Whoever of them lives dials again, and is heard; whoever is gone is not missed.
            silent = [each for each in others if now > each.first + TWIN_SECONDS]
            _hang_up(silent, "another node has its store id")  # prove: a-linked-twin-comes-again

    def knows(self, hello: Hello) -> bool:
        """Whether this process was heard, and is not silent since."""
        return (hello.life, hello.address) in self._heard.get(hello.store, {})

    def link_up(self, link: Link) -> None:
        heard = self._heard.get(link.member.store, {}).get((link.member.life, link.member.address))
        if heard is not None:
            heard.links.append(link)

    def link_down(self, link: Link) -> None:
        for heard in self._heard.get(link.member.store, {}).values():
            if link in heard.links:
                heard.links.remove(link)
                heard.left_at = self._now()  # its handshake was as long ago as before

    def _alive(self, store: str, now: float) -> dict[Process, _Heard]:
        """Those of one store, without those that are silent; so of all stores that are no longer heard of."""
        for each, heard in list(self._heard.items()):
            kept = {process: one for process, one in heard.items() if not one.is_silent(now)}
            if kept:
                self._heard[each] = kept
            else:
                del self._heard[each]
        return self._heard.setdefault(store, {})


def _told(store: str, heard: dict[Process, _Heard]) -> str:
    live = [
        f"{one.node} at {address}"
        for (_, address), one in sorted(heard.items(), key=lambda each: each[0])
        if any(_both_live(one, other) for other in heard.values() if other is not one)
    ]
    nodes = " and ".join(live)
    return f"store {store} is used by two nodes, {nodes}: none is let in. Stop one of them and empty its directory"


def _both_live(one: _Heard, other: _Heard) -> bool:
    """Each was heard in a handshake that was begun after the other one was heard first."""
    # prove: twins-are-both-alive " and other.last > one.first + TWIN_SECONDS"
    return one.last > other.first + TWIN_SECONDS and other.last > one.first + TWIN_SECONDS


def _hang_up(processes: list[_Heard], reason: str) -> None:
    for each in processes:
        for link in list(each.links):
            link.close(reason)
