"""The index against a dict, by a machine that tries random operations."""

import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandemmq.index import Index
from tandemmq.index.check import check
from tandemmq.index.page import PAGE_SIZE_MIN
from tests.support.virtual_time import UnsyncedDisk

pytestmark = pytest.mark.promise("index-is-rebuilt")

KEYS = st.one_of(
    st.integers(0, 400).map(lambda n: b"key %05d" % n),
    st.binary(min_size=0, max_size=40),
    st.integers(0, 40).map(lambda n: b"long" * 8 + bytes([n])),
)
VALUES = st.one_of(st.none(), st.just(b""), st.binary(max_size=64), st.just(b"v" * 64))


class IndexMachine(RuleBasedStateMachine):
    """Checkpoints, reopenings, lost lists and slow readers."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.model: dict[bytes, bytes] = {}
        self.readers: list = []
        self.open()

    def open(self):
        self.index = Index.open(self.directory, UnsyncedDisk(), page_size=PAGE_SIZE_MIN, cache_pages=4)

    def bytes_on_disk(self):
        return sum(entry.stat().st_blocks * 512 for entry in os.scandir(self.directory))

    def checkpoint(self, changes):
        before = self.bytes_on_disk()
        added = sum(len(key) + len(value or b"") for key, value in changes.items())
        growth_max = self.index.growth_max(added, len(changes))
        for _ in self.index.checkpoint(sorted(changes.items()), b"%d" % len(changes)):
            pass
        assert self.bytes_on_disk() - before <= growth_max
        for key, value in changes.items():
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    @rule(changes=st.dictionaries(KEYS, VALUES, max_size=60))
    def scattered(self, changes):
        self.checkpoint(changes)

    @rule(start=st.integers(0, 9000), count=st.integers(1, 900), step=st.integers(1, 5), value=VALUES)
    def run(self, start, count, step, value):
        self.checkpoint({b"key %05d" % n: value for n in range(start, start + count * step, step)})

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_a_range(self, data):
        keys = sorted(self.model)
        start = data.draw(st.integers(0, len(keys) - 1))
        stop = data.draw(st.integers(start, len(keys)))
        self.checkpoint(dict.fromkeys(keys[start:stop]))

    @rule(changes=st.dictionaries(KEYS, VALUES, max_size=30), steps=st.integers(0, 6))
    def give_up(self, changes, steps):
        iterator = self.index.checkpoint(sorted(changes.items()), b"")
        generation = self.index.generation
        for _ in range(steps):
            if next(iterator, 1) == 1 or self.index.generation != generation:
                break
        iterator.close()
        if self.index.generation != generation:
            self.model = dict(self.index.scan())

    @precondition(lambda self: len(self.readers) < 3)
    @rule()
    def begin_to_read(self):
        scan = self.index.scan()
        first = next(scan, None)
        self.readers.append((scan, [first] if first else [], sorted(self.model.items())))

    @precondition(lambda self: self.readers)
    @rule()
    def read_to_the_end(self):
        scan, seen, expected = self.readers.pop(0)
        assert [*seen, *scan] == expected

    @rule(is_list_lost=st.booleans())
    def open_again(self, is_list_lost):
        self.readers = []
        self.close_and_check()
        if is_list_lost:
            with open(f"{self.directory}/db.free", "r+b") as file:
                file.truncate(0)
        self.open()

    @rule()
    def recover(self):
        for _ in self.index.recover_free_pages():
            pass

    @rule(key=KEYS)
    def get(self, key):
        assert self.index.get(key) == self.model.get(key)

    @rule(start=KEYS, stop=KEYS)
    def scan(self, start, stop):
        expected = [(key, value) for key, value in sorted(self.model.items()) if start <= key < stop]
        assert list(self.index.scan(start, stop)) == expected

    @invariant()
    def holds_what_the_model_holds(self):
        assert (dict(self.index.scan()), self.index.statistics().keys) == (self.model, len(self.model))

    def close_and_check(self):
        self.index.close()
        report = check(self.directory, UnsyncedDisk())
        assert report.is_sound, report.problems

    def teardown(self):
        self.readers = []
        self.close_and_check()
        shutil.rmtree(self.directory)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_small_additions_between_large_ones_divide_every_page():
    """The limit of a checkpoint counts such splits: the machine above found this."""
    machine = IndexMachine()
    machine.run(start=4, count=4, step=4, value=b"v" * 64)
    machine.run(start=3, count=517, step=5, value=b"v" * 64)
    machine.run(start=4, count=420, step=5, value=b"")
    machine.teardown()
