"""Free pages found in the background when db.free is lost."""

# proves: copied-index-name-durable, copied-index-sync, copied-root-is-still-there, free-list-before-root, index
# proves: replaced-pages-wait, root-sync

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tandemmq.index import Index
from tandemmq.index.copy import copy
from tandemmq.index.errors import IndexFailed
from tests.support.crash.unwilling_disk import ENDS_WITH, MOODS, UnwillingDisk


@pytest.fixture
def bereft(directory, opened, tools):
    """An index with many free pages whose db.free was lost, and what it holds."""
    source = random.Random(2)
    with opened(page_size=256) as index:
        for n in range(6):
            tools.write(index, {tools.key(source.randrange(5000)): b"%d" % n for _ in range(300)})
        keys = [key for key, _ in index.scan()]
        tools.write(index, dict.fromkeys(keys[:400]))
        tools.write(index, {keys[500]: b"x"})
        state = dict(index.scan())
    os.unlink(os.path.join(directory, "db.free"))
    return opened(), state


def test_until_the_free_pages_are_found_new_ones_come_from_the_end(bereft, tools):
    index, state = bereft
    pages = index.statistics().pages
    assert index.needs_free_page_recovery
    tools.write(index, {b"a": b"1"})
    assert index.statistics().pages > pages
    assert dict(index.scan()) == {**state, b"a": b"1"}


def test_found_pages_are_used_and_none_is_missing(bereft, directory, tools):
    index, _ = bereft
    tools.recover(index)
    assert not index.needs_free_page_recovery
    tools.write(index, {b"a": b"1"})
    figures = index.statistics()
    assert figures.free_pages > 50
    assert not figures.is_recovering_free_pages
    index.close()
    tools.assert_sound(directory, without_notes=True)


@pytest.mark.parametrize("pace", [1, 2, 5])
def test_checkpoints_during_the_search_spoil_nothing(bereft, directory, opened, tools, pace, tmp_path):
    """AMQ-7082: pages that were found free had been used again meanwhile."""
    index, state = bereft
    source = random.Random(pace)
    search = index.recover_free_pages()
    n = 0
    while True:
        if next(search, "found") == "found":
            break
        n += 1
        if n % pace == 0:
            key = tools.key(source.randrange(5000))
            changes = {key: b"later %d" % n, source.choice(sorted(state)): None}
            state = {key: value for key, value in {**state, **changes}.items() if value is not None}
            tools.write(index, changes)
            tools.assert_sound_as_it_stands(directory, str(tmp_path / "seen"))
    assert n > 5
    for _ in range(3):
        tools.write(index, {b"last": b""})
        tools.assert_sound_as_it_stands(directory, str(tmp_path / "seen"))
    assert dict(index.scan()) == {**state, b"last": b""}
    index.close()
    tools.assert_sound(directory, without_notes=True)
    assert not opened().needs_free_page_recovery


def test_pages_that_the_search_walks_are_not_written_on(bereft, tools):
    index, _ = bereft
    search = index.recover_free_pages()
    next(search)
    for n in range(8):  # replaces every page there was, more than twice
        tools.write(index, {key: b"%d" % n for key, _ in index.scan()})
    index._data.cache = type(index._data.cache)(2)
    for _ in search:
        pass
    tools.write(index, {})


def test_a_search_given_up_is_begun_anew_after_the_next_start(bereft, directory, opened, tools):
    index, _ = bereft
    search = index.recover_free_pages()
    next(search)
    search.close()
    tools.write(index, {b"a": b"1"})
    index.close()
    index = opened()
    assert index.needs_free_page_recovery
    tools.recover(index)
    tools.write(index, {})
    index.close()
    tools.assert_sound(directory, without_notes=True)


def test_a_search_that_finds_nothing_is_over_all_the_same(directory, opened, tools):
    """AMQ-7163: an empty result left the flag standing for ever."""
    with opened() as index:
        tools.write(index, {b"a": b"1"})
    os.unlink(os.path.join(directory, "db.free"))
    with opened() as index:
        tools.recover(index)
        tools.write(index, {})
    with opened() as index:
        assert not index.needs_free_page_recovery


def test_there_is_nothing_to_search_for_when_the_list_was_good(opened, tools):
    with opened() as index:
        tools.write(index, {b"a": b"1"})
    with opened() as index:
        assert list(index.recover_free_pages()) == []


# ---- A disk that takes writes in part, or not at all: a checkpoint is there as a whole, or the one before it is


@pytest.fixture(params=MOODS)
def mood(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_checkpoint_is_whole_or_the_index_has_failed(opened: Callable[..., Index], tools: Any, mood: str) -> None:
    disk = UnwillingDisk(mood, tools.plain)
    disk.is_unwilling = False
    index = opened(disk)
    tools.write(index, {b"a": b"1"})
    changes = {tools.key(n): b"x" * 20 for n in range(200)}
    disk.is_unwilling, disk.calls = True, 0
    if mood not in ENDS_WITH:
        tools.write(index, changes)
        index.close()
        assert dict(opened().scan()) == {b"a": b"1", **changes}
        return
    with pytest.raises(IndexFailed) as failure:
        tools.write(index, changes)
    assert failure.value.errno == ENDS_WITH[mood]
    disk.is_unwilling = False
    with pytest.raises(IndexFailed):
        tools.write(index, {b"a": b"2"})
    index.close()
    assert dict(opened().scan()) == {b"a": b"1"}


def test_a_new_index_is_whole_or_not_there(directory: str, tools: Any, mood: str) -> None:
    disk = UnwillingDisk(mood, tools.plain)
    if mood not in ENDS_WITH:
        Index.open(directory, disk).close()
        assert os.path.exists(f"{directory}/db.data")
        return
    with pytest.raises(OSError) as failure:  # noqa: PT011 its number tells
        Index.open(directory, disk)
    assert failure.value.errno == ENDS_WITH[mood]
    assert not os.path.exists(f"{directory}/db.data")


def test_a_copy_is_whole_or_not_there(
    directory: str, opened: Callable[..., Index], tools: Any, tmp_path: Any, mood: str
) -> None:
    changes = {tools.key(n): b"x" * 20 for n in range(200)}
    with opened() as index:
        tools.write(index, changes)
    target = str(tmp_path / "copy")
    if mood not in ENDS_WITH:
        assert copy(directory, target, UnwillingDisk(mood, tools.plain))
        with Index.open(target, tools.plain) as copied:
            assert dict(copied.scan()) == changes
        return
    with pytest.raises(OSError) as failure:  # noqa: PT011 its number tells
        copy(directory, target, UnwillingDisk(mood, tools.plain))
    assert failure.value.errno == ENDS_WITH[mood]
    assert not os.path.exists(f"{target}/db.data")


# ---- A copy of a neighbour's index


def test_a_copy_holds_what_its_source_held(opened, tools, tmp_path):
    source = opened()
    tools.write(source, {tools.key(n): b"x" for n in range(1000)}, b"meta")
    tools.write(source, {tools.key(n): None for n in range(500)}, b"meta 2")
    target = str(tmp_path / "copy")
    assert copy(str(opened_directory(source)), target, tools.plain)
    tools.assert_sound(target)
    with Index.open(target, tools.plain) as index:
        assert index.meta == b"meta 2"
        assert dict(index.scan()) == dict(source.scan())
        assert not index.needs_free_page_recovery
        tools.write(index, {b"only here": b""})
    assert source.get(b"only here") is None


def opened_directory(index: Index) -> str:
    import os

    return os.path.dirname(os.readlink(f"/proc/self/fd/{index._lock}"))


class BusyDisk:
    """A disk on which the neighbour publishes a checkpoint before the n-th read."""

    def __init__(self, plain, index, tools, at_reads):
        self._plain = plain
        self._index = index
        self._tools = tools
        self._at_reads = at_reads
        self._reads = 0

    def __getattr__(self, name):
        return getattr(self._plain, name)

    def pread(self, fd, length, offset):
        self._reads += 1
        if self._reads in self._at_reads:
            self._tools.write(self._index, {self._tools.key(n): b"%d" % self._reads for n in range(1000)})
        return self._plain.pread(fd, length, offset)


@pytest.mark.parametrize(("at_reads", "is_good"), [({3}, True), ({3, 4}, False), ({2, 3, 4}, False), ({1}, True)])
def test_a_copy_counts_only_while_its_root_is_still_there(opened, tools, tmp_path, at_reads, is_good):
    source = opened()
    tools.write(source, {tools.key(n): b"x" for n in range(1000)})
    target = tmp_path / "copy"
    disk = BusyDisk(tools.plain, source, tools, at_reads)
    assert copy(opened_directory(source), str(target), disk) is is_good
    assert (target / "db.data").exists() is is_good
    assert not list(target.glob("*.new"))
    if is_good:
        tools.assert_sound(str(target))
        with Index.open(str(target), tools.plain) as index:
            assert len({value for _, value in index.scan()}) == 1


def test_a_source_without_an_index_gives_no_copy(tools, tmp_path):
    (tmp_path / "empty").mkdir()
    assert not copy(str(tmp_path / "empty"), str(tmp_path / "copy"), tools.plain)
    (tmp_path / "empty" / "db.data").write_bytes(b"not an index")
    assert not copy(str(tmp_path / "empty"), str(tmp_path / "copy"), tools.plain)


def test_a_copy_replaces_no_index(opened, tools, tmp_path):
    source = opened()
    target = str(tmp_path / "copy")
    Index.open(target, tools.plain).close()
    with pytest.raises(FileExistsError):
        copy(opened_directory(source), target, tools.plain)
