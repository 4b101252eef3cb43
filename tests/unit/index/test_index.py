"""Methods of the index."""

# proves: free-list-before-root, index, replaced-pages-wait, root-sync

import errno
import os
import random
import threading

import pytest

import tandemmq.index.pages
from tandemmq.index import Index, IndexClosed, IndexDamaged, IndexFailed, IndexInUse, IndexStolen
from tandemmq.index.lock import lock_directory


def test_a_stored_value_is_found_after_reopening(opened, tools):
    with opened() as index:
        tools.write(index, {b"a": b"1", b"b": b"", b"c": b"3"}, b"position 5")
        tools.write(index, {b"a": None, b"d": b"4", b"never there": None}, b"position 9")
    with opened() as index:
        assert (index.meta, index.generation) == (b"position 9", 2)
        assert [index.get(key) for key in (b"a", b"b", b"c", b"d", b"e")] == [None, b"", b"3", b"4", None]


def test_a_new_index_is_empty(opened):
    index = opened()
    assert (index.meta, index.generation, list(index.scan()), index.get(b"x")) == (b"", 0, [], None)


@pytest.mark.parametrize("page_size", [256, 512, 8192])
def test_a_scan_gives_the_keys_of_a_range_in_order(opened, tools, page_size):
    index = opened(page_size=page_size)
    keys = [tools.key(number * 2) for number in range(3000)]
    tools.write(index, {key: key[::-1] for key in keys})
    assert [key for key, _ in index.scan()] == keys
    for low, high in ((0, 0), (0, 1), (1, 7), (2500, 2501), (2999, 9999), (-1, 6001), (1234, 4321)):
        start, stop = tools.key(max(low, 0)), tools.key(high)
        assert list(index.scan(start, stop)) == [(key, key[::-1]) for key in keys if start <= key < stop]
    assert [key for key, _ in index.scan(keys[2990])] == keys[2990:]


def test_an_abandoned_checkpoint_changes_nothing(opened, tools):
    index = opened()
    tools.write(index, {tools.key(n): b"old" for n in range(500)}, b"old")
    before = index.statistics()
    steps = index.checkpoint([(tools.key(n), b"new") for n in range(2000)], b"new")
    for _ in range(5):
        next(steps)
    steps.close()
    assert index.statistics() == before
    assert {value for _, value in index.scan()} == {b"old"}
    tools.write(index, {tools.key(n): b"newer" for n in range(500)}, b"newer")
    assert {value for _, value in index.scan()} == {b"newer"}


@pytest.mark.parametrize(
    "changes",
    [
        [(b"b", b""), (b"a", b"")],
        [(b"a", b""), (b"a", b"")],
        [(b"%05d" % n, b"") for n in (*range(256), 255)],
        [(b"k" * 105, b"")],
        [(b"k", b"v" * 129)],
    ],
    ids=["unsorted", "twice", "twice, far apart", "long key", "long value"],
)
def test_changes_that_cannot_be_taken_are_refused_and_leave_no_trace(opened, tools, changes):
    index = opened()
    with pytest.raises(ValueError, match=r"sorted|longer"):
        for _ in index.checkpoint(changes, b""):
            pass
    assert index.generation == 0
    tools.write(index, {b"a": b"1"})
    assert index.get(b"a") == b"1"


def test_the_longest_keys_and_values_fit(opened, tools):
    index = opened(page_size=4096)
    source = random.Random(3)
    table = {source.randbytes(1000): source.randbytes(1024) for _ in range(300)}
    tools.write(index, table)
    tools.write(index, dict.fromkeys(sorted(table)[::2]))
    assert dict(index.scan()) == {key: table[key] for key in sorted(table)[1::2]}


def test_meta_has_a_bound(opened, tools):
    index = opened()
    with pytest.raises(ValueError, match="meta"):
        next(index.checkpoint([], bytes(3073)))
    tools.write(index, {}, b"m" * 3072)
    assert index.meta == b"m" * 3072


def test_a_queue_that_lives_on_does_not_make_the_file_grow(opened, tools):
    index = opened()
    live, sizes = 2000, []
    for n in range(60):
        changes = {tools.key(number): b"x" * 20 for number in range(n * live, (n + 1) * live)}
        changes.update(dict.fromkeys(tools.key(number) for number in range((n - 1) * live, n * live) if n))
        tools.write(index, changes)
        sizes.append(index.statistics().bytes)
    assert max(sizes[5:]) <= 4 * sizes[0]
    assert sizes[-1] <= sizes[5] * 1.1


def test_scattered_removals_leave_no_near_empty_pages(opened, tools):
    index = opened()
    source = random.Random(4)
    keys = [tools.key(n) for n in range(5000)]
    tools.write(index, dict.fromkeys(keys, b"x" * 20))
    full = index.statistics().pages
    source.shuffle(keys)
    for n in range(0, 4900, 100):
        tools.write(index, dict.fromkeys(keys[n : n + 100]))
    figures = index.statistics()
    assert len(list(index.scan())) == figures.keys == 100
    assert figures.pages - figures.free_pages - figures.waiting_pages < full / 10


def test_an_emptied_index_gives_its_space_back(opened, tools):
    index = opened()
    keys = [tools.key(n) for n in range(5000)]
    tools.write(index, dict.fromkeys(keys, b"x" * 20))
    large = index.statistics().bytes
    tools.write(index, dict.fromkeys(keys))
    assert index.statistics().depth == 0
    for _ in range(3):
        tools.write(index, {})
    assert index.statistics().bytes < large / 10


def test_a_tree_gets_lower_by_a_branch_that_is_still_to_be_written(opened, tools):
    index = opened(page_size=256, cache_pages=1)
    keys = [b"key %05d" % number for number in range(500)]
    tools.write(index, dict.fromkeys(keys, b"v" * 64))
    assert [key for key, _ in index.scan()] == keys
    tools.write(index, dict.fromkeys(keys[1:]))
    assert [key for key, _ in index.scan()] == keys[:1]


def test_a_reader_keeps_its_pages_while_checkpoints_pass(opened, tools):
    index = opened(page_size=256, cache_pages=2)
    table = {tools.key(n): b"first" for n in range(1000)}
    tools.write(index, table)
    scan = index.scan()
    seen = [next(scan)]
    for n in range(5):
        tools.write(index, {tools.key(number): b"later %d" % n for number in range(1000)})
    assert index.statistics().waiting_pages > 300
    seen += scan
    assert seen == sorted(table.items())
    for n in range(2):
        tools.write(index, {b"%d" % n: b""})
    assert index.statistics().waiting_pages < 20


def test_threads_read_whole_checkpoints_while_one_writes(opened, tools):
    index = opened(page_size=256, cache_pages=8)
    tools.write(index, {tools.key(n): b"0" for n in range(300)})
    stop = threading.Event()
    faults: list[object] = []

    def read() -> None:
        try:
            while not stop.is_set():
                values = {value for _, value in index.scan()}
                if len(values) != 1:
                    faults.append(values)
                faults.extend(n for n in range(0, 300, 17) if index.get(tools.key(n)) is None)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(60):
        tools.write(index, {tools.key(number): b"%d" % n for number in range(300)})
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults


def test_the_cache_is_bounded(opened, tools):
    index = opened(page_size=256, cache_pages=10)
    tools.write(index, {tools.key(n): b"x" * 20 for n in range(3000)})
    for n in range(3000):
        assert index.get(tools.key(n)) == b"x" * 20
    assert index.statistics().cached_pages <= 10


def test_an_open_index_cannot_be_opened_again(opened):
    index = opened()
    with pytest.raises(IndexInUse):
        opened()
    index.close()
    index.close()
    opened()


# proves: locked-directory-has-its-name, opened-files-are-the-locked-ones
@pytest.mark.parametrize("file", ["index.lock", "db.data", "db.free"])
def test_a_directory_that_was_replaced_is_not_opened(directory, tools, file):
    """Another process renamed the index, and a third one made a new one and has it open: both would write to it."""
    others = []

    class Replaced(type(tools.plain)):
        def open(self, path, flags, mode=0o777):
            fd = os.open(path, flags, mode) if file == "index.lock" else -1
            if os.path.basename(path) == file and not others:
                os.rename(directory, f"{directory}.aside")
                others.append(Index.open(directory, tools.plain))
            return fd if fd >= 0 else os.open(path, flags, mode)

    Index.open(directory, tools.plain).close()
    disk = Replaced()
    with pytest.raises(IndexInUse, match="replaced"):  # a rename or removal of a directory takes only the lock
        lock_directory(disk, directory) if file == "index.lock" else Index.open(directory, disk)
    others[0].close()


def test_a_closed_index_refuses_everything(opened):
    index = opened()
    scan = index.scan()
    index.close()
    for use in (
        lambda: index.get(b"a"),
        lambda: next(scan),
        lambda: next(index.checkpoint([], b"")),
        lambda: next(index.recover_free_pages()),
        index.statistics,
    ):
        with pytest.raises(IndexClosed):
            use()


def test_a_page_size_is_the_files_own_affair_once_it_is_made(opened, tools):
    with opened(page_size=256) as index:
        tools.write(index, {tools.key(n): b"" for n in range(100)})
    with opened(page_size=8192) as index:
        assert len(list(index.scan())) == 100
        tools.write(index, {tools.key(n): b"" for n in range(100, 200)})
        assert index.statistics().bytes > 1000


@pytest.mark.parametrize("page_size", [0, 128, 1000, 65536])
def test_odd_page_sizes_are_refused(directory, tools, page_size):
    with pytest.raises(ValueError, match="page size"):
        Index.open(directory, tools.plain, page_size=page_size)


@pytest.mark.parametrize("verb", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("fail_at", [1, 2, 3], ids=["pages", "free list", "root"])
def test_a_failed_write_or_sync_is_final(directory, opened, tools, verb, fail_at):
    disk = tools.FailingDisk({verb}, 0)
    index = opened(disk)
    tools.write(index, {b"a": b"1"})
    disk.calls, disk.fail_at = 0, fail_at
    with pytest.raises(IndexFailed) as failure:
        tools.write(index, {tools.key(n): b"x" * 20 for n in range(3000)})
    assert failure.value.errno == errno.EIO
    assert isinstance(failure.value.__cause__, OSError)
    calls = disk.calls
    for use in (
        lambda: index.get(b"a"),
        lambda: next(index.scan()),
        lambda: tools.write(index, {b"a": b"2"}),
        index.statistics,
    ):
        with pytest.raises(IndexFailed):
            use()
    assert disk.calls == calls, "nothing is tried again"
    index.close()
    tools.assert_sound(directory)
    assert opened().get(b"a") == b"1"


def test_a_failed_read_is_no_damage(opened, tools, monkeypatch):
    disk = tools.FailingDisk({"pread"}, 0)
    index = opened(disk)
    tools.write(index, {b"a": b"1"})
    disk.calls, disk.fail_at = 0, 1
    with pytest.raises(IndexFailed):
        index.get(b"a")


def test_a_disk_failure_at_opening_is_no_damage_of_the_index(directory, opened, tools):
    with opened() as index:
        tools.write(index, {b"a": b"1"})
    for fail_at in (1, 2):
        with pytest.raises(OSError, match="the disk says no"):
            Index.open(directory, tools.FailingDisk({"pread"}, fail_at))
    assert opened().get(b"a") == b"1"


def write_as_a_stranger(directory, tools, tmp_path) -> str:
    """A lock that does not lock: another broker opens the same file. Its directory."""
    os.mkdir(stranger_directory := str(tmp_path / "stranger"))
    for name in ("db.data", "db.free"):
        os.link(f"{directory}/{name}", f"{stranger_directory}/{name}")
    with Index.open(stranger_directory, tools.plain) as stranger:
        tools.write(stranger, {b"a": b"the stranger's"})
    return stranger_directory


def test_a_foreign_root_at_the_end_of_a_checkpoint_prevents_publishing(directory, opened, tools, tmp_path):
    """The stranger came when all was written but the root."""
    index = opened()
    count = sum(1 for _ in index.checkpoint([(b"a", b"1")], b""))
    steps = index.checkpoint([(b"a", b"2")], b"")
    for _ in range(count):
        next(steps)
    stranger_directory = write_as_a_stranger(directory, tools, tmp_path)
    with pytest.raises(IndexStolen):
        list(steps)
    with Index.open(stranger_directory, tools.plain) as stranger:
        assert stranger.get(b"a") == b"the stranger's"
    open(f"{directory}/ruined", "w").close()


class SlowPins(dict):
    """A reader falls asleep between taking a root and saying so; meanwhile its pages are written on."""

    def __init__(self, meanwhile):
        super().__init__()
        self.meanwhile = meanwhile

    def __setitem__(self, pin, generation):
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        super().__setitem__(pin, generation)


def test_a_suspended_reader_reads_the_present_content(opened, tools):
    index = opened()
    tools.write(index, {tools.key(n): b"first" for n in range(300)})

    def write_often():
        for turn in range(4):
            tools.write(index, {tools.key(n): b"%d" % turn for n in range(300)})

    index._pins = SlowPins(write_often)
    assert set(dict(index.scan()).values()) == {b"3"}


def test_a_foreign_root_prevents_publishing(directory, opened, tools, tmp_path):
    index = opened()
    tools.write(index, {b"a": b"1"})
    write_as_a_stranger(directory, tools, tmp_path)
    with pytest.raises(IndexStolen):
        tools.write(index, {b"a": b"2"})
    with pytest.raises(IndexFailed):
        index.get(b"a")
    index.close()
    assert opened().get(b"a") == b"the stranger's"


def test_free_lists_of_many_blocks_are_read_back(opened, tools, monkeypatch):
    monkeypatch.setattr(tandemmq.index.pages, "FREE_BLOCK_BYTES", 256)
    with opened(page_size=256) as ix:
        source = random.Random(8)
        for _ in range(12):
            tools.write(ix, {tools.key(source.randrange(10**6)): b"x" * 30 for _ in range(300)})
        unused = ix.statistics().waiting_pages + ix.statistics().free_pages
        assert sum(len(runs) for _, runs in ix._space.quarantine) * 8 > 2 * 256
    with opened() as ix:
        assert not ix.needs_free_page_recovery
        assert ix.statistics().waiting_pages + ix.statistics().free_pages == unused
        tools.write(ix, {})
    with opened() as ix:
        pass


def test_damaged_root_slots_are_damage(directory, opened, tools):
    with opened() as index:
        tools.write(index, {b"a": b"1"})
    with open(f"{directory}/db.data", "r+b") as file:
        file.write(bytes(8192))
    with pytest.raises(IndexDamaged):
        opened()
    open(f"{directory}/ruined", "w").close()
