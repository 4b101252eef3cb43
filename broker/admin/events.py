"""Events of this broker: a bounded ring in memory, and in a small file that outlives the process.

``tandemmq failover explain`` merges the rings of both brokers into one timeline. So an event carries two clocks: the
wall clock for operators, and CLOCK_BOOTTIME with the id of its boot, which cannot be set and orders the events.

Only the broker of this name writes to the file, ``<index root>/<broker.name>.events``. A node of a set writes the name
of the node into it:

    offset 0      a frame  JSON: format, name of the broker, number and length of the slots
    offset 512    a frame  JSON: the sign of life (both clocks, pid, host, last receipt, whether it ended normally)
    offset 4096   slots    a frame each, JSON: an event with its number n, in slot n modulo their number

    frame = crc32 of the rest (4 bytes), length (2 bytes), that many bytes; big-endian

A thread of the ring writes the file with ``pwrite`` and never syncs it; no other thread waits for it. The file is not
mapped into memory: a store into a mapped page of a volume that hangs would block while it holds the interpreter's lock,
and so stop the whole broker. The page cache survives a kill -9, so the sign of life shows the time of death with an
error of at most SIGN_SECONDS. A power loss may lose the latest events. If the file cannot be written, this is logged
once, and the ring continues in memory.

The file also reserves the broker's name. Its broker holds a lock on it (flock(2)) as long as the process lives; another
broker with this name does not start. A lock whose holder shows no sign of life does not prevent a start: on NFS, a host
that died may hold the lock for a while.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandemmq.broker.process.machine import boot_id
from tandemmq.disk import Writable, open_regular, read_fully, write_fully
from tandemmq.store.threads import OS_THREADS, Threads

log = logging.getLogger(__name__)

SUFFIX: Final = ".events"
FORMAT: Final = "tandemmq-events 1"
#: Number of events in memory and in the file. A failover makes about fifteen events in each broker.
CAPACITY: Final = 1_024
SLOT_BYTES: Final = 1_024
SIGN_OFFSET: Final = 512
SLOTS_OFFSET: Final = 4_096
FILE_BYTES_MAX: Final = SLOTS_OFFSET + CAPACITY * SLOT_BYTES
#: Interval between two writes of the sign of life.
SIGN_SECONDS: Final = 0.05
#: Interval at which the modification time of the file is set: on NFS this makes the content visible to other hosts.
TOUCH_SECONDS: Final = 1.0
#: Time for which a broker waits for a sign of life of the lock's holder when the file is locked.
LIFE_SECONDS_MAX: Final = 3.0
#: Silence of the loop after which an event is recorded: the process was stopped or suspended, or the loop did not run.
STALL_SECONDS: Final = 1.0
#: Longer texts are cut. Facts that still do not fit into a slot are left out.
TEXT_CHARACTERS_MAX: Final = 300
CLOSE_SECONDS_MAX: Final = 0.5

#: Kinds of events that the ring itself records.
STALLED: Final = "stalled"
FELL_SILENT: Final = "fell-silent"
#: Kinds of events that end a term as master. Such an event gets the time of the last receipt.
LAST_RECEIPT_KINDS: Final = frozenset({"handover-asked", "draining", "lost", "cut", "drained", STALLED, FELL_SILENT})

_FRAME: Final = struct.Struct(">IH")


@dataclass(frozen=True, slots=True)
class Moment:
    """An instant by both clocks. Only moments with the same ``boot_id`` can be compared by ``boot_seconds``."""

    wall_ms: int
    boot_seconds: float
    boot_id: str

    def as_json(self) -> dict[str, Any]:
        return {"wall_ms": self.wall_ms, "boot_seconds": round(self.boot_seconds, 6), "boot_id": self.boot_id}


@dataclass(frozen=True, slots=True)
class Event:
    """An event. ``epoch`` is the latest epoch that the broker knew at that time, 0 for none."""

    at: Moment
    kind: str
    epoch: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {**self.at.as_json(), "kind": self.kind, "epoch": self.epoch, "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True)
class Sign:
    """Last sign of life in a file. ``last_receipt`` is None if the broker confirmed nothing."""

    at: Moment
    pid: int
    last_receipt: Moment | None
    has_ended: bool
    host: str | None = None


class NameInUse(Exception):
    """Another live broker with this name uses the same index directory."""

    def __init__(self, name: str, holder: Sign, path: str) -> None:
        host = f" on {holder.host}" if holder.host else ""
        super().__init__(
            f"a broker named {name} is already running: pid {holder.pid}{host} ({path}). "
            "Each broker of a pair needs a name of its own: --name NAME, or broker.name"
        )


@dataclass(frozen=True, slots=True)
class FormerRing:
    """Content of a file, the oldest event first. ``next_number`` is the number of the next event to be written."""

    name: str
    events: tuple[Event, ...]
    sign: Sign | None
    next_number: int = 0

    @property
    def end(self) -> Event | None:
        """Event for the death of a broker that did not end cleanly; None if it did, or if this is unknown."""
        if self.sign is None or self.sign.has_ended:
            return None
        facts: dict[str, Any] = {"pid": self.sign.pid}
        if self.sign.last_receipt is not None:
            facts["last_receipt_boot_seconds"] = self.sign.last_receipt.boot_seconds
        return Event(self.sign.at, FELL_SILENT, self.events[-1].epoch if self.events else 0, facts)


class Clock:
    """The wall clock and CLOCK_BOOTTIME of this machine, and the id of its boot."""

    __slots__ = ("boot_id",)

    def __init__(self) -> None:
        self.boot_id = boot_id()  # moments without an id cannot be compared with those of another broker

    def now(self) -> Moment:
        return Moment(time.time_ns() // 1_000_000, time.clock_gettime(time.CLOCK_BOOTTIME), self.boot_id)


class EventRing:
    """Ring of one broker. ``path`` None: in memory only.

    Any thread may call all methods. Only ``start`` and ``close`` wait for the disk, and only ``start`` raises
    exceptions. The ring's thread reads the events of former processes from the file after ``start``.
    """

    def __init__(
        self,
        name: str,
        path: str | None,
        *,
        clock: Clock | None = None,
        threads: Threads = OS_THREADS,
        disk: Writable = os,
    ) -> None:
        self.name = name
        self.clock = clock or Clock()
        self._path = path
        self._disk = disk
        self._former: tuple[Event, ...] = ()
        self._own: deque[Event] = deque(maxlen=CAPACITY)
        self._unwritten: deque[Event] = deque(maxlen=CAPACITY)
        self._recorded = 0
        self._guard = threading.Lock()  # never held during a wait
        self._epoch = 0
        self._alive: Moment | None = None
        self._confirmed = 0
        self._last_receipt: Moment | None = None
        self._must_end = False
        self._wake = threads.event()
        self._threads = threads
        self._descriptor = -1
        self._thread = None if path is None else threads.thread(self._write, "tandemmq-events")

    def start(self) -> None:
        """Lock the file and begin to write it. Call it once. Raises NameInUse if another live broker has the lock. If
        the lock's holder shows no sign of life, the file is not changed, and this ring is in memory only."""
        self._alive = self.clock.now()
        if self._path is None or self._thread is None:
            return
        try:
            self._descriptor = self._claim(self._path)
        except OSError as error:
            self._in_memory_only(error)
        else:
            self._thread.start()

    def close(self) -> None:
        """Write the events that are not written, for at most CLOSE_SECONDS_MAX, and note a clean end in the file."""
        self._must_end = True
        self._wake.set()
        if self._thread is not None and self._thread.native_id is not None:
            self._thread.join(CLOSE_SECONDS_MAX)

    # ---- recording

    def record(self, kind: str, **facts: Any) -> None:
        """Record an event now. A fact ``epoch`` becomes the epoch of this and later events. Facts that are not JSON
        values are converted to text."""
        self._record(self.clock.now(), kind, facts)

    def alive(self, confirmed: int = 0) -> None:
        """Note that the loop runs. ``confirmed`` is a number that grows with each receipt. If it has grown since the
        last call, now is the time of the last receipt."""
        now = self.clock.now()
        before, self._alive = self._alive, now
        has_stalled = before is not None and now.boot_seconds - before.boot_seconds > STALL_SECONDS
        if confirmed != self._confirmed:
            if confirmed > self._confirmed:
                # A broker that was stopped had sent its receipts before the stop. Writes after the stop may have no
                # receipt.
                self._last_receipt = before if has_stalled else now
            self._confirmed = confirmed
        if has_stalled and before is not None:
            self._record(before, STALLED, {"seconds": round(now.boot_seconds - before.boot_seconds, 3)})

    def _record(self, at: Moment, kind: str, facts: dict[str, Any]) -> None:
        epoch = facts.pop("epoch", None)
        if isinstance(epoch, int):
            self._epoch = epoch
        receipt = self._last_receipt
        if kind in LAST_RECEIPT_KINDS and receipt is not None:
            facts.setdefault("last_receipt_boot_seconds", round(receipt.boot_seconds, 6))
        event = Event(at, kind, self._epoch, {name: _short(value) for name, value in facts.items()})
        with self._guard:
            self._own.append(event)
            self._recorded += 1
            if self._thread is not None:
                self._unwritten.append(event)
        self._wake.set()

    # ---- reading

    def events(self) -> list[Event]:
        """Return the events of this and of former processes, the oldest first, at most CAPACITY."""
        with self._guard:
            return [*self._former, *self._own][-CAPACITY:]

    def numbered(self, before: int | None = None) -> tuple[list[Event], int]:
        """Return the events with numbers less than ``before`` (None: all), and the number after the last of them.
        Events of this process have numbers from 0; events of former processes have negative numbers."""
        with self._guard:
            events, end = [*self._former, *self._own][-CAPACITY:], self._recorded
        if before is not None and before < end:
            events = events[: max(0, len(events) - (end - before))]
            end = before
        return events, end

    @property
    def last_receipt(self) -> Moment | None:
        """Time of the broker's last receipt, as exact as the interval of the calls of ``alive``."""
        return self._last_receipt

    # ---- the file

    def _claim(self, path: str) -> int:
        """Open and lock the file. Return the descriptor, which holds the lock. Raises NameInUse, OSError."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = open_regular(os, path, os.O_RDWR | os.O_CREAT)
        first = None
        until = self._threads.monotonic() + LIFE_SECONDS_MAX
        try:
            while not _lock(descriptor):
                # The file is opened again for each read: an NFS client checks for changes at each open.
                former = read_ring(path)
                sign = None if former is None else former.sign
                first = first or sign
                if sign is not None and sign != first and not sign.has_ended:
                    raise NameInUse(self.name, sign, path)
                if self._threads.monotonic() >= until:
                    raise OSError(
                        errno.EWOULDBLOCK,
                        f"locked by another broker with this name, which has been silent for {LIFE_SECONDS_MAX:g} s",
                    )
                self._threads.sleep(SIGN_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _in_memory_only(self, error: OSError) -> None:
        log.warning(
            "events are kept in memory only: %s: %s (errno %s)", self._path, error.strerror or error, error.errno
        )

    # ---- on the ring's thread

    def _write(self) -> None:
        descriptor = self._descriptor
        touch_at = 0.0
        try:
            number = self._read_former(descriptor)
            entry: Moment | None = None
            while True:
                must_end = self._must_end
                while self._unwritten:
                    with self._guard:
                        event = self._unwritten.popleft()
                    self._put(descriptor, number, event)
                    number += 1
                if self._alive is not None and (must_end or self._alive is not entry):
                    entry = self._alive
                    _put(self._disk, descriptor, SIGN_OFFSET, _json(self._sign(entry, must_end)))
                if must_end:
                    return
                now = self._threads.monotonic()
                if now >= touch_at:
                    touch_at = now + TOUCH_SECONDS
                    os.utime(descriptor)
                self._wake.wait(SIGN_SECONDS)
                self._wake.clear()
        except OSError as error:
            self._in_memory_only(error)
        finally:
            os.close(descriptor)

    def _read_former(self, descriptor: int) -> int:
        """Read the events of former processes. Return the number of the next event."""
        former = _read(descriptor)
        if former is None:
            os.ftruncate(descriptor, 0)
        if former is None or former.name != self.name:  # a node of a set may have another name now
            header = {"format": FORMAT, "name": self.name, "slots": CAPACITY, "bytes": SLOT_BYTES}
            _put(self._disk, descriptor, 0, _json(header))
        if former is None:
            return 0
        number = former.next_number
        events = former.events
        if former.end is not None:
            events = (*events, former.end)
            self._put(descriptor, number, former.end)
            number += 1
        with self._guard:
            self._former = events
        return number

    def _put(self, descriptor: int, number: int, event: Event) -> None:
        slot = SLOTS_OFFSET + number % CAPACITY * SLOT_BYTES
        _put(self._disk, descriptor, slot, _event_bytes(number, event))

    def _sign(self, alive: Moment, has_ended: bool) -> dict[str, Any]:
        receipt = self._last_receipt
        return {
            "at": alive.as_json(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "last_receipt": None if receipt is None else receipt.as_json(),
            "has_ended": has_ended,
        }


# ---- reading


def read_ring(path: str) -> FormerRing | None:
    """Return the content of a file, also while its broker runs; None: the file is not a ring. Raises OSError."""
    descriptor = open_regular(os, path, os.O_RDONLY)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def rings_in(directory: str) -> list[str]:
    """Return the paths of all rings below a data directory or an index directory, sorted; an empty list if the
    directory does not exist."""
    found: list[str] = []
    for place in (directory, os.path.join(directory, "index")):
        try:
            found += [os.path.join(place, name) for name in sorted(os.listdir(place)) if name.endswith(SUFFIX)]
        except (FileNotFoundError, NotADirectoryError):
            pass
    return found


def event_of(entry: Any) -> Event | None:
    """Return the event from the result of ``Event.as_json``; None: ``entry`` is not an event."""
    at = moment_of(entry)
    try:
        return None if at is None else Event(at, str(entry["kind"]), int(entry["epoch"]), dict(entry["facts"]))
    except (KeyError, TypeError, ValueError):
        return None


def moment_of(entry: Any) -> Moment | None:
    """Return the moment from the result of ``Moment.as_json``; None: ``entry`` is not a moment."""
    try:
        return Moment(int(entry["wall_ms"]), float(entry["boot_seconds"]), str(entry["boot_id"]))
    except (KeyError, TypeError, ValueError):
        return None


def last_takeover_seconds(events: Sequence[Event]) -> float | None:
    """Return the seconds of this broker's latest take-over; None: there was none. The time begins when this broker last
    saw the lock held by another, or when it took the lock, and ends when its ports answered. Only the events of the
    other broker show the outage before that."""
    listening: Event | None = None
    for event in reversed(events):
        if event.kind == "listening" and listening is None:
            listening = event
        elif event.kind == "lock-taken" and listening is not None:
            if event.at.boot_id != listening.at.boot_id:
                return None
            refused_at = event.facts.get("refused_at_boot")
            since = refused_at if isinstance(refused_at, int | float) else event.at.boot_seconds
            return listening.at.boot_seconds - min(since, event.at.boot_seconds)
    return None


def _read(descriptor: int) -> FormerRing | None:
    content = read_fully(os, descriptor, FILE_BYTES_MAX, 0)
    header = _frame_at(content, 0)
    if header is None or header.get("format") != FORMAT:
        return None
    found = sorted(_slots(content), key=lambda pair: pair[0])
    next_number = found[-1][0] + 1 if found else 0
    # An event older than CAPACITY numbers is left over: the write that should replace it did not happen.
    events = tuple(event for number, event in found if number >= next_number - CAPACITY)
    return FormerRing(str(header.get("name", "?")), events, _sign_of(_frame_at(content, SIGN_OFFSET)), next_number)


def _slots(content: bytes) -> Iterator[tuple[int, Event]]:
    for offset in range(SLOTS_OFFSET, len(content), SLOT_BYTES):
        entry = _frame_at(content, offset)
        event = event_of(entry)
        if entry is not None and event is not None and isinstance(entry.get("n"), int):
            yield entry["n"], event


def _sign_of(entry: dict[str, Any] | None) -> Sign | None:
    if entry is None or (at := moment_of(entry.get("at"))) is None or not isinstance(entry.get("pid"), int):
        return None
    host = entry.get("host")
    return Sign(
        at,
        entry["pid"],
        moment_of(entry.get("last_receipt")),
        entry.get("has_ended") is True,
        host if isinstance(host, str) else None,
    )


# ---- bytes


def _lock(descriptor: int) -> bool:
    """Lock the descriptor. Return False if another open descriptor holds the lock. Raises OSError if the volume does
    not support flock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _put(disk: Writable, descriptor: int, offset: int, payload: bytes) -> None:
    body = len(payload).to_bytes(2, "big") + payload
    write_fully(disk, descriptor, zlib.crc32(body).to_bytes(4, "big") + body, offset)


def _frame_at(content: bytes, offset: int) -> dict[str, Any] | None:
    """Return the content of a frame; None: there is no complete frame."""
    if len(content) < offset + _FRAME.size:
        return None
    crc, length = _FRAME.unpack_from(content, offset)
    body = content[offset + 4 : offset + _FRAME.size + length]
    if length == 0 or len(body) != length + 2 or zlib.crc32(body) != crc:
        return None
    try:
        entry = json.loads(body[2:])
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _event_bytes(number: int, event: Event) -> bytes:
    payload = _json({"n": number, **event.as_json()})
    if len(payload) + _FRAME.size <= SLOT_BYTES:
        return payload
    # Numbers and short words are most useful; the log has the rest.
    facts = {name: value for name, value in event.facts.items() if len(_json(value)) <= 40}
    payload = _json({"n": number, **event.as_json(), "facts": dict(list(facts.items())[:8])})
    assert len(payload) + _FRAME.size <= SLOT_BYTES, "an event with short facts fits a slot"
    return payload


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode()


def _short(value: Any) -> Any:
    return value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value
