"""Index: keys and values as of the last checkpoint, on disk.

Promises:
- After a crash at any point, a checkpoint is there whole or not at all. When its generator is exhausted, it is durable.
- Readers see the last published checkpoint. A scan sees, to its end, the checkpoint that was published when it began.
- Bytes on disk that do not match their checksums raise IndexDamaged; they are never returned as data, and nothing is
  deleted.
- Opening reads two roots and one list of free pages, whatever the size of the index, also after a crash.
- After an error of the disk every call raises IndexFailed; no write or sync is tried again.

One thread makes checkpoints, one at a time; any thread may read meanwhile. docs/formats/index.md and
docs/formats/db-free.md describe the bytes and each crash point. Keys, values and meta are opaque to the index.
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
NEW_SUFFIX = ".new"  # of a file that is not complete yet; a crash may leave one, which is overwritten later
CACHE_PAGES_DEFAULT = 2048
BLOCK_BYTES = 4096  # block size to which a file system rounds up
TRIM_PAGES_MIN = 64  # db.data is truncated only by this many pages or more


@dataclass(frozen=True, slots=True)
class Statistics:
    """Figures of the published state, for status and metrics."""

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
    """Open index directory; opened with Index.open."""

    _disk: Disk
    _lock: int
    _data: DataFile
    _free: FreeFile
    _roots: InitVar[list[Root]]
    _slots: list[bytes]
    _incarnation: int
    _entropy: Callable[[int], bytes]
    _directory: str | None  # where damage is noted; None: nowhere

    def __post_init__(self, roots: list[Root]) -> None:
        self._root: Root | None = roots[0]  # None: closed or failed
        self._last = roots[0]
        self._older: Root | None = roots[1] if len(roots) > 1 else None
        self._failure: Exception | None = None
        self._is_closed = False
        self._is_checkpointing = False
        self._pins: dict[object, int] = {}  # readers, by the generation they read
        self._found: tuple[int, Found] | None = None  # result of a recovery, which the next checkpoint uses
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
        """Open the index in a directory. The directory and the index are made if they do not exist.

        `page_size` (bytes) applies to a new index only. `entropy` returns random bytes; default: the disk's `urandom`.
        Raises IndexInUse if another process has the index open, IndexDamaged if its content cannot be trusted, OSError
        if the disk fails (the index may be good). Opening reads no pages: a later read of a damaged page raises
        IndexDamaged. With `notes_damage` that read also writes a note beside db.data, and the next opening raises
        IndexDamaged at once.
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
            # The index relies on these bytes from now on. They may be in the system's cache only, so they are synced.
            disk.fsync(opened[-1])  # prove: index-sync-before-trust
            slots = read_slots(disk, opened[-1])
            roots = decode_roots(slots)
            if not roots:
                raise IndexDamaged(f"{os.path.join(directory, DATA_NAME)} has no valid root")
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
        """Return the free pages in db.free if it agrees with the root; otherwise none, until a recovery has run."""
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
                # A get pins no root: if two checkpoints were published meanwhile, its pages may be overwritten.
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
        """Yield (key, value), ascending, for `start` <= key < `stop`, of the checkpoint that is published when the
        first pair is requested.

        The pages of that checkpoint are not reused until the iterator is exhausted or closed.
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
            # The pin is set before the root is read again. So either a checkpoint that frees pages sees the pin, or
            # this thread sees the root of that checkpoint.
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
        """Apply `changes`, which are sorted by key, and publish the result with `meta`. A value of None deletes the
        key, if it is there.

        Each step is a small piece of work (about one leaf, or one sync), so that the caller can pace the work. When the
        iterator is exhausted, the new root is durable, and readers see it. If the iterator is closed before, or raises
        ValueError for invalid changes, the index is unchanged.
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
        # Before a page is written: a page that is free in this process's root may be in use in a root of another
        # process.
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
            # Readers end with this process: pages that wait only for readers are free for the next opening.
            pinned = [run for freed, runs in space.quarantine if freed < generation for run in runs]
            free = FreePages(space.page_count, space.free() + pinned).free()
            # Written before the root that names it, and into the slot of the oldest root, which that root replaces.
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
        """Return the oldest generation that a root slot or a reader uses."""
        older = self._older
        oldest = self._last.generation - 1 if older is None else older.generation
        read = list(self._pins.values())  # list() copies in one atomic step in any Python (docs/decisions/0026)
        return min([oldest, *read])  # prove: readers-keep-their-pages ", *read"

    def _check_roots(self) -> None:
        """Raise IndexStolen if another process published a root: the locks of the file system do not work. Raise
        IndexFailed if a slot does not hold what was written."""
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
        """Return whether recover_free_pages() has work. Until that is done, checkpoints take all their pages
        from the end of the file."""
        return self._recovery_roots is not None and self._found is None

    def recover_free_pages(self) -> Iterator[None]:
        """Find the free pages if db.free could not be trusted; otherwise do nothing. Each step reads about one page.

        Called by the thread that makes checkpoints, at any pace. The next checkpoint uses the result and writes it to
        db.free. If the iterator is abandoned, the next call starts from the beginning.
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
        """Return an upper limit of the disk space in bytes that a checkpoint of ``changes`` changes takes. ``added`` is
        the number of bytes of their keys and values.

        In the worst case the checkpoint rewrites every page in use, each change splits a full page, and new pages are
        half full.
        """
        space, page_size = self._space, self._data.page_size
        in_use = space.page_count - space.free_count() - space.waiting_count()
        pages = in_use + min(in_use, changes) + 2 * added // page_size + 2 * (self._last.depth + 1)
        slot_bytes = HEAD_BYTES + (space.page_count + pages) * RUN.size
        return PAGES_AT + pages * page_size + slot_bytes + 2 * BLOCK_BYTES

    def close(self) -> None:
        """Close the files and release the lock. Nothing is written: published checkpoints are durable already. A second
        call does nothing."""
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
        """Write a note of the damage: opening reads no pages, so without the note the next opening would succeed."""
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
    """Open db.data. If it does not exist, make it with an empty root. The file appears only with a whole root in it."""
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
    """Return the text of the note of damage in an index directory; None: there is no note. Raises OSError."""
    try:
        fd = open_regular(disk, os.path.join(directory, DAMAGED_NAME), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_fully(disk, fd, PAGE_SIZE_MAX, 0).decode("utf-8", "replace") or "damage was found in it before"
    finally:
        disk.close(fd)


def write_note(disk: Disk, directory: str, text: str) -> None:
    """Write a note of damage into an index directory, durable on return. An OSError is ignored: without the note, a
    later read finds the damage again."""
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
