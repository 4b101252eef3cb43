"""Files db.data and db.free: pages are read through a bounded cache, and written in contiguous blocks.

An error of the disk is raised as IndexFailed, a page that does not match its pointer as IndexDamaged. Any thread may
read while one thread writes: pages are never changed in place, and the key of the cache is the whole pointer.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tandemmq.disk import Disk, read_fully, write_fully
from tandemmq.index.errors import IndexFailed
from tandemmq.index.freelist import FreeSlot, decode_slot, encode_slot, slot_bytes
from tandemmq.index.node import Node, decode
from tandemmq.index.page import Pointer, verify
from tandemmq.index.roots import SLOT_BYTES, SLOT_COUNT, Root, page_at, slot_of

STRETCH_BYTES_MAX = 256 * 1024  # limit of one write call
# The two slots of db.free are interleaved in blocks, so that both can grow: slot s has blocks s, s+2, s+4, ...
FREE_BLOCK_BYTES = 64 * 1024


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Raise an OSError of the block as IndexFailed."""
    try:
        yield
    except OSError as error:
        raise IndexFailed(f"{what}: {error}", error.errno) from error


class Cache:
    """Recently used nodes, in two halves. When the younger half is full, the older half is dropped, and the younger
    becomes the older.

    Several threads may use the cache without a lock: a race costs only one more read of a node.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, pages_max: int) -> None:
        self._half = max(pages_max // 2, 1)
        self._young: dict[Pointer, Node] = {}
        self._old: dict[Pointer, Node] = {}

    def get(self, pointer: Pointer) -> Node | None:
        """Return the node if it is cached, else None. A node of the older half moves to the younger half."""
        node = self._young.get(pointer)
        if node is None:
            node = self._old.get(pointer)
            if node is not None:
                self.put(pointer, node)
        return node

    def put(self, pointer: Pointer, node: Node) -> None:
        """Keep a node."""
        if len(self._young) >= self._half:
            self._old = self._young
            self._young = {}
        self._young[pointer] = node

    def drop(self, pointer: Pointer) -> None:
        """Drop a node that a checkpoint replaced: only readers of former checkpoints still need it."""
        self._young.pop(pointer, None)
        self._old.pop(pointer, None)

    def __contains__(self, pointer: Pointer) -> bool:
        return pointer in self._young or pointer in self._old

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class DataFile:
    """Pages and root slots of db.data."""

    __slots__ = ("_buffer", "_buffered_at", "_buffered_next", "_disk", "_fd", "_stretch", "cache", "page_size")

    def __init__(self, disk: Disk, fd: int, page_size: int, cache_pages: int) -> None:
        self._disk = disk
        self._fd = fd
        self.page_size = page_size
        self.cache = Cache(cache_pages)
        self._stretch = max(STRETCH_BYTES_MAX // page_size, 1)
        self._buffer: list[bytes] = []
        self._buffered_at = self._buffered_next = 0

    def load(self, pointer: Pointer) -> Node:
        """Return a node from the cache or the file; the cache does not change."""
        return self.cache.get(pointer) or self._read(pointer)

    def node(self, pointer: Pointer) -> Node:
        """Return a node from the cache or the file, and keep it in the cache."""
        node = self.cache.get(pointer)
        if node is None:
            node = self._read(pointer)
            self.cache.put(pointer, node)
        return node

    def _read(self, pointer: Pointer) -> Node:
        with failing(f"read of page {pointer.page}"):
            data = read_fully(self._disk, self._fd, self.page_size, page_at(pointer.page, self.page_size))
        return decode(verify(data, pointer, self.page_size), data)

    def write(self, page: int, data: bytes) -> None:
        """Buffer a page for writing. It is in the file after flush(), durable after flush() and sync()."""
        if page != self._buffered_next or len(self._buffer) >= self._stretch:
            self.flush()
            self._buffered_at = page
        self._buffer.append(data)
        self._buffered_next = page + 1

    def flush(self) -> None:
        """Write the buffered pages to the file."""
        if self._buffer:
            data, self._buffer = b"".join(self._buffer), []
            with failing(f"write of pages from {self._buffered_at}"):
                write_fully(self._disk, self._fd, data, page_at(self._buffered_at, self.page_size))
        self._buffered_next = 0

    def forget(self) -> None:
        """Drop the buffered pages, because their checkpoint was abandoned."""
        self._buffer = []
        self._buffered_next = 0

    def sync(self) -> None:
        """Make all written pages and slots durable. Buffered pages are not written."""
        with failing("sync of db.data"):
            self._disk.fdatasync(self._fd)

    def slots(self) -> list[bytes]:
        """Read the root slots from the file and return their bytes."""
        with failing("read of the root slots"):
            return read_slots(self._disk, self._fd)

    def publish(self, root: Root, data: bytes) -> None:
        """Write a root's bytes into its slot and make it durable."""
        with failing(f"write of root {root.generation}"):
            write_fully(self._disk, self._fd, data, slot_of(root.generation) * SLOT_BYTES)
        self.sync()  # prove: root-sync

    def cut(self, page_count: int) -> None:
        """Truncate the file after its last page, `page_count`."""
        with failing("cut of db.data"):
            self._disk.ftruncate(self._fd, page_at(page_count + 1, self.page_size))

    def bytes(self) -> int:
        """Return the file's length in bytes."""
        with failing("stat of db.data"):
            return self._disk.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the descriptor."""
        self._disk.close(self._fd)


def read_slots(disk: Disk, fd: int) -> list[bytes]:
    """Return the bytes of both root slots. If the file is shorter, the missing bytes are zeros."""
    data = read_fully(disk, fd, SLOT_BYTES * SLOT_COUNT, 0).ljust(SLOT_BYTES * SLOT_COUNT, b"\0")
    return [data[at : at + SLOT_BYTES] for at in range(0, SLOT_BYTES * SLOT_COUNT, SLOT_BYTES)]


def read_free_slot(disk: Disk, fd: int, slot: int) -> FreeSlot | None:
    """Return a slot of db.free, or None when it is not whole."""
    position = slot * FREE_BLOCK_BYTES
    data = read_fully(disk, fd, FREE_BLOCK_BYTES, position)
    length = slot_bytes(data)
    if length is None or length > disk.fstat(fd).st_size:
        return None
    blocks = [data]
    while length > FREE_BLOCK_BYTES * len(blocks):
        position += SLOT_COUNT * FREE_BLOCK_BYTES
        blocks.append(read_fully(disk, fd, FREE_BLOCK_BYTES, position))
    return decode_slot(b"".join(blocks))


def write_free_slot(disk: Disk, fd: int, slot: FreeSlot) -> None:
    """Write one slot of db.free; not durable yet."""
    data = encode_slot(slot)
    position = slot_of(slot.generation) * FREE_BLOCK_BYTES
    for at in range(0, len(data), FREE_BLOCK_BYTES):
        write_fully(disk, fd, data[at : at + FREE_BLOCK_BYTES], position)
        position += SLOT_COUNT * FREE_BLOCK_BYTES


class FreeFile:
    """The two slots of db.free."""

    __slots__ = ("_disk", "_fd")

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self._fd = fd

    def read(self, generation: int) -> FreeSlot | None:
        """Return the slot of a generation, if it is whole."""
        with failing("read of db.free"):
            return read_free_slot(self._disk, self._fd, slot_of(generation))

    def write(self, slot: FreeSlot) -> None:
        """Write a slot and make it durable."""
        with failing("write of db.free"):
            write_free_slot(self._disk, self._fd, slot)
            self._disk.fdatasync(self._fd)  # prove: free-list-before-root

    def close(self) -> None:
        """Close the descriptor."""
        self._disk.close(self._fd)
