"""Merge the event rings of several brokers into one timeline, and split the timeline into outages and their phases.

Pure: reads no clock and calls no broker. Times are seconds of the caller's own boot clock.

Trust in clocks: events of one boot are ordered by that boot's clock, which cannot be set. Between two machines the
offset is known from the round trip of a request to a running broker. The rest, events of a lost machine or of an
earlier boot, is placed by its wall clock and marked as uncertain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.broker.admin.events import FELL_SILENT, STALLED, Event, Moment

STANDBY: Final = "standby"
LOCK_TAKEN: Final = "lock-taken"
FENCED: Final = "fenced"
LISTENING: Final = "listening"
MASTER: Final = "master"
FIRST_RECEIPT: Final = "first-receipt"
LOCK_RELEASED: Final = "lock-released"
ELECTED: Final = "elected"  # in a replicated set; the node then takes mastership like a lock

#: Steps of a take-over after the lock, each with the phase that it ends.
STEPS: Final = {
    FENCED: "fence",
    "replayed": "replay",
    "store-open": "load",
    LISTENING: "listen",
    "first-client": "first client",
    FIRST_RECEIPT: "first receipt",
}
MEANING: Final = {
    "detect": "until the lock was free, or a set had elected",
    "lock": "until it was taken",
    "fence": "until the former master could no longer write",
    "replay": "until the end of the journal was read",
    "load": "until the store was open",
    "listen": "until the ports answered",
    "first client": "until a client was back",
    "first receipt": "until a message was confirmed",
}
PHASES: Final = tuple(MEANING)

HANDOVER_ASKED: Final = "handover-asked"  # clients are still served, while a checkpoint is made
DRAINING: Final = "draining"
#: The first of these events ends a master's service.
ENDS: Final = frozenset({DRAINING, "lost", "cut", "drained", "demoted", LOCK_RELEASED, "ended", FELL_SILENT})


@dataclass(frozen=True, slots=True)
class Reading:
    """The event ring of one broker. ``now`` is the broker's own clock when it answered, between ``before`` and
    ``after`` of ours; None for a ring that was read from a file."""

    name: str
    source: str
    events: Sequence[Event]
    now: Moment | None = None
    before: float = 0.0
    after: float = 0.0

    @property
    def doubt(self) -> float:
        """Uncertainty of the broker's clock, in seconds either way."""
        return (self.after - self.before) / 2

    @property
    def asked_at(self) -> float:
        return (self.before + self.after) / 2


@dataclass(frozen=True, slots=True)
class Happening:
    """An event in the common time. ``is_certain`` is False if only a wall clock, which may be wrong, places it."""

    time: float
    broker: str
    event: Event
    is_certain: bool = True


@dataclass(slots=True)
class Term:
    """Term of a broker as master, from the lock to its end, with the steps that it reached and their times."""

    broker: str
    taken: Happening
    steps: dict[str, float] = field(default_factory=dict)
    ends: list[Happening] = field(default_factory=list)
    stalls: list[Happening] = field(default_factory=list)
    epoch: int = 0
    asked: Happening | None = None  # the request of a handover
    elected: float | None = None  # time of the election, in a set
    awaited: str | None = None  # holder of the lock at the last attempt, if the broker recorded it

    @property
    def has_served(self) -> bool:
        return LISTENING in self.steps


@dataclass(frozen=True, slots=True)
class Outage:
    """The time from one master to the next. ``former`` is None if its ring is missing. ``seconds`` is the time until
    the ports answered; ``seconds_until_receipt`` includes the time of the clients."""

    former: str | None
    former_epoch: int
    successor: str
    epoch: int
    began: float
    phases: Mapping[str, float | None]
    cause: str
    last_receipt: float | None
    first_receipt: float | None
    happenings: Sequence[Happening]

    @property
    def seconds(self) -> float:
        return sum(self.phases[phase] or 0.0 for phase in PHASES[: PHASES.index("listen") + 1])

    @property
    def seconds_until_receipt(self) -> float | None:
        return None if self.first_receipt is None else sum(seconds or 0.0 for seconds in self.phases.values())


# ---- one time for all


def merge(readings: Sequence[Reading], here: Moment) -> tuple[list[Happening], list[str]]:
    """Return all events in the order in which they happened, and notes on the clocks. ``here`` is now."""
    offsets = _offsets(readings, here)
    merged: list[Happening] = []
    notes: list[str] = []
    for reading in readings:
        wall_offset = 0.0 if reading.now is None else _wall_offset(reading, reading.now, here)
        doubtful = 0
        for event in reading.events:
            offset = offsets.get(event.at.boot_id)
            if offset is None:
                doubtful += 1
                time = here.boot_seconds + (event.at.wall_ms - here.wall_ms) / 1000 + wall_offset
            else:
                time = event.at.boot_seconds + offset
            merged.append(Happening(time, reading.name, event, offset is not None))
        if doubtful:
            notes.append(
                f"{doubtful} events of {reading.name} are placed by its wall clock: they are of an earlier boot, or of "
                "a machine that does not answer"
            )
        if reading.now is not None and abs(wall_offset) >= 1.0:
            notes.append(f"the wall clock of {reading.name} differs from the one here by {-wall_offset:+.3f} s")
    # Sorting is stable: events of one broker and instant stay as they were recorded.
    merged.sort(key=lambda happening: happening.time)
    return merged, notes


def _offsets(readings: Iterable[Reading], here: Moment) -> dict[str, float]:
    """Return the offset of each known boot's clock, from the request with the shortest round trip."""
    best: dict[str, tuple[float, float]] = {}
    for reading in readings:
        if reading.now is not None and reading.now.boot_id:
            known = reading.doubt, reading.asked_at - reading.now.boot_seconds
            best[reading.now.boot_id] = min(best.get(reading.now.boot_id, known), known)
    offsets = {boot_id: offset for boot_id, (_, offset) in best.items()}
    if here.boot_id:
        offsets[here.boot_id] = 0.0
    return offsets


def _wall_offset(reading: Reading, now: Moment, here: Moment) -> float:
    """Seconds to add to a broker's wall clock to get the local one."""
    return (here.wall_ms - now.wall_ms) / 1000 - (here.boot_seconds - reading.asked_at)


# ---- terms, and the outages between them


def outages(happenings: Sequence[Happening]) -> list[Outage]:
    """Return the outages, from the end of each term to the service of the next, the earliest first. The first term has
    no predecessor and is no outage, unless it had to wait for a lock that was held."""
    found: list[Outage] = []
    former: Term | None = None
    for term in sorted(_terms(happenings), key=lambda term: term.taken.time):
        if not term.has_served:
            continue
        known = former if former is None or term.awaited in (None, former.broker) else None
        if known is not None or _refused_at(term) is not None:
            found.append(_outage(known, term, happenings))
        former = term
    return found


def _terms(happenings: Iterable[Happening]) -> list[Term]:
    terms: list[Term] = []
    open_terms: dict[str, Term] = {}
    awaited: dict[str, str | None] = {}
    elected: dict[str, float] = {}
    for happening in happenings:
        kind = happening.event.kind
        if kind == STANDBY:
            # No holder, between two holders: the previous one is still awaited.
            awaited[happening.broker] = happening.event.facts.get("holder") or awaited.get(happening.broker)
        if kind == ELECTED:
            elected[happening.broker] = happening.time
        if kind == LOCK_TAKEN:
            broker = happening.broker
            term = Term(broker, happening, elected=elected.pop(broker, None), awaited=awaited.pop(broker, None))
            open_terms[happening.broker] = term
            terms.append(term)
            continue
        ruling = open_terms.get(happening.broker)
        if ruling is None:
            continue
        if kind in STEPS or kind == MASTER:
            ruling.steps.setdefault(kind, happening.time)
            ruling.epoch = max(ruling.epoch, happening.event.epoch)
        elif kind in ENDS:
            ruling.ends.append(happening)
        elif kind == HANDOVER_ASKED:
            ruling.asked = happening
        elif kind == STALLED:
            ruling.stalls.append(happening)
    return terms


def _refused_at(term: Term) -> float | None:
    """Return when the lock was last seen held by another broker, in the common time."""
    at = term.taken.event.facts.get("refused_at_boot")
    if not isinstance(at, int | float) or at <= 0:
        return None
    return term.taken.time - (term.taken.event.at.boot_seconds - at)


def _outage(former: Term | None, term: Term, happenings: Sequence[Happening]) -> Outage:
    taken = term.taken.time
    end = None if former is None else _end_of_service(former, term)
    refused_at = _refused_at(term)
    if end is not None:
        began = end.time
    else:  # a known master served until the fence stopped it; of an unknown one only the times of the lock are known
        began = term.steps.get(FENCED, taken) if former is not None else min(refused_at or taken, taken)
    free_at = min(max(began, refused_at if refused_at is not None else began), max(taken, began))
    if former is not None:
        released = [h.time for h in former.ends if h.event.kind == LOCK_RELEASED and began <= h.time <= taken]
        free_at = released[0] if released else free_at
    if term.elected is not None and began <= term.elected <= taken:
        free_at = term.elected
    phases: dict[str, float | None] = {"detect": free_at - began, "lock": max(0.0, taken - free_at)}
    reached = max(taken, began)
    for step, phase in STEPS.items():
        at = term.steps.get(step)
        phases[phase] = None if at is None else max(0.0, at - reached)
        reached = max(reached, at if at is not None else reached)
    since = began if former is None or former.asked is None else min(began, former.asked.time)
    until = max(reached, term.steps.get(MASTER, reached))
    return Outage(
        former.broker if former is not None else None,
        former.epoch if former is not None else 0,
        term.broker,
        term.epoch,
        began,
        phases,
        _cause(former, term, end),
        _last_receipt(former, end),
        term.steps.get(FIRST_RECEIPT),
        [h for h in happenings if since <= h.time <= until],
    )


def _end_of_service(former: Term, term: Term) -> Happening | None:
    """Return the event that ended the former master's service; None if it served until the fence stopped it."""
    taken = term.taken.time
    candidates = [end for end in former.ends if end.time <= taken]
    candidates += [
        stall
        for stall in former.stalls
        if stall.time <= taken <= stall.time + float(stall.event.facts.get("seconds", 0))
    ]
    return min(candidates, key=lambda happening: happening.time, default=None)


def _last_receipt(former: Term | None, end: Happening | None) -> float | None:
    if former is None:
        return None
    for happening in [end, *former.ends]:
        at = None if happening is None else happening.event.facts.get("last_receipt_boot_seconds")
        if happening is not None and isinstance(at, int | float):
            return happening.time - (happening.event.at.boot_seconds - at)
    return None


# ---- causes


def _cause(former: Term | None, term: Term, end: Happening | None) -> str:
    if former is None:
        who = term.awaited or "the former master"
        return f"the events of {who} are missing: name that broker by --admin, or the data directory by --data"
    who = former.broker
    if end is None:
        late = next((h for h in former.ends if h.time > term.taken.time), None)
        why = f"; it gave up when {_reason(late)}" if late is not None else ""
        return f"{who} was still master when {term.broker} got the lock, and was fenced off{why}"
    facts = end.event.facts
    if end.event.kind == FELL_SILENT:
        if term.broker == who:
            return f"{who} ended unexpectedly (killed, crashed, or its machine went down) and was started again"
        return f"{who} ended unexpectedly: killed, crashed, or its machine went down"
    if end.event.kind == STALLED:
        return f"{who} showed no life for {facts.get('seconds')} s: stopped, suspended, or hung"
    if end.event.kind in (DRAINING, "drained", "ended", LOCK_RELEASED):
        reason = None if former.asked is None else former.asked.event.facts.get("reason")
        again = ", and no other broker took the lock" if term.broker == who else ""
        return f"{who} handed over{f': {reason}' if reason else ''}{again}"
    return f"{who} gave up: {_reason(end)}"


def _reason(happening: Happening) -> str:
    facts: Mapping[str, Any] = happening.event.facts
    parts = [str(facts[name]) for name in ("trouble", "reason") if facts.get(name)]
    return " – ".join(parts) or f"it recorded {happening.event.kind!r}"
