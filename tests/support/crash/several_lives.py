"""Short lives of several stores over one directory (mKahaDB)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandemmq.disk import Disk
from tandemmq.store.operations import PagedMessage
from tandemmq.store.records.message import Destination
from tandemmq.store.several.filters import OUTCOMES_DIRECTORY
from tests.support.crash.explorer import StoreKind
from tests.support.crash.failing_disk import SleepingDisk
from tests.support.crash.promises import State, messages_of, seen
from tests.support.crash.promotion_lives import dies, is_fence
from tests.support.crash.recording_disk import RecordingDisk
from tests.support.crash.several_promises import ENTRIES, SETTINGS, JointLedger, PromisingSeveralTerm, open_several
from tests.support.crash.short_lives import ShortLife, is_journal_write
from tests.support.crash.takeover_lives import held_by
from tests.support.store.foreign_store import ForeignStore
from tests.support.store.several_harness import A, B

A_DIRECTORY = ENTRIES[0].directory
SEVERAL = StoreKind(open_several, PromisingSeveralTerm, JointLedger)


def begin(directory: str, disk: RecordingDisk, broker: str = "a", *, own: Disk | None = None) -> PromisingSeveralTerm:
    return PromisingSeveralTerm(directory, broker, SETTINGS, disk, own)


def promotion_that_dies(directory: str, disk: RecordingDisk, broker: str, fences: int) -> None:
    """Run a promotion that is killed when ``fences`` of its fences exist."""
    put_up = 0

    def is_last(call: str, path: str) -> bool:
        nonlocal put_up
        put_up += is_fence(call, path)
        return put_up == fences

    dies(disk, lambda own: begin(directory, disk, broker, own=own), after=is_last)


def founded(directory: str) -> State:
    """Prepare a directory that three brokers used before, each of which has its indexes; two messages are in A."""
    disk = RecordingDisk(directory)
    first = begin(directory, disk)
    fill(first, A, 2)
    first.close()
    begin(directory, disk, "b").close()
    last = begin(directory, disk, "c")
    state = seen(last)
    last.close()
    return state


def fill(term: PromisingSeveralTerm, destination: Destination, count: int) -> None:
    for _ in range(count):
        term.add(destination)
    term.wait_all()


def move(term: PromisingSeveralTerm, number: int, message: PagedMessage) -> None:
    """Request the removal of a message from A and two new ones in B, which is another store, without waiting."""
    term.transact(number, [(B, (term.queue(B),))] * 2, [(message, term.queue(A), None)])


def moves(term: PromisingSeveralTerm, first: int, count: int) -> None:
    for number, message in enumerate(messages_of(term, term.queue(A))[:count], first):
        move(term, number, message)
        term.wait_all()


def transactions_over_several_stores(directory: str, disk: RecordingDisk) -> None:
    first = begin(directory, disk)
    one, two = messages_of(first, first.queue(A))
    move(first, 0, one)
    first.wait_all()
    fill(first, A, 2)
    move(first, 1, two)
    first.end_turn()
    first.crash()
    second = begin(directory, disk, "b")
    moves(second, 2, 2)
    second.close()


def fences_of_some_stores(directory: str, disk: RecordingDisk) -> None:
    """Promotions that are killed with one fence, and with two of three; then a complete one."""
    promotion_that_dies(directory, disk, "a", 1)
    promotion_that_dies(directory, disk, "c", 2)
    last = begin(directory, disk, "b")
    moves(last, 1, 1)
    last.close()


def is_decision(call: str, path: str) -> bool:
    return is_journal_write(call, path) and path.startswith(OUTCOMES_DIRECTORY)


def undecided(is_asleep_before: Callable[[str, str], bool]) -> Callable[[str, RecordingDisk], None]:
    """Return a life: a master is stopped during a transaction over several stores, and continues after others have
    decided its outcome."""

    def life(directory: str, disk: RecordingDisk) -> None:
        own = SleepingDisk(disk, is_asleep_before)
        first = begin(directory, disk, own=own)
        message, *_ = messages_of(first, first.queue(A))

        def asked() -> None:
            move(first, 0, message)
            first.wait(lambda: own.is_asleep)

        own.fall_asleep(asked)
        second = begin(directory, disk, "c")
        own.wake()
        first.wait_lost()
        first.crash()
        fill(second, A, 1)
        second.crash()

    return life


def prepared_in_one_of_several(directory: str, disk: RecordingDisk) -> None:
    """An XA transaction of one store, ended by the next master, and one over several stores."""
    first = begin(directory, disk)
    prepared = first.prepare(1, [(B, (first.queue(B),))], [])
    first.wait_all()
    moves(first, 0, 1)
    first.crash()
    second = begin(directory, disk, "b")
    second.end(prepared, is_commit=True)
    second.wait_all()
    second.close()


def one_of_them_was_activemqs(directory: str) -> State:
    """Prepare a directory of ActiveMQ's mKahaDB with one store, that of A."""
    path = Path(directory, A_DIRECTORY)
    path.mkdir()
    store = ForeignStore(path, records_per_file=3)
    for _ in range(4):
        store.send(A)
    store.remove(A, next(iter(store.held[A].messages)))
    store.checkpoint()
    store.write()
    return held_by(store, {})


def taken_over_beside_others(directory: str, disk: RecordingDisk) -> None:
    first = begin(directory, disk)
    moves(first, 0, 1)
    first.crash()


SEVERAL_LIVES: dict[str, ShortLife] = {
    name: ShortLife(live, SETTINGS, found=found, store_kind=SEVERAL)
    for name, live, found in (
        ("transactions over several stores", transactions_over_several_stores, founded),
        ("fences of some stores", fences_of_some_stores, founded),
        ("asleep before it is prepared everywhere", undecided(is_journal_write), founded),
        ("asleep before it is decided", undecided(is_decision), founded),
        ("prepared in one of several", prepared_in_one_of_several, founded),
        ("taken over beside others", taken_over_beside_others, one_of_them_was_activemqs),
    )
}
