"""Status of a broker: the answer of ``GET /status``, also the source of health pages and metrics.

broker.admin.server describes its content. All functions run on the loop, and never wait for a disk or a lock: they
return values that other threads have recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final

from tandemmq import __version__, compiled
from tandemmq.broker.admin.events import EventRing, last_takeover_seconds
from tandemmq.broker.bridges.bridges import left_sentence
from tandemmq.broker.core.slices import Work, pieces
from tandemmq.broker.engine import memory_holders
from tandemmq.broker.engine.engine import Engine
from tandemmq.broker.engine.flow_control import sentence
from tandemmq.broker.ha.mastership import Mastership
from tandemmq.broker.ha.service import AnyStore
from tandemmq.broker.ha.waits import LOCK_SILENCE_SECONDS_MAX
from tandemmq.broker.net.server import Server
from tandemmq.broker.process.log import Log
from tandemmq.broker.security import expiry
from tandemmq.locker.contract import JITTER, Locker
from tandemmq.store.histogram import Histogram
from tandemmq.store.several.stores import SeveralStores
from tandemmq.store.state.owners import OwnerState

# An idle storage thread checks the fence once in a keep-alive period. The thread hangs if it has been silent for
# several periods and at least for this long.
SILENCE_SECONDS_MAX = 10.0
SILENT_PERIODS_MAX = 3

Answer = dict[str, Any]
#: Number of owners that are named.
OWNERS_MAX: Final = 10
#: Name for the sum of all others. No owner has this name, because names of owners begin with a kind.
OTHERS: Final = "others"
#: Parts of the texts of problems that a restart of the process repairs. A supervisor must not restart it for other
#: problems.
REPAIRED_BY_RESTART: Final = ("BUG", "this node takes no part until it is started again")
# Upper bounds of the buckets of LoopLag. On an idle machine, no step on the loop may take longer than 20 ms.
LAG_BOUNDS_SECONDS: Final = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_bytes = attrgetter("bytes")


class LoopLag:
    """Lag of the event loop: histogram of the delays of its timers. Runs on the loop. Call ``note`` with each delay in
    seconds; a negative delay counts as 0."""

    __slots__ = ("_histogram", "max_seconds")

    def __init__(self) -> None:
        self._histogram = Histogram(LAG_BOUNDS_SECONDS)
        self.max_seconds = 0.0

    def note(self, seconds: float) -> None:
        seconds = max(seconds, 0.0)
        self._histogram.note(seconds)
        self.max_seconds = max(self.max_seconds, seconds)

    def figures(self) -> dict[str, Any]:
        """Return the figures of the histogram, and ``max``: the longest delay in seconds."""
        return self._histogram.figures() | {"max": round(self.max_seconds, 6)}


@dataclass(slots=True)
class Report:
    """Sources of a status. ``engine`` returns None unless this broker is master. ``warnings``: warnings known at
    the start."""

    name: str
    directory: str
    locker_type: str
    locker: Locker
    mastership: Mastership
    server: Server
    engine: Callable[[], Engine | None]
    ring: EventRing
    member: Callable[[], Mapping[str, Any] | None] = lambda: None  # status in a replicated set
    scrubbed: Callable[[], Mapping[str, int]] = dict  # figures of the scrubber: bytes read, damage found and repaired
    warnings: Sequence[str] = ()
    certificates: Callable[[], list[Answer]] = list  # when the certificates of each file expire
    files: Callable[[], list[str]] = list  # problems of files that are read again, a sentence each
    log: Log | None = None
    mqtt: Callable[[], Mapping[str, int]] = dict  # figures of MQTT clients; empty unless this broker is master
    bridges: Callable[[], list[Answer]] = list  # status of each bridge
    left_by_bridges: Callable[[], list[Answer]] = list  # durable subscriptions of former bridges
    loop_lag: LoopLag = field(default_factory=LoopLag)  # delay of the event loop
    started: float = field(default_factory=time.time)
    monotonic: Callable[[], float] = time.monotonic  # clock of the signs of life in ``mastership``

    def details(self) -> Work[Answer]:
        """Return, in steps, the parts of ``GET /status`` that grow with the number of destinations."""
        engine = self.engine()
        if engine is None:
            return {}
        answer = yield from engine.statistics()
        store = self.mastership.store
        if store is not None:
            answer["journal"] = yield from journal_figures(store)
        return answer

    def status(self) -> Answer:
        """Return the answer of ``GET /status`` without the parts in ``details``."""
        mastership = self.mastership
        answer: Answer = {
            "role": mastership.role.value,
            # The epoch of a standby is that of the master that it follows.
            "epoch": max(mastership.epoch, (mastership.holder and mastership.holder.epoch) or 0),
            "name": self.name,
            "store": self.directory,
            "phase": mastership.phase.value,
            "reason": mastership.reason,
            "version": __version__,
            "code": compiled.description(),
            "pid": os.getpid(),
            "uptime_seconds": round(time.time() - self.started, 1),
            "lock": {"type": self.locker_type, "where": self.locker.where, **self._proof()},
            "connectors": [f"{name}://{address}" for name, address in self.server.advertised_addresses],
            "last_takeover_seconds": last_takeover_seconds(self.ring.events()),
            "demotions": {trouble.name: times for trouble, times in mastership.demotions.items()},
        }
        certificates = self.certificates()
        if certificates:
            answer["certificates"] = certificates
        if bridges := self.bridges():
            answer["bridges"] = bridges
        if left := self.left_by_bridges():
            answer["left_by_bridges"] = left
        answer["loop_lag_seconds"] = self.loop_lag.figures()
        if mastership.holder is not None:
            answer["holder"] = asdict(mastership.holder)
        silence = mastership.holder_silent_seconds
        if silence is not None:
            answer["holder_silent_seconds"] = round(silence, 1)
        if mastership.standby is not None:
            answer["standby"] = {
                "has_caught_up": mastership.standby.has_caught_up,
                "messages": mastership.standby.messages,
                "lag": mastership.standby.lag.figures(),
                # Prediction for the case that the master dies now.
                "takeover": mastership.standby.prediction(self._lock_seconds()).figures(),
            }
        counts: Answer = {
            "promotions_total": mastership.promotions,
            "handovers_total": mastership.handovers,
            "loop_pause_max_ms": round(self.loop_lag.max_seconds * 1000, 1),
            "overlong_steps_total": self.server.overlong_steps,
            "log_lines_dropped_total": 0 if self.log is None else self.log.dropped,
            **self.scrubbed(),
            **expiry.counts(certificates),
        }
        store, engine = mastership.store, self.engine()
        if store is not None and engine is not None:
            counts |= self._counts(store) | dict(self.mqtt())
            measured = store.measured() | {"store_to_delivery_seconds": engine.delivery_seconds}
            answer["measured"] = {name: histogram.figures() for name, histogram in measured.items()}
            answer["recovery"] = {"records": store.records_replayed, "seconds": round(store.recovery_seconds, 3)}
            # Prediction for the case that this process dies now, and the next master has only the last checkpoint.
            answer["takeover"] = store.prediction(self._lock_seconds()).figures()
            answer["blocked_producers"] = engine.flow.blocked()
            answer["held_back"] = engine.memory_holders.held_back()
            answer["connector_connections"] = self.server.counts()
            if store.is_congested:
                answer["congested"] = True
            if isinstance(store, SeveralStores):
                answer["stores"] = store.statistics()
        answer["counts"] = counts
        part = self.member()
        if part is not None:
            answer["replication"] = part
        answer["problems"] = problems(self.mastership, self.locker, self.monotonic()) + (
            [] if part is None else set_problems(part)
        )
        answer["warnings"] = self._warnings(store) + ([] if part is None else set_warnings(part))
        if silence is not None:
            answer["warnings"].append(
                f"{mastership.holder} has been silent for {silence:.0f} s and keeps the lock: no broker serves "
                "until its process continues or ends"
            )
        answer["warnings"] += [sentence(each) for each in answer.get("blocked_producers", ())]
        answer["warnings"] += [left_sentence(each) for each in answer.get("left_by_bridges", ())]
        if engine is not None:
            limit = engine.memory.limit
            answer["warnings"] += [memory_holders.sentence(each, limit) for each in answer.get("held_back", ())]
        return answer

    def _lock_seconds(self) -> float:
        """Return the longest time in seconds until a standby gets the lock of a dead master: a lease, and an interval
        between polls."""
        return (self.locker.lease_seconds or 0.0) + self.locker.poll_seconds * (1 + JITTER)

    def _proof(self) -> Answer:
        proof = proof_facts(self.locker)
        if proof is None or not proof["holds"]:
            return {}
        return {"proof_age_seconds": proof["age_seconds"], "proof_holds_seconds": proof["holds_for_seconds"]}

    def _counts(self, store: AnyStore) -> Answer:
        figures = store.figures
        return {
            "connections": len(self.server.connections),
            "damaged_messages_total": figures.damaged,
            "journal_batches_total": figures.batches,
            "journal_syncs_total": figures.syncs,
            "journal_records_total": figures.records,
            "journal_bytes_total": figures.bytes_written,
            "checkpoints_total": figures.checkpoints,
            "compactions_total": figures.compactions,
            "compaction_bytes_total": figures.bytes_copied,
            "journal_files_reclaimed_total": figures.files_reclaimed,
        }

    def _warnings(self, store: AnyStore | None) -> list[str]:
        """Return the problems that a restart by a supervisor would not repair."""
        warnings = [*self.warnings, *self.files()]
        if damaged := self.scrubbed().get("damaged_journal_files"):
            warnings.append(
                f"bytes of {damaged} sealed journal files are damaged, and no other node that answers has a sound "
                "copy; the log names the places"
            )
        if store is not None and store.figures.damaged:
            warnings.append(
                f"{store.figures.damaged} messages are damaged and are not delivered; the log names them, and "
                "`tandemmq store check` the places"
            )
        if store is not None and store.is_full:
            warnings.append(store.full_reason)
        if store is not None and store.archive_problem is not None:
            warnings.append(store.archive_problem)
        return warnings


def proof_facts(locker: Locker) -> dict[str, float | bool | None] | None:
    """Return the age of the last proof of ownership, and for how long it is still valid; None if there is no proof. Any
    thread."""
    proof, now = locker.proof(), locker.clock.now()
    if proof.valid_for_seconds < 0:
        return None
    age = now - proof.known_at_seconds
    is_endless = proof.valid_for_seconds == float("inf")
    return {
        "age_seconds": round(age, 3),
        "holds_for_seconds": None if is_endless else round(proof.valid_for_seconds - age, 3),
        "holds": proof.holds_at(now),
    }


def problems(mastership: Mastership, locker: Locker, now: float) -> list[str]:
    """Return the problems that only the end of the process repairs. It frees the lock, which this broker may hold
    without serving clients. Only these problems make ``/health/live`` fail. ``now``: seconds of the clock of
    ``mastership``."""
    found = []
    silence = now - mastership.storage_seen_alive()
    period = locker.settings.lock_keep_alive_period_seconds
    if silence > max(SILENCE_SECONDS_MAX, SILENT_PERIODS_MAX * period):
        found.append(f"the storage thread has shown no life for {silence:.0f} s: the volume may hang")
    silence = now - mastership.lock_seen_alive()
    if mastership.is_release_overdue:
        found.append(f"{locker.where} was released, but gave no answer: this broker may hold it until its process ends")
    elif silence > LOCK_SILENCE_SECONDS_MAX:
        found.append(f"{locker.where} has not answered for {silence:.0f} s: this broker may still hold it")
    return found


def journal_figures(store: AnyStore) -> Work[dict[str, Any]]:
    """Return the figures of the journal, in steps. ``files_without_messages`` exist because their records refer to
    other files, or because the file is being written."""
    stores = list(store.members().values()) if isinstance(store, SeveralStores) else [store]
    files = without_messages = live_bytes = owned = 0
    largest: list[OwnerState] = []
    for each in stores:
        for held in pieces(each.file_states()):
            files += len(held)
            without_messages += sum(not file.live for file in held)
            live_bytes += sum(file.live_bytes for file in held)
            yield
        for owners in pieces(each.owner_states()):
            owned += sum(map(_bytes, owners))
            largest = nlargest(OWNERS_MAX, [*largest, *owners], key=_bytes)
            yield
    named = {str(owner): owner.bytes for owner in largest if owner.bytes}
    return {
        "files": files,
        "files_without_messages": without_messages,
        "live_bytes": live_bytes,
        # A message that several subscriptions of a topic hold counts for each of them.
        "owner_bytes": named | {OTHERS: max(0, owned - sum(named.values()))},
    }


def set_problems(status: Mapping[str, Any]) -> list[str]:
    """Return the problems that make the broker unhealthy."""
    problem = str(status.get("problem") or "")
    return [problem] if any(text in problem for text in REPAIRED_BY_RESTART) else []


def set_warnings(status: Mapping[str, Any]) -> list[str]:
    """Return the warnings, which do not change the health."""
    shown = [str(status["problem"])] if status.get("problem") and not set_problems(status) else []
    if not status.get("is_whole", True):
        shown.append("this node lacks files of the journal, and its vote does not count until it has them")
    if status.get("twins"):
        shown.append(str(status["twins"]))
    if status.get("zookeeper"):
        shown.append(f"the set runs without its directory in ZooKeeper: {status['zookeeper']}")
    return shown
