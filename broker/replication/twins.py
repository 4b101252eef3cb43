"""Two directories with one store id whose processes are both alive: a cloned disk. No member may admit either of them.

One directory has one process at a time. So of two processes of one store, either all of one is before the other, or
there are two directories. Life and address identify a process. A completed handshake proves that the peer was alive
when the handshake began, or later; a handshake ends within HANDSHAKE_SECONDS_MAX. So a process that is heard more than
TWIN_SECONDS after another one was first heard was alive after the other one was. If that holds both ways, both are
alive.
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

#: Longer than a handshake takes, even by a slower clock.
TWIN_SECONDS: Final = HANDSHAKE_SECONDS_MAX + 1.0
#: A process that was not heard for this long is gone. A refused process dials again each second.
SILENT_SECONDS: Final = 30.0

Process = tuple[int, str]  # life and address


@dataclass(slots=True)
class _Heard:
    """History of one process, as it was heard. ``first`` and ``last``: when, by the clock, it completed a handshake.
    ``left_at``: when a link to it last ended. ``links``: those that are up now."""

    node: str
    first: float
    last: float
    left_at: float
    links: list[Link]

    def is_silent(self, now: float) -> bool:
        return not self.links and now - max(self.last, self.left_at) >= SILENT_SECONDS


class Twins:
    """Processes of each store, as one member heard them. The network's thread; ``problem`` any thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heard: dict[str, dict[Process, _Heard]] = {}
        self._told: dict[str, tuple[str, float]] = {}  # by store: the report, and when the twins were last seen

    @property
    def problem(self) -> str:
        """Report of the stores that two nodes use; "": none."""
        now = self._now()
        return "; ".join(told for told, at in list(self._told.values()) if now - at < SILENT_SECONDS)

    def refusal(self, store: str) -> str | None:
        """Return why nodes of this store are refused: two of them are alive. None: at most one is."""
        told, at = self._told.get(store, ("", 0.0))
        return told if told and self._now() - at < SILENT_SECONDS else None

    def heard(self, hello: Hello) -> None:
        """Note that this node completed a handshake now, and knows the token."""
        now, store = self._now(), hello.store
        heard = self._alive(store, now)
        one = heard.setdefault((hello.life, hello.address), _Heard(hello.node, now, now, now, []))
        one.last = now
        others = [each for each in heard.values() if each is not one]
        # If both are known and one restarts, it is another process at the same address.
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
            # A process that is alive dials again, and is heard; a process that is gone is not missed.
            silent = [each for each in others if now > each.first + TWIN_SECONDS]
            _hang_up(silent, "another node has its store id")  # prove: a-linked-twin-comes-again

    def knows(self, hello: Hello) -> bool:
        """Return whether this process was heard, and has not been silent since."""
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
        """Return the processes of one store. Removes silent processes of all stores first."""
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
    """Return whether each was heard in a handshake that began after the other one was first heard."""
    # prove: twins-are-both-alive " and other.last > one.first + TWIN_SECONDS"
    return one.last > other.first + TWIN_SECONDS and other.last > one.first + TWIN_SECONDS


def _hang_up(processes: list[_Heard], reason: str) -> None:
    for each in processes:
        for link in list(each.links):
            link.close(reason)
