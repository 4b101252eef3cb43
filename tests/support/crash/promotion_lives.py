"""Short lives with several promotions: some are killed between fence and header, and deposed masters continue to
write."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from tandemmq.journal.errors import JournalError
from tandemmq.journal.files import file_id
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tests.support.crash.failing_disk import MortalDisk, SleepingDisk
from tests.support.crash.promises import PromisingTerm, messages_of
from tests.support.crash.recording_disk import RecordingDisk
from tests.support.crash.short_lives import (
    ARCHIVING,
    BY_HAND,
    OTHER,
    SETTINGS,
    ShortLife,
    begin,
    every_file_is_somewhere,
    is_journal_sync,
    is_journal_write,
    round_of,
    sparse_files,
    stores_and_forgets,
)

# A promotion syncs a journal file, drops this host's cache of it, and reads it: once for the headers, once for all
# records. This is the number of cache drops before the second read.
FORGETS_BEFORE_THE_SCAN = 2


def is_fence(call: str, path: str) -> bool:
    return call == "link" and file_id(os.path.basename(path)) is not None


def is_header(file: int) -> Callable[[str, str], bool]:
    return lambda call, path: call == "pwrite" and path == f"db-{file}.log"


def is_header_sync(file: int) -> Callable[[str, str], bool]:
    return lambda call, path: call == "fdatasync" and path == f"db-{file}.log"


def promotion_that_dies(
    directory: str, disk: RecordingDisk, broker: str, settings: StoreSettings = SETTINGS, **moment: Any
) -> None:
    """Run a promotion that is killed at this moment; by default directly after its fence appeared."""
    dies(disk, lambda own: begin(directory, disk, broker, own=own, settings=settings), **moment)


def dies(disk: RecordingDisk, promotion: Callable[[MortalDisk], object], **moment: Any) -> None:
    own = MortalDisk(disk, **(moment or {"after": is_fence}))
    try:
        promotion(own)
    except (OSError, JournalError):
        assert own.is_dead, "only the kill ends it"
    else:
        raise AssertionError("it must be killed")


def works(term: PromisingTerm, rounds: int = 3) -> None:
    """Work enough for a rotation and a checkpoint."""
    for _ in range(rounds):
        round_of(term, 6, 0)


def three_promotions_died(directory: str, disk: RecordingDisk) -> None:
    """Kills before the header, with it unsynced, and again before it; then the first broker is master again."""
    first = begin(directory, disk)
    round_of(first, 3, 2)
    first.crash()
    promotion_that_dies(directory, disk, "b")
    promotion_that_dies(directory, disk, "c", before=is_header_sync(3))
    promotion_that_dies(directory, disk, "b", before=is_header(4))
    again = begin(directory, disk)
    works(again, 2)
    again.close()


def a_sleeper_wakes_behind_a_fence_without_header(directory: str, disk: RecordingDisk) -> None:
    """A master stopped in the file before the fence can see only the fence; its successor must not reclaim it."""
    own = SleepingDisk(disk, is_journal_write)
    first = begin(directory, disk, own=own)
    kept = round_of(first, 4, 2)
    own.fall_asleep(partial(stores_and_forgets, first, kept[0]))
    promotion_that_dies(directory, disk, "b")
    third = begin(directory, disk, "c")
    works(third)
    own.wake()
    first.wait_lost()
    round_of(third, 2, 1)
    first.crash()
    third.crash()


def two_fences_without_header_and_a_sleeper(directory: str, disk: RecordingDisk) -> None:
    """The master continues after all files of its successors except the fences are reclaimed; its last writes are not
    synced."""
    own = SleepingDisk(disk, is_journal_sync)
    first = begin(directory, disk, own=own)
    kept = round_of(first, 3, 1)
    own.fall_asleep(partial(stores_and_forgets, first, kept[0]))
    promotion_that_dies(directory, disk, "b")
    promotion_that_dies(directory, disk, "c")
    fourth = begin(directory, disk, "b")
    works(fourth, 4)
    own.wake()
    first.wait_lost()
    first.crash()
    fourth.close()


def two_sleepers(directory: str, disk: RecordingDisk) -> None:
    """The third master works while the first two are stopped; these continue one after the other, the second first."""
    of_first, of_second = SleepingDisk(disk, is_journal_write), SleepingDisk(disk, is_journal_sync)
    first = begin(directory, disk, own=of_first)
    kept = round_of(first, 3, 1)
    of_first.fall_asleep(partial(stores_and_forgets, first, kept[0]))
    second = begin(directory, disk, "b", own=of_second)
    kept = round_of(second, 3, 1)
    of_second.fall_asleep(partial(stores_and_forgets, second, kept[0]))
    third = begin(directory, disk, "c")
    works(third, 2)
    of_second.wake()
    second.wait_lost()
    works(third, 1)
    of_first.wake()
    first.wait_lost()
    for term in (first, second, third):
        term.crash()


def a_sleeper_among_two_promotions(directory: str, disk: RecordingDisk) -> None:
    """A master continues between a killed promotion and a complete one; later the second master is stopped, too."""
    of_first, of_second = SleepingDisk(disk, is_journal_write), SleepingDisk(disk, is_journal_write)
    first = begin(directory, disk, own=of_first)
    kept = round_of(first, 3, 2)
    of_first.fall_asleep(partial(stores_and_forgets, first, kept[0]))
    promotion_that_dies(directory, disk, "b")
    of_first.wake()
    first.wait_lost()
    second = begin(directory, disk, "c", own=of_second)
    kept = round_of(second, 2, 1)
    of_second.fall_asleep(partial(stores_and_forgets, second, kept[0]))
    promotion_that_dies(directory, disk, "b")
    third = begin(directory, disk, "a")
    works(third, 2)
    of_second.wake()
    second.wait_lost()
    for term in (first, second):
        term.crash()
    third.close()


class SeenReading(MortalDisk):
    """The disk of a promotion; ``meanwhile`` is called between its sync of db-1.log and its scan of it."""

    def __init__(self, disk: RecordingDisk, meanwhile: Callable[[], None]) -> None:
        super().__init__(disk)
        self._meanwhile = meanwhile
        self._forgets = 0

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int) -> None:
        self.disk.posix_fadvise(fd, offset, length, advice)
        if self.disk.name_of(fd) == "db-1.log":
            self._forgets += 1
            if self._forgets == FORGETS_BEFORE_THE_SCAN:
                self._meanwhile()


def written_between_sync_and_scan(fences: int) -> Callable[[str, RecordingDisk], None]:
    """Return a life: the old master writes a batch and never syncs it, after ``fences`` fences without a header. The
    promotion finds and counts the batch, so it must be as durable as the header with its end."""

    def life(directory: str, disk: RecordingDisk) -> None:
        mortal = MortalDisk(disk, before=is_journal_sync, is_safe=True)
        own = SleepingDisk(mortal, is_journal_write)
        first = begin(directory, disk, own=own)
        kept = round_of(first, 3, 2)
        own.fall_asleep(partial(stores_and_forgets, first, kept[0]))
        for number in range(fences):
            promotion_that_dies(directory, disk, f"b{number}")

        def write() -> None:
            mortal.is_safe = False  # killed before the sync
            own.wake()
            first.wait_lost()

        third = begin(directory, disk, "c", own=SeenReading(disk, write))
        assert mortal.is_dead, "the batch was written"
        counted = [paged.message.message_id for paged in messages_of(third, third.queue())]
        assert kept[0].message.message_id not in counted, "the batch was counted"
        round_of(third, 3, 1)
        first.crash()
        third.crash()

    return life


def a_handover_to_a_standby_that_followed(directory: str, disk: RecordingDisk) -> None:
    """Three normal handovers between two brokers."""
    master = begin(directory, disk)
    for broker in "bab":
        standby = Standby(directory, f"{directory}/index", broker, SETTINGS, disk=disk)
        round_of(master, 6, 1)
        standby.follow()
        standby.close()
        master.close()
        master = begin(directory, disk, broker)
    round_of(master, 3, 0)
    master.close()


def prepared_by_one_and_ended_by_another(directory: str, disk: RecordingDisk) -> None:
    """Three prepared transactions; a promotion is killed between the masters that end them."""
    first = begin(directory, disk)
    added = [first.add() for _ in range(3)]
    first.wait_all()
    owner, other = first.queue(), first.queue(OTHER)
    one = first.prepare(1, [(OTHER, (other,))], [(added[0], owner, None)])
    two = first.prepare(2, [(OTHER, (other,))] * 2, [])
    three = first.prepare(3, [], [(added[2], owner, None)])
    first.wait_all()
    first.end(one, is_commit=True)
    first.wait_all()
    promotion_that_dies(directory, disk, "b")
    first.crash()
    second = begin(directory, disk, "c")
    works(second, 2)
    second.end(two, is_commit=True)
    second.wait_all()
    second.crash()
    third = begin(directory, disk, "b")
    third.end(three, is_commit=False)
    third.wait_all()
    works(third, 1)
    third.close()


def open_when_the_master_died(directory: str, disk: RecordingDisk) -> None:
    """A local transaction whose commit is not synced, then a killed promotion, then a complete one."""
    own = SleepingDisk(disk, is_journal_sync)
    first = begin(directory, disk, own=own)
    other = first.queue(OTHER)
    added = [first.add() for _ in range(3)]
    first.wait_all()
    first.transact(1, [(OTHER, (other,))] * 2, [(added[0], first.queue(), None)])
    first.wait_all()

    def moves() -> None:
        first.transact(2, [(OTHER, (other,))] * 2, [(added[1], first.queue(), None)])
        first.end_turn()

    own.fall_asleep(moves)
    promotion_that_dies(directory, disk, "b")
    own.wake()
    first.wait_lost()
    first.crash()
    second = begin(directory, disk, "c")
    second.transact(3, [(OTHER, (second.queue(OTHER),))], [])
    second.wait_all()
    works(second, 1)
    second.crash()


def compaction_goes_on_under_the_next_master(directory: str, disk: RecordingDisk) -> None:
    """The first master is killed during the compaction, then a promotion is killed, and the third master empties the
    files."""
    first = begin(directory, disk, settings=BY_HAND)
    sparse_files(first, 3)
    first.store.compact()
    first.add()
    first.end_turn()
    first.crash()
    promotion_that_dies(directory, disk, "b", BY_HAND)
    third = begin(directory, disk, "c", settings=BY_HAND)
    sparse_files(third, 2)
    assert third.compact().messages > 0
    third.close()


def the_archive_under_three_masters(directory: str, disk: RecordingDisk) -> None:
    """Files are archived while a deposed master still has its files, and after a killed promotion."""
    own = SleepingDisk(disk, is_journal_write)
    first = begin(directory, disk, own=own, settings=ARCHIVING)
    works(first, 2)
    kept = round_of(first, 2, 1)
    own.fall_asleep(partial(stores_and_forgets, first, kept[0]))
    promotion_that_dies(directory, disk, "b", ARCHIVING)
    second = begin(directory, disk, "c", settings=ARCHIVING)
    for paged in messages_of(second, second.queue()):
        second.remove(paged, second.queue())
    second.wait_all()
    works(second, 2)
    own.wake()
    first.wait_lost()
    first.crash()
    second.crash()
    third = begin(directory, disk, "b", settings=ARCHIVING)
    works(third, 1)
    third.close()


def compaction_into_the_archive(directory: str, disk: RecordingDisk) -> None:
    """Emptied files are archived; a second master continues this."""
    first = begin(directory, disk, settings=ARCHIVING)
    sparse_files(first, 4)
    assert first.compact().messages > 0
    first.crash()
    second = begin(directory, disk, "b", settings=ARCHIVING)
    sparse_files(second, 1)
    second.compact()
    second.close()


PROMOTION_LIVES: dict[str, ShortLife] = {
    "three promotions died": ShortLife(three_promotions_died),
    "a sleeper wakes behind a fence without header": ShortLife(a_sleeper_wakes_behind_a_fence_without_header),
    "two fences without header and a sleeper": ShortLife(two_fences_without_header_and_a_sleeper),
    "two sleepers": ShortLife(two_sleepers),
    "a sleeper among two promotions": ShortLife(a_sleeper_among_two_promotions),
    "written between sync and scan": ShortLife(written_between_sync_and_scan(0)),
    "written between sync and scan, behind a fence": ShortLife(written_between_sync_and_scan(1)),
    "written between sync and scan, behind two fences": ShortLife(written_between_sync_and_scan(2)),
    "a handover to a standby that followed": ShortLife(a_handover_to_a_standby_that_followed),
    "prepared by one and ended by another": ShortLife(prepared_by_one_and_ended_by_another),
    "open when the master died": ShortLife(open_when_the_master_died),
    "compaction goes on under the next master": ShortLife(compaction_goes_on_under_the_next_master, BY_HAND),
    "the archive under three masters": ShortLife(the_archive_under_three_masters, ARCHIVING, every_file_is_somewhere),
    "compaction into the archive": ShortLife(compaction_into_the_archive, ARCHIVING, every_file_is_somewhere),
}
