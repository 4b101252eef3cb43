"""Crashes during transactions over several stores: a transaction takes effect in all stores, or in none.

The test records the disk operations of a broker. Then it opens images that a power loss at random moments can leave
(crash_images). In each image, each transaction is complete or absent, and the confirmed transactions are there in
their order. By default the test opens a small seeded sample of images; with TANDEMMQ_PROVE set (``make prove``), a
large one.
"""

# proves: all-fenced-before-any-is-read, all-read

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections.abc import Sequence

import pytest

from tandemmq.store.operations import AddMessage, Atomic
from tandemmq.store.records.transactions import LocalTransactionId
from tandemmq.store.settings import StoreSettings
from tandemmq.store.several.filters import FilteredStore
from tandemmq.store.tools.check_several import check_all
from tests.support.crash.crash_images import Disk, Image
from tests.support.crash.recording_disk import Note, RecordingDisk
from tests.support.prove import SEED, rounds
from tests.support.store.several_harness import REST, A, B, SeveralTerm
from tests.support.store.store_harness import KIB

IMAGES = rounds(24, 2_000, quick=8)
pytestmark = [
    pytest.mark.usefixtures("steps"),
    pytest.mark.prove,
    pytest.mark.timeout(120 + IMAGES),
    pytest.mark.promise("several-stores-are-atomic"),
]
TRANSACTIONS = 12
SETTINGS = StoreSettings(
    journal_max_file_length=4 * KIB,
    checkpoint_interval=3600.0,
    checkpoint_records=10,
    cleanup_interval=0.0,
    fence_check_interval=0.002,
)
ENTRIES = (FilteredStore(queue="A.>", settings=SETTINGS), FilteredStore(queue="B.>", settings=SETTINGS))
LAX = dataclasses.replace(SETTINGS, journal_disk_sync_strategy="never")
LAX_ENTRIES = (FilteredStore(queue="A.>", settings=SETTINGS), FilteredStore(queue="B.>", settings=LAX))


def moves(directory: str, disk: RecordingDisk, entries: Sequence[FilteredStore] = ENTRIES) -> None:
    """Run transactions. Each one removes a message from A, and adds one to B and one to a third store."""
    term = SeveralTerm(directory, entries, settings=SETTINGS, disk=disk)
    page = term.page(term.store.queue(A))
    for number, paged in enumerate(page.messages):
        identity = LocalTransactionId("ID:c-1", number)
        body = paged.message.body
        stored = AddMessage(paged.message, (term.store.queue(A),), b"")
        stored.order_key, stored.location, stored.size = paged.order_key, paged.location, paged.size
        parts = [term.adding(B, body, identity), term.removing(stored, identity), term.adding(REST, body, identity)]
        disk.note(("asked", number))
        before = len(term.durable_operations)
        term.committing(parts, identity)
        if number % 3:  # every third transaction does not wait for its receipt
            term.wait_durable(before + 1)
            told = sum(isinstance(operation, Atomic) for operation in term.durable_operations)
            disk.note(("told", told - 1))
    term.crash()


def prepared(directory: str) -> None:
    term = SeveralTerm(directory, ENTRIES, settings=SETTINGS)
    for number in range(TRANSACTIONS):
        term.add_durably(1, A, str(number).encode())
    term.close()


@pytest.mark.parametrize("entries", [ENTRIES, LAX_ENTRIES], ids=["always", "one never syncs"])
def test_a_transaction_over_several_stores_is_atomic_across_crashes(
    scratch: str, entries: Sequence[FilteredStore]
) -> None:
    print(f"{IMAGES} images (TANDEMMQ_PROVE)")
    dice = random.Random(SEED)
    directory = f"{scratch}/life"
    os.mkdir(directory)
    prepared(directory)
    disk = RecordingDisk(directory)
    moves(directory, disk, entries)
    events = disk.events
    moments = sorted(dice.randrange(disk.start, len(events)) for _ in range(IMAGES))
    model = Disk(dice)
    asked = told = -1
    states = set()
    for moment, event in enumerate(events):
        model.apply(event)
        if isinstance(event, Note):
            what, number = event.what
            asked = number if what == "asked" else asked
            told = number if what == "told" else told
        while moments and moments[0] == moment:
            moments.pop(0)
            states.add(judge(scratch, model.image(), asked, told, moment))
    print(f"{len(events)} events; transactions that held: {sorted(states)}")
    assert len(states) > 2 or IMAGES < 20, "the moments were not all over the life"


def judge(scratch: str, image: Image, asked: int, told: int, moment: int) -> int:
    """Open the image, and check it. Return the number of transactions in it."""
    directory = f"{scratch}/{moment}-{random.randrange(1 << 32)}"
    os.mkdir(directory)
    image.put(directory)
    try:
        report = check_all(directory, scratch=scratch)
        assert report.is_clean, f"as the crash left it: {report.problems}"
        term = SeveralTerm(directory, ENTRIES, "ab"[moment % 2], SETTINGS)
        try:
            found = {destination: [int(body) for body in term.bodies(destination)] for destination in (A, B, REST)}
        finally:
            term.crash() if moment % 3 else term.close()
        held = len(found[B])
        assert found[B] == found[REST] == list(range(held))
        assert found[A] == list(range(held, TRANSACTIONS))
        assert told < held <= asked + 1, f"{held} held, asked for up to {asked}, told up to {told}"
        assert check_all(directory, scratch=scratch).is_clean
    except BaseException as error:
        error.add_note(f"after event {moment}: {image.story}")
        raise
    shutil.rmtree(directory)
    return held
