"""The expected content of a store by a client's records: the life of each message in each queue and durable
subscription.

It processes the lines of the records one after the other, and shares no code with the product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tests.support.ledger.book import Line

LIVE: Final = "live"
ACKED: Final = "acked"
EXPIRED: Final = "expired"
DEAD: Final = "poison"
DELETED: Final = "deleted"

# Queue or topic, and its name.
Place = tuple[str, str]
# A place, and for a topic the subscription.
Owner = tuple[str, str, str | None]
# The client's times before and after a call, in milliseconds: the broker's action is between them.
When = tuple[int, int]


@dataclass(slots=True)
class Life:
    """The life of a message in one owner."""

    owner: Owner
    key: str
    added: When
    state: str = LIVE
    gone: When | None = None
    cause: str | None = None
    origin: str | None = None  # source of a dead letter
    is_doubted: bool = False  # a prepared transaction consumes it


class Truth:
    """``lives``: in the order of arrival; ``letters``: those of dead letters; ``sent``: key -> the line of a persistent
    message; ``ids``: key -> the ids that clients saw; ``skipped``: messages that a selector did not match; ``moments``:
    time -> the content of each owner.

    Sets of keys: ``undone``: rolled back; ``branched``: sent by a prepared branch; ``in_doubt``: sent by a branch that
    is still prepared; ``unwanted``: for no owner.
    """

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lives: list[Life] = []
        self.letters: list[Life] = []
        self.sent: dict[str, Line] = {}
        self.ids: dict[str, set[str]] = {}
        self.skipped: list[tuple[Owner, str]] = []
        self.moments: dict[int, dict[Owner, list[str]]] = {}
        self.undone: set[str] = set()
        self.in_doubt: set[str] = set()
        self.unwanted: set[str] = set()
        self.branched: set[str] = set()
        self._live: dict[tuple[Owner, str], Life] = {}
        self._fleeting: set[str] = set()
        self._subscriptions: set[Owner] = set()
        self._open: dict[str, list[Line]] = {}
        lines = list(lines)
        self._skips = {(_owner(line), str(line["key"])) for line in lines if line["do"] == "skipped"}
        for line in lines:
            getattr(self, f"_{line['do']}")(line)
        for operations in self._open.values():  # of a client that has left; prepared branches stay
            self.undone |= {line["key"] for line in operations if line["do"] == "sent"} - self.in_doubt

    # ---- content

    @property
    def optional(self) -> set[str]:
        """Return the keys of messages that a broker may or may not store."""
        return self.undone | self.unwanted

    def held(self) -> dict[Owner, list[str]]:
        """Return owner -> the keys of its messages, in order, without empty owners."""
        found: dict[Owner, list[str]] = {}
        for life in self.lives:
            if life.state == LIVE:
                found.setdefault(life.owner, []).append(life.key)
        return found

    def by_place(self) -> dict[Place, list[Life]]:
        found: dict[Place, list[Life]] = {}
        for life in self.lives:
            found.setdefault(life.owner[:2], []).append(life)
        return found

    def stored(self) -> Counter[tuple[Place, str]]:
        """Return place and key -> number of times that it must be stored there, if this is certain."""
        found = Counter({(place_of(line), key): 1 for key, line in self.sent.items() if key not in self.optional})
        found.update((letter.owner[:2], letter.key) for letter in self.letters)
        return found

    def fate(self, key: str) -> str:
        """Return the state of a sent message: held, gone, rolled_back or in_doubt."""
        if key in self.undone:
            return "rolled_back"
        if key in self.in_doubt:
            return "in_doubt"
        to = place_of(self.sent[key])
        is_held = any(life.key == key and life.state == LIVE and life.owner[:2] == to for life in self.lives)
        return "held" if is_held else "gone"

    # ---- lines

    def _sent(self, line: Line) -> None:
        key = line["key"]
        assert key not in self.sent, line
        if not line["persistent"]:
            self._fleeting.add(key)
            return
        self.sent[key] = line
        if line["id"] is not None:
            self.ids.setdefault(key, set()).add(line["id"])
        if line["transaction"] is None:
            self._arrive(line, _when(line))
        else:
            self._open.setdefault(line["transaction"], []).append(line)

    def _arrive(self, line: Line, when: When) -> None:
        place, before = place_of(line), len(self.lives)
        if place[0] == "queue":
            self._add(Life((*place, None), line["key"], when))
        for owner in sorted(owner for owner in self._subscriptions if owner[:2] == place):
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
        if line["key"] in self._fleeting:
            return
        if line["transaction"] is None:
            self._take(line, _when(line))
        else:
            self._open.setdefault(line["transaction"], []).append(line)

    def _take(self, line: Line, when: When) -> None:
        self._end(_owner(line), line["key"], ACKED, when)

    def _end(self, owner: Owner, key: str, state: str, when: When) -> None:
        life = self._live.pop((owner, key))
        life.state, life.gone, life.is_doubted = state, when, False

    def _skipped(self, line: Line) -> None:
        """Process the lines of skipped messages, before all others."""

    def _dead(self, line: Line) -> None:
        self._letter(line, DEAD)

    def _expired(self, line: Line) -> None:
        self._letter(line, EXPIRED)

    def _letter(self, line: Line, state: str) -> None:
        self._end(_owner(line), line["key"], state, _when(line))
        owner = _owner({"source": line["letters"]})
        letter = Life(owner, line["key"], _when(line), cause=line["cause"], origin=line["source"])
        self.letters.append(letter)
        self._add(letter)

    def _transaction(self, line: Line) -> None:
        if line["outcome"] == "prepared":
            self._mark(self._open.get(line["name"], []), is_doubted=True)
            return
        operations = self._open.pop(line["name"], [])
        self._mark(operations, is_doubted=False)
        if line["outcome"] == "rolled_back":
            self.undone |= {each["key"] for each in operations if each["do"] == "sent"}
            return
        for each in operations:
            (self._arrive if each["do"] == "sent" else self._take)(each, _when(line))

    def _mark(self, operations: list[Line], *, is_doubted: bool) -> None:
        for each in operations:
            if each["do"] == "acknowledged":
                self._live[_owner(each), each["key"]].is_doubted = is_doubted
            elif is_doubted:
                self.in_doubt.add(each["key"])
                self.branched.add(each["key"])
            else:
                self.in_doubt.discard(each["key"])

    def _subscribed(self, line: Line) -> None:
        self._subscriptions.add(_owner(line))

    def _unsubscribed(self, line: Line) -> None:
        owner = _owner(line)
        self._subscriptions.remove(owner)
        for life in [each for each in self._live.values() if each.owner == owner]:
            self._end(owner, life.key, DELETED, _when(line))

    def _moment(self, line: Line) -> None:
        self.moments[line["began"]] = self.held()


def place_of(line: Line) -> Place:
    """Return the destination of a line's message."""
    kind, _, name = line["to"].partition("://")
    return kind, name


def _owner(line: Line) -> Owner:
    kind, _, name = line["source"].partition("://")
    return kind, name, line.get("subscription")


def _when(line: Line) -> When:
    return line["began"], line["ended"]
