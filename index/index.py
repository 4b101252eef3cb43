"""The index: keys and values as of the last checkpoint, on disk.

Promises:
- A checkpoint is there whole or not at all, whatever crashes when. When its generator is exhausted, it is durable.
- Readers see the last published checkpoint; a scan sees the one that was published when it began, to its end.
- Bytes on disk that do not match their checksums raise IndexDamaged; they are never returned as data, and nothing is
  deleted.
- Opening reads two roots and one list of free pages, however large the index is and however it was left.
- After an error of the disk every call raises IndexFailed; no write or sync is tried again.

One thread makes checkpoints, one at a time; any thread may read meanwhile. The bytes, and why each crash point is
harmless: docs/formats/index.md, docs/formats/db-free.md. Only the owner knows the meaning of keys, values and meta.
"""

# proofs: index

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import InitVar, dataclass

from tandemmq.disk import Disk, open_regular, read_fully, sync_directory, write_fully
from tandemmq.index.errors import IndexClosed, IndexDamaged, IndexFailed, IndexStolen
from tandemmq.index.freelist import HEAD_BYTES, RUN, FreePages, FreeSlot
from tandemmq.index.lock import demand_lock, lock_directory
from tandemmq.index.node import Branch, Leaf
from tandemmq.index.page import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, PAGE_SIZE_MIN, Pointer
from tandemmq.index.pages import DataFile, FreeFile, read_slots
from tandemmq.index.recovery import Found, find_free_pages, is_list_of
from tandemmq.index.roots import META_BYTES_MAX, PAGES_AT, Root, decode_root, decode_roots, encode_root, slot_of
from tandemmq.index.tree import Merge

DATA_NAME = "db.data"
FREE_NAME = "db.free"
DAMAGED_NAME = "damaged"  # exists if a published page was found damaged: the next opening refuses
NEW_SUFFIX = ".new"  # a file in the making; one that is found was left by a crash and is ignored
CACHE_PAGES_DEFAULT = 2048
BLOCK_BYTES = 4096  # block size to which a file system rounds up
TRIM_PAGES_MIN = 64  # db.data is cut only when it gets shorter by this much


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures for status and metrics."""

    generation: int
    keys: int
    depth: int
    pages: int
    free_pages: int
    waiting_pages: int
    bytes: int
    cached_pages: int
    is_recovering_free_pages: bool


@dataclass(eq=False)
class Index:
    """Open index directory. Made by Index.open."""

    _disk: Disk
    _lock: int
    _data: DataFile
    _free: FreeFile
    _roots: InitVar[list[Root]]
    _slots: list[bytes]
    _incarnation: int
    _entropy: Callable[[int], bytes]
    _directory: str | None  # None: damage is not noted in it

    def __post_init__(self, roots: list[Root]) -> None:
        self._root: Root | None = roots[0]  # None: closed or failed
        self._last = roots[0]
        self._older: Root | None = roots[1] if len(roots) > 1 else None
        self._failure: Exception | None = None
        self._is_closed = False
        self._is_checkpointing = False
        self._pins: dict[object, int] = {}  # readers, by the generation they read
        self._found: tuple[int, Found] | None = None  # found by recovery, for the next checkpoint to take
        self._recovery_roots: tuple[Root, Root | None] | None = None
        self._recovery_pin: object | None = None
        self._space = self._trusted_space()

    @classmethod
    def open(
        cls,
        directory: str,
        disk: Disk = os,
        page_size: int = PAGE_SIZE_DEFAULT,
        cache_pages: int = CACHE_PAGES_DEFAULT,
        entropy: Callable[[int], bytes] | None = None,
        notes_damage: bool = True,
    ) -> "Index":
        """Open the index in a directory; make both if they do not exist. `page_size` is for a new index, `entropy` is
        by default the disk's `urandom`.

        Raises IndexInUse when it is open elsewhere, IndexDamaged when its content cannot be trusted, OSError when the
        disk fails (which says nothing about the index). Opening reads no pages: a later read of a damaged page raises
        IndexDamaged, and a note beside db.data makes the next opening raise it at once; without `notes_damage` nothing
        is noted.
        """
        if page_size not in range(PAGE_SIZE_MIN, PAGE_SIZE_MAX + 1) or page_size & (page_size - 1):
            raise ValueError(f"page size {page_size} is no power of two from {PAGE_SIZE_MIN} to {PAGE_SIZE_MAX}")
        entropy = entropy or disk.urandom
        directory = os.fspath(directory)
        disk.makedirs(directory, exist_ok=True)
        opened: list[int] = []
        try:
            opened.append(lock_directory(disk, directory))
            note = read_note(disk, directory)
            if note is not None:
                raise IndexDamaged(note)
            incarnation = int.from_bytes(entropy(8), "big")
            opened.append(_open_data(disk, directory, page_size, incarnation))
            # These bytes may still wait in the system's cache: the index relies on them from now on, so they must be
            # durable.
            disk.fsync(opened[-1])  # prove: index-sync-before-trust
            slots = read_slots(disk, opened[-1])
            roots = decode_roots(slots)
            if not roots:
                raise IndexDamaged(f"{os.path.join(directory, DATA_NAME)} has no whole root")
            data = DataFile(disk, opened[-1], roots[0].page_size, cache_pages)
            opened.append(open_regular(disk, os.path.join(directory, FREE_NAME), os.O_RDWR | os.O_CREAT))
            disk.fsync(opened[-1])
            sync_directory(disk, directory)
            demand_lock(disk, directory, opened[0])  # prove: opened-files-are-the-locked-ones
            free = FreeFile(disk, opened[-1])
            noted_in = directory if notes_damage else None
            return cls(disk, opened[0], data, free, roots, slots, incarnation, entropy, noted_in)
        except BaseException as error:
            for fd in reversed(opened):
                disk.close(fd)
            if isinstance(error, IndexFailed) and isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            raise

    def _trusted_space(self) -> FreePages:
        """Return the free pages by db.free if it agrees with the root; otherwise none yet, and a recovery must run."""
        root = self._last
        space = FreePages(root.page_count)
        if root.page_count == 0:
            return space
        slot = self._free.read(root.generation) if root.free_page_unique_id else None
        if slot is not None and is_list_of(slot, root):
            space.add(slot.free)
            if slot.waiting:
                space.quarantine.append((root.generation, slot.waiting))  # prove: waiting-pages-wait-after-opening
            return space
        self._recovery_roots = (root, self._older)
        self._recovery_pin = object()
        self._pins[self._recovery_pin] = root.generation  # prove: recovery-pins-its-roots
        return space

    # Reading: any thread

    @property
    def meta(self) -> bytes:
        """Data that the owner published with the current root."""
        return self._last.meta

    @property
    def generation(self) -> int:
        """Generation of the current root; each checkpoint makes the next one."""
        return self._last.generation

    @property
    def incarnation(self) -> int:
        """Number drawn when this index was opened."""
        return self._incarnation

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key in the last published checkpoint, or None."""
        data = self._data
        while True:
            root = self._root
            if root is None:
                raise self._refusal()
            pointer = root.pointer
            if pointer is None:
                return None
            try:
                node = data.node(pointer)
                while type(node) is Branch:
                    node = data.node(node.pointers[bisect_right(node.separators, key)])
            except IndexDamaged as error:
                # A get pins nothing: two checkpoints may have passed meanwhile, and its pages may have been
                # overwritten.
                if self._root is root:
                    self._note_damage(error)
                    raise
                continue
            except IndexFailed as error:
                raise self._fail(error) from error
            assert isinstance(node, Leaf), "the way down ends at a leaf"
            keys = node.keys
            at = bisect_left(keys, key)
            return node.values[at] if at < len(keys) and keys[at] == key else None

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys from `start` to before `stop` with their values, as published when the first is requested.

        Its pages are kept until the iterator is exhausted or closed.
        """
        pin = object()
        root = self._pin(pin)
        try:
            if root.pointer is not None:
                yield from self._walk(root.pointer, start, stop)
        finally:
            self._pins.pop(pin, None)

    def _pin(self, pin: object) -> Root:
        while True:
            root = self._root
            if root is None:
                raise self._refusal()
            # Pinned before the root is read again: either a checkpoint that frees pages sees the pin, or we see its
            # root.
            self._pins[pin] = root.generation  # prove: reader-pins-its-root
            if self._root is root:  # prove: pinned-root-is-current
                return root

    def _walk(self, pointer: Pointer, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        ways: list[Iterator[Pointer]] = [iter((pointer,))]
        is_first = True
        while ways:
            step = next(ways[-1], None)
            if step is None:
                ways.pop()
                continue
            if self._root is None:
                raise self._refusal()
            try:
                node = self._data.load(step)
            except IndexFailed as error:
                raise self._fail(error) from error
            except IndexDamaged as error:
                self._note_damage(error)
                raise
            if isinstance(node, Branch):
                first = bisect_right(node.separators, start) if is_first else 0
                last = len(node.pointers) if stop is None else bisect_left(node.separators, stop) + 1
                self._data.cache.put(step, node)
                ways.append(iter(node.pointers[first:last]))
                continue
            keys = node.keys
            low = bisect_left(keys, start) if is_first else 0
            is_first = False
            if stop is not None and keys[-1] >= stop:
                high = bisect_left(keys, stop)
                yield from zip(keys[low:high], node.values[low:high], strict=True)
                return
            if low:
                yield from zip(keys[low:], node.values[low:], strict=True)
            else:
                yield from zip(keys, node.values, strict=True)

    # Writing: one thread

    def checkpoint(self, changes: Iterable[tuple[bytes, bytes | None]], meta: bytes) -> Iterator[None]:
        """Apply changes, sorted by key (None deletes, an absent key too), and publish them with `meta`.

        Each step is a small piece of work (about a leaf, or one sync), so that the caller can pace it. When the
        iterator is exhausted, the new root is durable and readers see it. An iterator that is closed before, or that
        raises ValueError for bad changes, leaves the index unchanged.
        """
        if self._root is None:
            raise self._refusal()  # prove: failed-index-is-latched
        if len(meta) > META_BYTES_MAX:
            raise ValueError(f"meta is longer than {META_BYTES_MAX} bytes")
        assert not self._is_checkpointing, "two checkpoints at a time"
        self._is_checkpointing = True
        try:
            yield from self._steps(changes, meta)
        except (IndexFailed, IndexStolen) as error:
            raise self._fail(error) from error.__cause__
        except IndexDamaged as error:
            self._note_damage(error)
            raise
        finally:
            self._is_checkpointing = False
            self._data.forget()

    def _steps(self, changes: Iterable[tuple[bytes, bytes | None]], meta: bytes) -> Generator[None, None, None]:
        # Before a page is written: its place may be free for us and used by another process.
        self._check_roots()  # prove: index-check-before-pages
        last = self._last
        generation = last.generation + 1
        space = self._space.copy()
        found = self._found
        if found is not None:
            space.add(found[1].free)
            if found[1].waiting:
                space.quarantine.append((found[0], found[1].waiting))  # prove: found-pages-wait
        space.release(self._oldest_reached())
        merge = Merge(self._data, space, changes, generation, self._incarnation)
        merged = yield from merge.run(last.pointer, last.depth)
        self._data.flush()
        yield
        self._data.sync()  # prove: pages-before-root order root-published
        yield
        waiting = space.settle(generation)
        pages_before = space.page_count
        space.trim()
        is_complete = self._recovery_roots is None or found is not None
        unique_id = 0
        if is_complete:
            unique_id = int.from_bytes(self._entropy(8), "big") or 1
            # Readers do not outlive us: pages that wait for them alone are free for the next opening of the index.
            pinned = [run for freed, runs in space.quarantine if freed < generation for run in runs]
            free = FreePages(space.page_count, space.free() + pinned).free()
            # Before the root that names it, and into the slot of the root that it replaces.
            self._free.write(FreeSlot(unique_id, generation, self._incarnation, space.page_count, free, waiting))
            yield
        root = Root(
            page_size=self._data.page_size,
            depth=merged.depth,
            generation=generation,
            incarnation=self._incarnation,
            free_page_unique_id=unique_id,
            page_count=space.page_count,
            key_count=last.key_count + merged.keys_added,
            pointer=merged.pointer,
            meta=meta,
        )
        self._publish(root)  # prove: root-published
        self._space = space
        for pointer in merge.replaced:
            self._data.cache.drop(pointer)
        if found is not None:
            self._found = None
            self._recovery_roots = None
        if pages_before - space.page_count >= TRIM_PAGES_MIN:
            self._data.cut(space.page_count)

    def _oldest_reached(self) -> int:
        """Return the oldest generation that a root slot or a reader holds."""
        older = self._older
        oldest = self._last.generation - 1 if older is None else older.generation
        read = list(self._pins.values())  # a list: in one step by any Python (docs/decisions/0026)
        return min([oldest, *read])  # prove: readers-keep-their-pages ", *read"

    def _check_roots(self) -> None:
        """Raise when another process has published here, on a file system whose locks do not work."""
        slots = self._data.slots()
        if slots != self._slots:
            for data in slots:
                other_root = decode_root(data)
                if other_root is not None and data not in self._slots:
                    raise IndexStolen(f"generation {other_root.generation} was published by another process")
            raise IndexFailed("a root slot does not hold what was written to it")

    def _publish(self, root: Root) -> None:
        self._check_roots()  # prove: index-check-before-root
        data = encode_root(root)
        self._data.publish(root, data)
        self._slots[slot_of(root.generation)] = data
        self._older = self._last
        self._last = root
        self._root = root

    @property
    def needs_free_page_recovery(self) -> bool:
        """Return whether recover_free_pages() has work; until it is done, the index grows at its end only."""
        return self._recovery_roots is not None and self._found is None

    def recover_free_pages(self) -> Iterator[None]:
        """Find the free pages when db.free could not be trusted. Each step reads a page; run it between other work.

        The thread that makes checkpoints calls it, at any pace; the next checkpoint takes and writes what was found.
        Does nothing when it is not needed; when abandoned, it starts again in the next run or at the next opening.
        """
        if self._root is None:
            raise self._refusal()
        if self._recovery_roots is None or self._found is not None:
            return
        root, older = self._recovery_roots
        try:
            found = yield from find_free_pages(self._data, root, older)
        except IndexFailed as error:
            raise self._fail(error) from error.__cause__
        except IndexDamaged as error:
            self._note_damage(error)
            raise
        self._found = (root.generation, found)
        if self._recovery_pin is not None:
            self._pins.pop(self._recovery_pin, None)

    def statistics(self) -> Statistics:
        """Return figures of the published state."""
        if self._root is None:
            raise self._refusal()
        root, space = self._last, self._space
        return Statistics(
            generation=root.generation,
            keys=root.key_count,
            depth=root.depth,
            pages=space.page_count,
            free_pages=space.free_count(),
            waiting_pages=space.waiting_count(),
            bytes=self._data.bytes(),
            cached_pages=len(self._data.cache),
            is_recovering_free_pages=self._recovery_roots is not None,
        )

    def growth_max(self, added: int, changes: int) -> int:
        """Return the most bytes on disk that a checkpoint of ``changes`` with ``added`` bytes of keys and values may
        take: it writes anew every page in use, each change may split a full page, and new pages are at least half
        full."""
        space, page_size = self._space, self._data.page_size
        in_use = space.page_count - space.free_count() - space.waiting_count()
        pages = in_use + min(in_use, changes) + 2 * added // page_size + 2 * (self._last.depth + 1)
        slot_bytes = HEAD_BYTES + (space.page_count + pages) * RUN.size
        return PAGES_AT + pages * page_size + slot_bytes + 2 * BLOCK_BYTES

    def close(self) -> None:
        """Close files and lock. Nothing is written: what was published is durable. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._root = None
        self._free.close()
        self._data.close()
        self._disk.close(self._lock)

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fail(self, error: Exception) -> Exception:
        if self._failure is None:
            self._failure = error
            self._root = None
        return error

    def _note_damage(self, error: IndexDamaged) -> None:
        """Note damage. Without the note, an opening that does not read the page would use the index again, and fail
        again later."""
        if self._directory is not None:
            write_note(self._disk, self._directory, str(error))

    def _refusal(self) -> Exception:
        if self._failure is not None:
            number = getattr(self._failure, "errno", None)
            refusal = IndexFailed(f"the index failed before: {self._failure}", number)
            refusal.__cause__ = self._failure
            return refusal
        return IndexClosed("the index is closed")


def _open_data(disk: Disk, directory: str, page_size: int, incarnation: int) -> int:
    """Open db.data. If it does not exist, make it with an empty root: it never appears without a whole one."""
    path = os.path.join(directory, DATA_NAME)
    try:
        return open_regular(disk, path, os.O_RDWR)
    except FileNotFoundError:
        pass
    new = path + NEW_SUFFIX
    fd = open_regular(disk, new, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        root = Root(page_size, 0, 0, incarnation, 0, 0, 0, None, b"")
        write_fully(disk, fd, encode_root(root).ljust(PAGES_AT, b"\0"), 0)
        disk.fsync(fd)  # prove: new-index-sync
        disk.replace(new, path)
        sync_directory(disk, directory)
    except BaseException:
        disk.close(fd)
        raise
    return fd


def read_note(disk: Disk, directory: str) -> str | None:
    """Return the damage noted in the directory's index, None if there is none."""
    try:
        fd = open_regular(disk, os.path.join(directory, DAMAGED_NAME), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_fully(disk, fd, PAGE_SIZE_MAX, 0).decode("utf-8", "replace") or "damage was found in it before"
    finally:
        disk.close(fd)


def write_note(disk: Disk, directory: str, text: str) -> None:
    """Note damage. If the note cannot be written, the damage is found again: no reason for another error."""
    try:
        path = os.path.join(directory, DAMAGED_NAME)
        fd = open_regular(disk, path, os.O_WRONLY | os.O_CREAT)
        try:
            write_fully(disk, fd, text.encode(), 0)
            disk.fsync(fd)
        finally:
            disk.close(fd)
        sync_directory(disk, directory)
    except OSError:
        pass
