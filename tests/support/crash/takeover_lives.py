"""Short lives that begin with a directory of ActiveMQ, written by ActiveMQ or by its model.

``activemq_store.zip`` is the store of a killed ActiveMQ; in ``activemq_again.zip`` TandemMQ was master after that, and
then ActiveMQ again (tests/support/interop/leave_crash_stores.py). Their expected contents are ActiveMQ's own output.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from tandemmq.store.kahadb.minimal import is_minimal
from tandemmq.store.records.transactions import LocalTransactionId, XaTransactionId
from tests.support.crash.promises import (
    FOREIGN_BODIES,
    Effect,
    Prepared,
    State,
    canonical,
    figures_in_words,
    messages_of,
    prepared_in_words,
)
from tests.support.crash.promotion_lives import is_header_sync, promotion_that_dies, works
from tests.support.crash.recording_disk import RecordingDisk
from tests.support.crash.short_lives import ARCHIVING, OTHER, TOPIC, ShortLife, begin, sparse_files
from tests.support.store.foreign_store import ForeignStore
from tests.support.store.store_harness import Q

PREPARED = XaTransactionId(1, b"global", b"foreign")
PREPARED_BY_THE_REAL_ONE = XaTransactionId(7, b"2", b"\x01")
LOCAL = LocalTransactionId("ID:host-1:1", 1)
# Before ActiveMQ opens the directory again, db.data is as ActiveMQ left it, or the minimal one, or missing.
INDEX = "db.data"


def held_by(store: ForeignStore, prepared: dict[XaTransactionId, tuple[int, int]]) -> State:
    owners: dict[str, list[str]] = {}
    for destination, held in store.held.items():
        if not destination.is_topic:
            owners[str(destination)] = [stored.message_id for stored in held.in_order()]
        for key, ids in held.pending.items():
            owners[f"{destination} for {key}"] = [s.message_id for s in held.in_order() if s.message_id in ids]
    for transaction, figures in prepared.items():
        owners[prepared_in_words(transaction)] = [figures_in_words(*figures)]
    return canonical(owners)


def queues(directory: str) -> State:
    """Prepare two queues, and a commit whose file ActiveMQ has collected."""
    store = ForeignStore(Path(directory), records_per_file=3)
    store.send(Q)
    store.send(Q, transaction=LOCAL)
    dead = store.send(Q)
    store.commit(LOCAL)  # file 2
    for_other = store.send(OTHER)
    store.remove(OTHER, for_other)
    store.remove(Q, dead)  # file 3
    store.send(Q)
    store.checkpoint()
    store.send(OTHER)
    store.write()
    store.collect({2})
    return held_by(store, {})


def all_kinds(directory: str) -> State:
    """Prepare subscriptions with some pending messages, and a prepared transaction."""
    store = ForeignStore(Path(directory), records_per_file=4)
    store.subscribe(TOPIC, "one")
    store.subscribe(TOPIC, "two")
    ids = [store.send(TOPIC) for _ in range(3)]
    store.remove(TOPIC, ids[0], "c:one")
    store.send(Q)
    store.send(OTHER, transaction=PREPARED, message_id="ID:host-1:1:9:1")
    store.prepare(PREPARED)
    store.checkpoint()
    store.remove(TOPIC, ids[1], "c:two")
    store.send(Q)
    store.write()
    return held_by(store, {PREPARED: (1, 0)})


def left_by_the_real_one(name: str) -> Callable[[str], State]:
    def unpack(directory: str) -> State:
        with zipfile.ZipFile(Path(__file__).with_name(name)) as left:
            for member in left.namelist():
                if member.startswith("data/"):
                    Path(directory, member.removeprefix("data/")).write_bytes(left.read(member))
            holds = json.loads(left.read("holds.json"))
        FOREIGN_BODIES.update({message_id: body.encode() for message_id, body in holds["bodies"].items()})
        return canonical(dict(holds["state"]))

    return unpack


def either_broker_may_start(directory: str) -> None:
    """Check that ActiveMQ's index is complete, or moved away and replaced by the minimal one or still by none."""
    if not os.path.exists(f"{directory}/{INDEX}") or is_minimal(directory):
        return
    aside = [name for name in os.listdir(directory) if name.startswith(f"{INDEX}.aside-")]
    sizes = {os.path.getsize(f"{directory}/{name}") for name in aside}
    assert os.path.getsize(f"{directory}/{INDEX}") not in sizes, "the index exists twice"


def is_set_aside(call: str, path: str) -> bool:
    return call == "replace" and path.startswith(f"{INDEX}.aside-")


def is_minimal_put(call: str, path: str) -> bool:
    return call == "replace" and path == INDEX


def a_take_over(directory: str, disk: RecordingDisk) -> None:
    first = begin(directory, disk)
    works(first, 2)
    first.crash()
    second = begin(directory, disk, "b")
    for paged in messages_of(second, second.queue())[:2]:
        second.remove(paged, second.queue())
    second.wait_all()
    works(second, 2)
    second.close()


def a_take_over_of_all_kinds(directory: str, disk: RecordingDisk) -> None:
    """TandemMQ commits what ActiveMQ prepared."""
    first = begin(directory, disk)
    name = prepared_in_words(PREPARED)
    added = Effect("add", str(OTHER), "ID:host-1:1:9:1")
    first.end(Prepared(PREPARED, (Effect("end", name), added), (Effect("end", name),)), is_commit=True)
    first.wait_all()
    works(first, 2)
    first.crash()
    second = begin(directory, disk, "b")
    for owner in second.owners:
        if owner.subscription_name == "one":
            for paged in messages_of(second, owner.id):
                second.remove(paged, owner.id, "c:one")
    second.wait_all()
    works(second, 1)
    second.close()


def take_overs_that_died_early(directory: str, disk: RecordingDisk) -> None:
    """Kills at the fence, and with the header unsynced: ActiveMQ's index is not moved yet."""
    promotion_that_dies(directory, disk, "b")
    promotion_that_dies(directory, disk, "c", before=is_header_sync(5))
    last = begin(directory, disk, "b")
    works(last, 2)
    last.close()


def take_overs_that_died_late(directory: str, disk: RecordingDisk) -> None:
    """Kills after the index is moved away, and after the minimal one is in its place."""
    promotion_that_dies(directory, disk, "b", after=is_set_aside)
    promotion_that_dies(directory, disk, "c", after=is_minimal_put)
    last = begin(directory, disk, "b")
    works(last, 2)
    last.close()


def taken_over_compacted_and_archived(directory: str, disk: RecordingDisk) -> None:
    first = begin(directory, disk, settings=ARCHIVING)
    sparse_files(first, 3)
    assert first.compact().messages > 0
    first.crash()
    second = begin(directory, disk, "b", settings=ARCHIVING)
    works(second, 2)
    second.close()


def a_take_over_from_the_real_one(directory: str, disk: RecordingDisk) -> None:
    """Its prepared transaction is rolled back; then files are filled and reclaimed, and sparse ones are emptied."""
    first = begin(directory, disk)
    ended = (Effect("end", prepared_in_words(PREPARED_BY_THE_REAL_ONE)),)
    first.end(Prepared(PREPARED_BY_THE_REAL_ONE, ended, ended), is_commit=False)
    for paged in messages_of(first, first.queue())[:3]:
        first.remove(paged, first.queue())
    first.wait_all()
    first.crash()
    second = begin(directory, disk, "b")
    works(second, 2)
    second.compact()
    second.close()


def a_second_take_over_from_the_real_one(directory: str, disk: RecordingDisk) -> None:
    """ActiveMQ was master after TandemMQ; a promotion is killed during the second take-over."""
    promotion_that_dies(directory, disk, "b", after=is_set_aside)
    last = begin(directory, disk)
    for paged in messages_of(last, last.queue())[:2]:
        last.remove(paged, last.queue())
    last.wait_all()
    works(last, 2)
    last.close()


TAKEOVER_LIVES: dict[str, ShortLife] = {
    "a take-over": ShortLife(a_take_over, found=queues, also=either_broker_may_start),
    "a take-over of all kinds": ShortLife(a_take_over_of_all_kinds, found=all_kinds, also=either_broker_may_start),
    "take-overs that died early": ShortLife(take_overs_that_died_early, found=queues, also=either_broker_may_start),
    "take-overs that died late": ShortLife(take_overs_that_died_late, found=queues, also=either_broker_may_start),
    "taken over, compacted and archived": ShortLife(
        taken_over_compacted_and_archived, ARCHIVING, found=all_kinds, also=either_broker_may_start
    ),
    "a take-over from the real one": ShortLife(
        a_take_over_from_the_real_one, found=left_by_the_real_one("activemq_store.zip"), also=either_broker_may_start
    ),
    "a second take-over from the real one": ShortLife(
        a_second_take_over_from_the_real_one,
        found=left_by_the_real_one("activemq_again.zip"),
        also=either_broker_may_start,
    ),
}
