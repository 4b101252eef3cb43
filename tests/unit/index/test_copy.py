"""A copy of a neighbour's index."""

# proves: copied-index-name-durable, copied-index-sync, copied-root-is-still-there

import pytest

from tandemmq.index import Index
from tandemmq.index.copy import copy


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


def test_nothing_to_copy_is_no_copy(tools, tmp_path):
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
