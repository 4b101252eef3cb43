"""Short lives of a store, each of which ends or crashes in the middle of what it is for.

They are small enough that every image a power loss may leave of them can be opened: few files of a few KiB, few
checkpoints. CrashMonkey's finding: what short workloads do not break, long ones seldom do.
"""

from __future__ import annotations

from collections.abc import Callable

from failing_disk import FailingDisk, Failure
from promises import PromisingTerm, messages_of
from recording_disk import RecordingDisk
from store_harness import KIB

from index.errors import IndexTrouble
from journal.errors import JournalError
from store.operations import AddMessage
from store.records.message import Destination, DestinationKind
from store.settings import StoreSettings
from store.standby import Disk, Standby

SETTINGS = StoreSettings(
    journal_max_file_length=4 * KIB,
    checkpoint_interval=3600.0,
    checkpoint_records=12,
    cleanup_interval=0.0,
    look_interval=0.002,
)
OTHER = Destination(DestinationKind.QUEUE, "Q.B")
TOPIC = Destination(DestinationKind.TOPIC, "T.A")
Life = Callable[[str, RecordingDisk], None]


def begin(
    directory: str,
    disk: RecordingDisk,
    broker: str = "a",
    *,
    own: Disk | None = None,
    settings: StoreSettings = SETTINGS,
) -> PromisingTerm:
    """``own``: the recorded disk as this broker sees it."""
    return PromisingTerm(directory, broker, settings, disk, own)


def round_of(term: PromisingTerm, count: int, keep: int) -> list[AddMessage]:
    """Messages come, and most of them go; those that stay."""
    added = [term.add() for _ in range(count)]
    term.wait_all()
    owner = term.queue()
    for operation in added[keep:]:
        term.remove(operation, owner)
    term.wait_all()
    return added[:keep]


def adds_and_acks(directory: str, disk: RecordingDisk) -> None:
    """Files fill, checkpoints are made, files are reclaimed."""
    term = begin(directory, disk)
    kept: list[AddMessage] = []
    for _ in range(5):
        kept += round_of(term, 5, 1)
        if len(kept) > 1:
            term.remove(kept.pop(0), term.queue())
            term.wait_all()
    term.close()


def a_message_that_stays(directory: str, disk: RecordingDisk) -> None:
    """It holds a file whose other messages were acknowledged in files that go, or must not."""
    term = begin(directory, disk)
    added = [term.add() for _ in range(5)]
    term.wait_all()
    for operation in added[1:]:
        round_of(term, 3, 0)
        term.remove(operation, term.queue())
        term.wait_all()
    for _ in range(3):
        round_of(term, 5, 0)
    term.remove(added[0], term.queue())
    term.wait_all()
    for _ in range(3):
        round_of(term, 5, 0)
    term.close()


def a_second_master(directory: str, disk: RecordingDisk) -> None:
    """A master is killed with questions unanswered; its standby, which followed, takes over; then the first again."""
    first = begin(directory, disk)
    standby = Standby(directory, f"{directory}/index", "b", SETTINGS, disk=disk)
    round_of(first, 4, 2)
    standby.follow()
    standby.close()
    for _ in range(3):
        first.add()
    first.end_turn()
    first.crash()
    second = begin(directory, disk, "b")
    round_of(second, 4, 1)
    for paged in messages_of(second, second.queue())[:2]:
        second.remove(paged, second.queue())
    second.wait_all()
    second.crash()
    third = begin(directory, disk, "a")
    round_of(third, 2, 1)
    third.close()


def a_deposed_master_writes_on(directory: str, disk: RecordingDisk) -> None:
    """The second master begins while the first one lives: what that one writes late counts for nothing."""
    first = begin(directory, disk)
    kept = round_of(first, 4, 2)
    second = begin(directory, disk, "b")
    first.add()
    first.remove(kept[0], first.queue())
    first.wait_lost()
    round_of(second, 3, 1)
    first.crash()
    second.crash()


def transactions(directory: str, disk: RecordingDisk) -> None:
    """Messages go from queue to queue, several at a time, whole or not at all."""
    term = begin(directory, disk)
    other = term.queue(OTHER)
    added = [term.add() for _ in range(4)]
    term.wait_all()
    moved = []
    for number in range(3):
        operation = term.transact(number, [(OTHER, (other,))] * 2, [(added[number], term.queue(), None)])
        term.wait_all()
        moved.append(operation.operations[0])
    added_there = [part for part in moved if isinstance(part, AddMessage)]
    term.transact(3, [], [(part, other, None) for part in added_there])
    term.add()
    term.wait_all()
    term.crash()
    again = begin(directory, disk)
    again.transact(4, [(OTHER, (again.queue(OTHER),))], [])
    again.wait_all()
    again.close()


def subscriptions_and_queues_end(directory: str, disk: RecordingDisk) -> None:
    """Two durable subscriptions; one ends, and so does a queue; both begin again, empty."""
    term = begin(directory, disk)
    one, two = term.subscribe(TOPIC, "one"), term.subscribe(TOPIC, "two")
    term.wait_all()
    added = [term.add(TOPIC, owners=(one, two)) for _ in range(4)]
    for _ in range(3):
        term.add(OTHER)
    term.wait_all()
    term.remove(added[0], one, "client:one")
    term.remove(added[1], one, "client:one")
    term.remove(added[0], two, "client:two")
    term.wait_all()
    term.unsubscribe(TOPIC, "one", one)
    term.remove_queue(OTHER)
    term.wait_all()
    one = term.subscribe(TOPIC, "one")
    term.wait_all()
    added += [term.add(TOPIC, owners=(two, one)) for _ in range(2)]
    term.add(OTHER)
    term.wait_all()
    for operation in added[1:5]:
        term.remove(operation, two, "client:two")
    term.wait_all()
    round_of(term, 5, 0)
    round_of(term, 5, 1)
    term.close()


def killed_at(call: int) -> Life:
    """The life of a master that is killed before its so-manieth call of the disk, and of its successor.

    What the first one wrote and never synced is in the system's memory; the second one finds it there.
    """

    def life(directory: str, disk: RecordingDisk) -> None:
        own = FailingDisk(disk, call, Failure.KILLED)
        try:
            first = begin(directory, disk, own=own)
        except (OSError, JournalError, IndexTrouble):
            pass
        else:
            try:
                for _ in range(2):
                    round_of(first, 5, 1)
                first.add()
                first.wait_all()
            except AssertionError:
                assert own.failed is not None, "nothing but the kill ends it"
            first.crash()
        second = begin(directory, disk, "b" if call % 2 else "a")
        round_of(second, 5, 1)
        second.close()

    return life


LIVES: dict[str, Life] = {
    "adds and acks": adds_and_acks,
    "a message that stays": a_message_that_stays,
    "a second master": a_second_master,
    "a deposed master writes on": a_deposed_master_writes_on,
    "transactions": transactions,
    "subscriptions and queues end": subscriptions_and_queues_end,
}
