"""Random lives of a store, from which an index of any age finds what the newest one knows (docs/formats/store.md)."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from tandemmq.journal.files import JournalFiles
from tandemmq.store.operations import AddMessage
from tandemmq.store.records.altered import altered
from tandemmq.store.records.commands import encode_add
from tandemmq.store.records.message import Destination, DestinationKind
from tandemmq.store.records.openwire import encode_message
from tandemmq.store.settings import StoreSettings
from tests.support.crash.explorer import scratch_directory
from tests.support.crash.promises import Added, Prepared, PromisingTerm, Removed, difference, seen
from tests.support.crash.recording_disk import RecordingDisk
from tests.support.prove import SEED, rounds
from tests.support.store.standbys import follow_to_end, standby_of
from tests.support.store.store_harness import KIB, RESTLESS, Q, Term

pytestmark = pytest.mark.promise("acknowledged-stays-gone", "confirmed-survives")

LIVES = rounds(12, 500, quick=3)
ACTIONS = 160
# Nothing moves by itself but what a checkpoint reclaims.
SETTINGS = StoreSettings(
    journal_max_file_length=4 * KIB,
    checkpoint_interval=3600.0,
    checkpoint_records=1 << 20,
    cleanup_interval=0.0,
    fence_check_interval=0.002,
    enable_compaction=False,
)
T = Destination(DestinationKind.TOPIC, "T.A")
R = Destination(DestinationKind.QUEUE, "Q.B")
NAMES = ("one", "two", "three")


class Life:
    """One broker's life, which ends and begins again; ``kept`` counts the indexes that it left in its directory."""

    def __init__(self, directory: str, dice: random.Random) -> None:
        self.directory = directory
        self.dice = dice
        self.kept = 0
        self.prepared: dict[int, Prepared] = {}
        self.disk = RecordingDisk(directory)
        self.begin()

    def begin(self) -> None:
        """Files go with each checkpoint, or all of them at the end."""
        settings = replace(SETTINGS, cleanup_interval=self.dice.choice((0.0, 0.0, 3600.0)))
        self.term = PromisingTerm(self.directory, "a", settings, self.disk)
        self.subscriptions = {o.subscription_name: o.id for o in self.term.owners if o.subscription_name is not None}

    def subscribe_or_end(self) -> None:
        name = self.dice.choice(NAMES)
        if name in self.subscriptions and self.dice.random() < 0.6:
            self.term.unsubscribe(T, name, self.subscriptions.pop(name))
        else:
            self.subscriptions[name] = self.term.subscribe(T, name)

    def send(self) -> None:
        self.term.body_bytes = self.dice.choice((50, 300, 900))
        if self.subscriptions and self.dice.random() < 0.5:
            self.term.add(T, owners=tuple(sorted(self.subscriptions.values())))
        else:
            self.term.add(self.dice.choice((Q, R)))

    def acknowledge(self) -> None:
        name = self.dice.choice((None, None, *self.subscriptions))
        owner = self.term.queue(self.dice.choice((Q, R))) if name is None else self.subscriptions[name]
        for paged in self.term.page(owner).messages:
            if self.dice.random() < 0.6:
                self.term.remove(paged, owner, name and f"client:{name}")

    def move(self) -> None:
        """Move a message to the other queue with the same id."""
        source, target = self.dice.sample((Q, R), 2)
        owner = self.term.queue(source)
        for paged in self.term.page(owner).messages[:1]:
            message = altered(paged.message, destination=target)
            add = AddMessage(message, (self.term.queue(target),), encode_add(message, encode_message(message)))
            self.term.do(add)
            self.term.remove(paged, owner)

    def prepare_or_end(self) -> None:
        number = self.dice.randrange(2)
        known = self.prepared.pop(number, None)
        if known is not None:
            self.term.end(known, is_commit=self.dice.random() < 0.5)
            return
        owner = self.term.queue(R)
        removed: Removed = [(paged, owner, None) for paged in self.term.page(owner).messages[:1]]
        everybody = tuple(sorted(self.subscriptions.values()))
        added: Added = [(T, everybody)] if everybody and self.dice.random() < 0.5 else [(Q, ())]
        self.prepared[number] = self.term.prepare(number, added, removed)

    def compact_a_file(self) -> None:
        *files, _ = JournalFiles(self.directory).list()
        if files:
            step = self.term.compaction_of(self.dice.choice(files))
            while step():
                pass

    def checkpoint(self) -> None:
        for done in self.term.store.checkpoint():
            done.result(10)

    def begin_again(self) -> None:
        is_kept = self.dice.random() < 0.6
        self.term.close() if is_kept or self.dice.random() < 0.5 else self.term.crash()
        if is_kept:
            shutil.copytree(f"{self.directory}/index/a", f"{self.directory}.{self.kept}")
            self.kept += 1
        self.begin()


WEIGHTS: dict[Callable[[Life], None], int] = {
    Life.subscribe_or_end: 10,
    Life.send: 38,
    Life.acknowledge: 12,
    Life.move: 8,
    Life.prepare_or_end: 6,
    Life.compact_a_file: 8,
    Life.checkpoint: 10,
    Life.begin_again: 8,
}


# proves: unnamed-file-holds-nothing, unnamed-file-is-missing
@pytest.mark.parametrize("comes_again", [False, True])
def test_a_late_fence_in_the_number_of_a_file_is_not_that_file(directory: str, comes_again: bool) -> None:
    """An index knows a message in a file that was given up since. It may have come again, under its id."""
    with Term(directory, "a", RESTLESS) as term:
        file = term.position.file
        first = term.add_durably(1)[0]
        while term.position.file < file + 2:
            term.take(term.add_durably(10, body=b"x" * 2_000))
        last = term.add_durably(2)  # they keep its file, and with it what the index is known by
        old = standby_of(directory, "old")
        old.follow()
        old.follower.checkpoint()
        assert old.messages >= 1
        old.close()
        while term.position.file == file + 2:
            term.take(term.add_durably(10, body=b"x" * 2_000))
        term.take([first])
        while os.path.exists(f"{directory}/db-{file}.log"):
            term.take(term.add_durably(30, body=b"x" * 2_000))
        given_up = term.position.file
        while term.position.file == given_up:  # until a header does not name it
            term.take(term.add_durably(30, body=b"x" * 2_000))
        if comes_again:
            term.do(first)
        more = [*term.add_durably(3), *term.add_durably(1)]  # the last batch may only be seen
        expected = {*(each.message.message_id for each in last), *[first.message.message_id] * comes_again}
        files = JournalFiles(directory)
        files.prepare("late", 4_096)
        files.publish("late", file)
        again = standby_of(directory, "old")
        follow_to_end(again)
        held = [entry.message_id for o in again.state.owners.values() for _, entry in again.state.entries(o.id, 0)]
        assert {*held} - {each.message.message_id for each in more} == expected
        again.close()
        assert sorted(os.listdir(f"{directory}/index")) == ["a", "old"], "no index was set aside"
    with Term(directory, "old", RESTLESS) as promoted:
        assert len(promoted.bodies()) == len(expected) + len(more)


# proves: standby-passes-unnamed-files
def test_a_standby_reads_on_behind_a_late_fence(directory: str) -> None:
    """The standby's position is before the gap into which the fence was linked."""
    with Term(directory, "a", RESTLESS) as term:
        term.add_durably(1)
        before = term.position.file
        standby = standby_of(directory, "old")
        standby.follow()
        while term.position.file == before:
            term.take(term.add_durably(10, body=b"x" * 2_000))
        given_up = term.position.file
        while os.path.exists(f"{directory}/db-{given_up}.log"):
            term.take(term.add_durably(30, body=b"x" * 2_000))
        gone = term.position.file
        while term.position.file == gone:  # until a header does not name it
            term.take(term.add_durably(30, body=b"x" * 2_000))
        files = JournalFiles(directory)
        files.prepare("late", 4_096)
        files.publish("late", given_up)
        follow_to_end(standby)
        assert standby.state.position is not None
        assert standby.state.position.file == term.position.file
        standby.close()


@pytest.mark.parametrize("number", range(LIVES))
def test_an_index_of_any_age_finds_what_the_newest_knows(number: int) -> None:
    dice = random.Random(SEED + number)
    print(f"seed {SEED} (TANDEMMQ_SEED)")
    with scratch_directory() as scratch:
        directory = f"{scratch}/data"
        os.mkdir(directory)
        life = Life(directory, dice)
        for _ in range(ACTIONS):
            (action,) = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
            action(life)
            life.term.wait_all()
        life.term.close()
        with Term(directory, "a", SETTINGS) as newest:
            known = seen(newest)
        for age in range(life.kept):
            again = f"{scratch}/again"
            shutil.copytree(directory, again)
            shutil.copytree(f"{directory}.{age}", f"{again}/index/old")
            term = Term(again, "old", SETTINGS)
            found = seen(term)
            term.crash()
            assert found == known, f"index {age} of {life.kept}: {difference(found, [known])}"
            shutil.rmtree(again)
