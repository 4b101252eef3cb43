"""What a book says must be true of a store: the life of each message in each queue and durable subscription.

It shares nothing with the product: it goes through the lines of a book, one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.support.ledger.book import Line

LIVE: Final = "live"
ACKED: Final = "acked"
EXPIRED: Final = "expired"
DEAD: Final = "poison"
DELETED: Final = "deleted"

# (queue or topic, its name, the subscription)
Owner = tuple[str, str, str | None]


@dataclass(slots=True)
class Life:
    """Of a message in one owner. Times are the client's: the broker did it between the two."""

    owner: Owner
    key: str
    added: tuple[int, int]
    state: str = LIVE
    gone: tuple[int, int] | None = None
    cause: str | None = None
    origin: str | None = None  # of a dead letter: where it came from
    is_doubted: bool = False  # a prepared transaction takes it


class Truth:
    """``lives`` in the order of arrival; ``sent``: key -> the line that sent it; ``fates``: key -> what became of what
    was sent (``held``, ``gone``, ``rolled_back``, ``in_doubt``); ``moments``: time -> the lives that were live then."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lives: list[Life] = []
        self.sent: dict[str, Line] = {}
        self.ids: dict[str, set[str]] = {}
        self.undone: set[str] = set()
        self.unwanted: set[str] = set()  # nobody was to have it: a broker may store it, or not
        self.in_doubt: set[str] = set()
        self.has_branches = False
        self.moments: dict[int, dict[Owner, list[str]]] = {}
        self.letters: list[Life] = []
        self._live: dict[tuple[Owner, str], Life] = {}
        self._subscriptions: dict[Owner, str | None] = {}
        self._open: dict[str, list[Line]] = {}
        lines = list(lines)
        self._skips: set[tuple[Owner, str]] = {(_owner(line), line["key"]) for line in lines if line["do"] == "skipped"}
        self.skipped: list[tuple[Owner, str]] = []
        for line in lines:
            getattr(self, f"_{line['do']}")(line)
        for operations in self._open.values():
            self.undone |= {line["key"] for line in operations if line["do"] == "sent"} - self.in_doubt

    # ---- what is there

    def held(self) -> dict[Owner, list[str]]:
        """Owner -> the keys of what it holds, in order; owners without any are left out."""
        found: dict[Owner, list[str]] = {}
        for life in self.lives:
            if life.state == LIVE:
                found.setdefault(life.owner, []).append(life.key)
        return found

    def counted(self) -> dict[Owner, Counter[str]]:
        """Owner -> state -> how many lives."""
        found: dict[Owner, Counter[str]] = {}
        for life in self.lives:
            found.setdefault(life.owner, Counter())[life.state] += 1
        return found

    @property
    def optional(self) -> set[str]:
        """Keys of what a broker may store, or not."""
        return self.undone | self.unwanted

    def fate(self, key: str) -> str:
        """Of what the line ``sent[key]`` sent."""
        if key in self.undone:
            return "rolled_back"
        if key in self.in_doubt:
            return "in_doubt"
        to = owner_of(self.sent[key]["to"])[:2]
        return (
            "held"
            if any(life.state == LIVE for life in self.lives if life.key == key and life.owner[:2] == to)
            else "gone"
        )

    # ---- lines

    def _sent(self, line: Line) -> None:
        assert line["key"] not in self.sent, line
        self.sent[line["key"]] = line
        if line["id"] is not None:
            self.ids.setdefault(line["key"], set()).add(line["id"])
        if line["transaction"] is not None:
            self._open.setdefault(line["transaction"], []).append(line)
        else:
            self._arrive(line, (line["began"], line["ended"]))

    def _arrive(self, line: Line, when: tuple[int, int]) -> None:
        to = owner_of(line["to"])
        before = len(self.lives)
        if to[0] == "queue":
            self._add(Life(to, line["key"], when))
        for owner in self._subscriptions:
            if owner[:2] == to[:2]:
                if (owner, line["key"]) in self._skips:
                    self.skipped.append((owner, line["key"]))
                else:
                    self._add(Life(owner, line["key"], when))
        if len(self.lives) == before:
            self.unwanted.add(line["key"])

    def _add(self, life: Life) -> None:
        self.lives.append(life)
        self._live[life.owner, life.key] = life

    def _received(self, line: Line) -> None:
        if line["id"] is not None:
            self.ids.setdefault(line["key"], set()).add(line["id"])

    def _acknowledged(self, line: Line) -> None:
        if line["transaction"] is not None:
            self._open.setdefault(line["transaction"], []).append(line)
        else:
            self._take(line, (line["began"], line["ended"]))

    def _take(self, line: Line, when: tuple[int, int]) -> None:
        self._end(_owner(line), line["key"], ACKED, when)

    def _end(self, owner: Owner, key: str, state: str, when: tuple[int, int]) -> Life:
        life = self._live.pop((owner, key))
        life.state, life.gone, life.is_doubted = state, when, False
        return life

    def _skipped(self, line: Line) -> None:
        """Read before all others."""

    def _dead(self, line: Line) -> None:
        self._letter(line, DEAD)

    def _expired(self, line: Line) -> None:
        self._letter(line, EXPIRED)

    def _letter(self, line: Line, state: str) -> None:
        when = line["began"], line["ended"]
        self._end(_owner(line), line["key"], state, when)
        letter = Life(owner_of(line["letters"]), line["key"], when, cause=line["cause"], origin=line["source"])
        self.letters.append(letter)
        self._add(letter)

    def _transaction(self, line: Line) -> None:
        if line["outcome"] == "prepared":
            self.has_branches = True
            self._mark(self._open.get(line["name"], []), is_doubted=True)
            return
        operations = self._open.pop(line["name"], [])
        self._mark(operations, is_doubted=False)
        if line["outcome"] == "rolled_back":
            self.undone |= {each["key"] for each in operations if each["do"] == "sent"}
            return
        when = line["began"], line["ended"]
        for each in operations:
            (self._arrive if each["do"] == "sent" else self._take)(each, when)

    def _mark(self, operations: list[Line], *, is_doubted: bool) -> None:
        for each in operations:
            if each["do"] == "acknowledged":
                self._live[_owner(each), each["key"]].is_doubted = is_doubted
            elif is_doubted:
                self.in_doubt.add(each["key"])
            else:
                self.in_doubt.discard(each["key"])

    def _subscribed(self, line: Line) -> None:
        self._subscriptions[_owner(line)] = line["selector"]

    def _unsubscribed(self, line: Line) -> None:
        owner = _owner(line)
        del self._subscriptions[owner]
        for life in [each for each in self._live.values() if each.owner == owner]:
            self._end(owner, life.key, DELETED, (line["began"], line["ended"]))

    def _moment(self, line: Line) -> None:
        self.moments[line["began"]] = self.held()


def owner_of(url: str, subscription: str | None = None) -> Owner:
    kind, _, name = url.partition("://")
    return kind, name, subscription


def _owner(line: dict[str, Any]) -> Owner:
    return owner_of(line["source"], line["subscription"]) if "subscription" in line else owner_of(line["source"])
