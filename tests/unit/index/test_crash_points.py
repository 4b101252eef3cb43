"""Every crash point of checkpoints, enumerated."""

# proves: free-list-before-root, index, replaced-pages-wait, root-sync

import os
import random
from collections.abc import Iterator

import pytest

from tandemmq.index import Index
from tests.support.prove import rounds
from tests.support.samples import sampled

pytestmark = pytest.mark.prove

PAGE_SIZE = 256
ROUNDS = 24
# The seed of a life, and when its index is opened again: the life of every run, and those that `make prove` has, too.
HISTORIES = [(2, 7), *((seed, seed % (ROUNDS - 2) + 2) for seed in range(3, 3 + rounds(0, 20)))]


class History:
    """A recorded life of an index: the operations, and what it held after each generation."""

    def __init__(self, tools, directory: str, seed: int, open_again_at: int | None = None) -> None:
        source = random.Random(seed)
        self.disk = tools.RecordingDisk()
        self.states: list[dict[bytes, bytes]] = [{}]
        self.ends: list[int] = []  # operations done when generation n was complete
        index = Index.open(directory, self.disk, page_size=PAGE_SIZE, cache_pages=16)
        self.ends.append(len(self.disk.log))
        for generation in range(1, ROUNDS):
            if generation == open_again_at:
                index.close()
                index = Index.open(directory, self.disk, cache_pages=16)
            state, changes = change(self.states[-1], source)
            tools.write(index, changes, b"meta %d" % generation)
            self.states.append(state)
            self.ends.append(len(self.disk.log))
        index.close()


def change(state: dict[bytes, bytes], source: random.Random) -> tuple[dict[bytes, bytes], dict[bytes, bytes | None]]:
    """Scattered puts, a new run behind the end, and removals, from the front or all over."""
    changes: dict[bytes, bytes | None] = {}
    for _ in range(source.randrange(8)):
        changes[b"k%05d" % source.randrange(3000)] = b"v%d" % source.randrange(10**9)
    newest = max((int(key[1:]) for key in state), default=0)
    for number in range(newest + 1, newest + 1 + source.choice([0, 10, 60])):
        changes[b"k%05d" % number] = b"run" * source.randrange(5)
    if state:
        victims = sorted(state)[: source.choice([0, 10, 80])] + source.sample(sorted(state), min(len(state), 5))
        changes.update(dict.fromkeys(victims))
    state = dict(state)
    for key, value in changes.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state, changes


def crashes(tools, history: History, directory: str, seed: int, every: int = 1) -> Iterator[int]:
    """Put each image of each crash point into the directory, and say how many checkpoints were complete by then."""
    first = history.ends[0]
    n = 0
    for stop in range(first, len(history.disk.log) + 1):
        complete = max(generation for generation, end in enumerate(history.ends) if end <= stop)
        for image in tools.images(history.disk.log, stop, seed + stop):
            n += 1
            if n % every == 0:
                tools.put(directory, image)
                yield complete


@pytest.fixture(
    params=[*sampled("lives that open their index once", [((1, None),)], 0), *HISTORIES],
    ids=["one life", *map(str, HISTORIES)],
)
def history(request, tools, tmp_path) -> History:
    seed, again = request.param
    print("seed", seed)
    return History(tools, str(tmp_path / "live"), seed, again)


def test_at_every_crash_point_a_whole_checkpoint_is_found(tools, history, tmp_path):
    directory = str(tmp_path / "crashed")
    count = 0
    for complete in crashes(tools, history, directory, seed=1):
        count += 1
        tools.assert_sound(directory)
        with Index.open(directory, tools.plain) as index:
            assert index.generation in (complete, complete + 1)
            assert dict(index.scan()) == history.states[index.generation]
            assert index.generation == 0 or index.meta == b"meta %d" % index.generation
            assert not index.needs_free_page_recovery, "no crash costs a walk through the pages"
    print(count, "images")
    assert count > 1000


def test_pages_are_found_again_after_a_crash_that_took_db_free_along(tools, history, tmp_path):
    directory = str(tmp_path / "crashed")
    for _ in crashes(tools, history, directory, seed=7, every=11):
        path = os.path.join(directory, "db.free")
        if os.path.exists(path):
            os.unlink(path)
        with Index.open(directory, tools.plain, cache_pages=16) as index:
            tools.recover(index)
            generation = index.generation
            steps = index.checkpoint([(b"k%05d" % n, b"new") for n in range(0, 3000, 7)], b"")
            while index.generation == generation and next(steps, 1) is None:
                tools.assert_sound_as_it_stands(directory, str(tmp_path / "seen"))
            steps.close()
        tools.assert_sound(directory)


def test_cached_writes_of_a_dead_process_are_synced_before_use(tools, history, tmp_path):
    directory, again = str(tmp_path / "killed"), str(tmp_path / "crashed")
    for stop in range(history.ends[0], len(history.disk.log), 13):
        *_, kept = tools.states(history.disk.log, stop)
        tools.put(directory, kept)
        disk = tools.RecordingDisk()
        disk.log += history.disk.log[:stop]
        with Index.open(directory, disk) as index:
            generation = index.generation
            tools.write(index, {b"k%05d" % n: b"new" for n in range(0, 3000, 50)})
        for crash in range(stop + 4, len(disk.log) + 1):
            for image in tools.images(disk.log, crash, crash):
                tools.put(again, image)
                tools.assert_sound(again)
                with Index.open(again, tools.plain) as index:
                    assert index.generation in (generation, generation + 1)


def test_after_every_crash_work_goes_on_and_no_page_leaks(tools, history, tmp_path):
    directory = str(tmp_path / "crashed")
    source = random.Random(5)
    for _ in crashes(tools, history, directory, seed=2, every=3):
        with Index.open(directory, tools.plain, cache_pages=16) as index:
            state = history.states[index.generation]
            tools.write(index, {b"before recovery": b"1"})
            tools.recover(index)
            state, changes = change(state, source)
            tools.write(index, changes)
        tools.assert_sound(directory, without_notes=True)
        with Index.open(directory, tools.plain) as index:
            assert not index.needs_free_page_recovery
            assert dict(index.scan()) == {**state, b"before recovery": b"1"}


@pytest.mark.thorough
def test_a_second_crash_after_the_first_loses_nothing_either(tools, history, tmp_path):
    source = random.Random(6)
    directory, again = str(tmp_path / "crashed"), str(tmp_path / "crashed again")
    for _ in crashes(tools, history, directory, seed=3, every=40):
        with open(os.path.join(directory, "db.data"), "rb") as file:
            base = {"db.data": bytearray(file.read())}
        if os.path.exists(os.path.join(directory, "db.free")):
            with open(os.path.join(directory, "db.free"), "rb") as file:
                base["db.free"] = bytearray(file.read())
        disk = tools.RecordingDisk()
        # What the first crash left is the ground that the second one stands on.
        for name, content in base.items():
            disk.log += [("write", name, 0, bytes(content)), ("sync", name, 0, b"")]
        ground = len(disk.log)
        with Index.open(directory, disk, cache_pages=16) as index:
            states = {index.generation: history.states[index.generation]}
            first = index.generation
            for n in range(2):
                if n:
                    tools.recover(index)
                state, changes = change(states[index.generation], source)
                tools.write(index, changes)
                states[index.generation] = state
        for stop in range(ground, len(disk.log) + 1):
            for image in tools.images(disk.log, stop, stop):
                tools.put(again, image)
                tools.assert_sound(again)
                with Index.open(again, tools.plain) as index:
                    assert index.generation >= first
                    assert dict(index.scan()) == states[index.generation]


def test_the_older_root_stays_readable_until_its_slot_is_written(tools, history, tmp_path):
    """The rule holds whatever a crashed checkpoint wrote: if the newest root is damaged, the one before it is whole."""
    directory = str(tmp_path / "crashed")
    for _ in crashes(tools, history, directory, seed=4, every=5):
        with Index.open(directory, tools.plain, cache_pages=16) as index:
            generation = index.generation
            steps = index.checkpoint([(b"k%05d" % n, b"new") for n in range(0, 3000, 7)], b"")
            while index.generation == generation and next(steps, 1) is None:
                pass
            steps.close()
            generation = index.generation
        path = os.path.join(directory, "db.data")
        with open(path, "r+b") as file:
            file.seek(generation % 2 * 4096 + 100)
            file.write(b"damage")
        tools.assert_sound(directory)
        with Index.open(directory, tools.plain) as index:
            assert index.generation == generation - 1
            if generation - 1 < len(history.states):
                assert dict(index.scan()) == history.states[generation - 1]
