"""Every wait between "lock granted" and "lock released": its bound, the effect of the bound, and its detector.

A broker that makes no progress must not keep the lock. So each wait has a bound: a time, or a silence, which is a time
without a sign of life from the thread that is waited for (store.writer.background: a thread that computes is alive, a
thread that waits for a volume is not). Slow work is not silence. ``tandemmq doctor errors --markdown`` prints this
table, and a test makes each of these waits hang.

Pure: the waiting code is in broker.ha.mastership, and the detector is in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tandemmq.broker.ha.states import Phase

# A thread that serves clients may be silent as long as a proof of ownership holds: at least this long,
HUNG_SECONDS_MIN: Final = 5.0
# and at most this long, since a proof may never end, or never be renewed.
HUNG_SECONDS_MAX: Final = 30.0
# The broker reports a problem if the lock has not answered for this long: the broker may already hold it.
LOCK_SILENCE_SECONDS_MAX: Final = 10.0


class Wait(Enum):
    """The operation that is waited for."""

    POLL = "the answer of the lock to a poll, which may have granted it"
    FOLLOW = "the last call of `follow`, when the lock is granted"
    PROMOTE = "fence, replay, header"
    BEGIN = "the event loop, which loads all queues and subscriptions in one turn"
    SERVE = "the ports open"
    STORAGE = "the storage thread of each store, and the threads that it waits for"
    KEEP_ALIVE = "the answer of the lock to a keep-alive, or to the broker's name and epoch"
    LOOP = "the event loop"
    CHECKPOINT = "a checkpoint while clients are still served"
    FINISH = "the last receipts, and clients read their last bytes"
    CLOSE = "the last writes, the last checkpoint, closing the files"
    ABORT = "disconnecting clients"
    DROP = "the storage thread closes its files"
    RELEASE = "the answer of the lock to its release"
    EXIT = "threads that still hang when the process ends"


class Notices(Enum):
    """The part of the broker that notices that a bound is reached."""

    LOOP = "the event loop"
    DETECTOR = "the stall detector, a thread of its own"
    PROOF = "each fence, fence check and answer: the proof is too old"
    OUTSIDE = "`status`, `/health` and systemd's watchdog"
    MAIN = "the main thread"


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a wait in ``phases`` (empty: in any phase).

    ``seconds`` bounds the whole wait. ``silence`` (min, max) bounds each silence in it: a silence may be as long as a
    proof of ownership holds, but at least min, and at most max. Without either, the wait is bounded by the last proof
    of ownership.
    """

    phases: tuple[Phase, ...]
    at_bound: str
    notices: Notices
    seconds: float | None = None
    silence: tuple[float, float] | None = None

    def silence_seconds(self, proof_seconds: float) -> float | None:
        """Return the longest silence allowed while a proof of ownership holds for ``proof_seconds``."""
        if self.silence is None:
            return None
        least, most = self.silence
        return min(max(proof_seconds, least), most)

    def __str__(self) -> str:
        parts = []
        if self.silence is not None:
            least, most = self.silence
            length = f"{least:g} s" if least == most else f"as long as a proof holds ({least:g} to {most:g} s)"
            parts.append(f"no sign of life for {length}")
        if self.seconds is not None:
            parts.append(f"{self.seconds:g} s" + (" in all" if parts else ""))
        return ", ".join(parts) or "as long as the last proof of ownership holds"


_GIVE_UP: Final = "the thread is abandoned, the lock released, the broker demoted"
_UNWELL: Final = "the broker reports a problem; a supervisor kills it, which frees a lock that hangs"

BOUNDS: Final[Mapping[Wait, Bound]] = {
    # Only the lock's own thread waits; it may have got a lock on a volume that hangs.
    Wait.POLL: Bound((Phase.STARTING, Phase.STANDBY), _UNWELL, Notices.OUTSIDE, seconds=LOCK_SILENCE_SECONDS_MAX),
    Wait.FOLLOW: Bound((Phase.STARTING, Phase.STANDBY), _GIVE_UP, Notices.LOOP, silence=(30.0, 30.0)),
    # A promotion reads the stored data once, so it ends after some time, whatever the amount.
    Wait.PROMOTE: Bound((Phase.PROMOTING,), _GIVE_UP, Notices.LOOP, silence=(30.0, 30.0)),
    Wait.BEGIN: Bound(
        (Phase.PROMOTING,),
        "nothing is confirmed, the lock is released; the broker is demoted when it wakes up",
        Notices.DETECTOR,
        silence=(HUNG_SECONDS_MAX, HUNG_SECONDS_MAX),
    ),
    Wait.SERVE: Bound(
        (Phase.PROMOTING,), "the ports are closed, the lock released, the broker demoted", Notices.LOOP, seconds=10.0
    ),
    Wait.STORAGE: Bound(
        (Phase.MASTER,),
        f"clients are disconnected, {_GIVE_UP}",
        Notices.LOOP,
        silence=(HUNG_SECONDS_MIN, HUNG_SECONDS_MAX),
    ),
    Wait.KEEP_ALIVE: Bound(
        (Phase.PROMOTING, Phase.MASTER, Phase.HANDING_OVER),
        "nothing is confirmed any more, the broker is demoted; the lock is released when it answers",
        Notices.PROOF,
    ),
    Wait.LOOP: Bound(
        (Phase.STARTING, Phase.STANDBY, Phase.MASTER, Phase.HANDING_OVER, Phase.DEMOTED),
        "nothing is confirmed any more, clients are disconnected, the lock is released; demoted when it wakes up",
        Notices.DETECTOR,
        silence=(HUNG_SECONDS_MIN, HUNG_SECONDS_MAX),
    ),
    Wait.CHECKPOINT: Bound((Phase.MASTER,), "the handover continues without it", Notices.LOOP, seconds=5.0),
    Wait.FINISH: Bound(
        (Phase.HANDING_OVER,),
        "clients are disconnected, the lock released, the broker demoted",
        Notices.LOOP,
        seconds=5.0,
    ),
    # Together with the rest of a handover, this is less than TimeoutStopSec in deploy/. Confirmed operations were
    # written long before.
    Wait.CLOSE: Bound((Phase.HANDING_OVER,), _GIVE_UP, Notices.LOOP, seconds=15.0, silence=(10.0, 10.0)),
    Wait.ABORT: Bound((Phase.DEMOTED,), "the broker continues without it", Notices.LOOP, seconds=5.0),
    Wait.DROP: Bound(
        (),
        "the thread is abandoned, the lock released; the broker becomes a standby again when the thread returns",
        Notices.LOOP,
        seconds=1.0,
    ),
    Wait.RELEASE: Bound((), _UNWELL, Notices.OUTSIDE, seconds=2.0),
    Wait.EXIT: Bound((Phase.ENDED,), "the process ends without them", Notices.MAIN, seconds=3.0),
}
