"""The possible contents of a disk after a power loss: the legal images after each prefix of a record.

The model is that of ALICE, as strict as POSIX lets a file system be:

- Data covered by a sync is present. A failed sync covers nothing, and no later one covers this data: the kernel has
  marked the pages clean.
- Of the writes of a file that no sync covers, any subset is present, in any order; one of them may be torn, at sectors.
- Of the changes to the names of a directory after its last sync, any prefix is present. Directories are independent of
  each other, except that a rename from one into another happens in both or in neither.

So an image is one choice for each file and each directory. Three bounds, named below, keep their number finite in
practice; a record that reaches one is said to be ``capped``.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, pairwise, product

from tests.support.crash.recording_disk import ROOT, Event, Link, Move, Sync, Truncate, Unlink, Write

SECTOR_BYTES = 512
# How a write of n sectors can be torn: the sectors that are present. A disk writes them in any order.
TEARS: dict[str, Callable[[int], Iterable[int]]] = {
    "first sector only": lambda n: (0,),
    "all but the last sector": lambda n: range(n - 1),
    "middle sectors missing": lambda n: (0, n - 1),
    "last sector only": lambda n: (n - 1,),
}
LENGTH_ONLY = "no bytes, but the length"  # the file has the length that it would have with the bytes
# Maximum number of torn writes of one file in the same image; its other writes are complete or missing.
TORN_AT_ONCE = 1
# Maximum number of contents of one file at one moment; above it a seeded sample is taken.
FILE_IMAGES_MAX = 128
# Maximum number of images at one moment; above it likewise.
MOMENT_IMAGES_MAX = 2048
# Share of random images that have lost no name.
SHARE_OF_ALL_NAMES = 0.5

Name = Link | Unlink | Move


@dataclass(frozen=True, slots=True)
class Content:
    """A possible content of a file. ``story``: what it has lost."""

    digest: bytes
    data: bytes
    story: str


@dataclass(frozen=True, slots=True)
class Image:
    """Contents by path, None for a directory. Two images are equal if their contents are.

    ``second_names``: further paths of a file, with its first path; both have one content.
    """

    entries: tuple[tuple[str, Content | None], ...]
    names_lost: str = ""
    second_names: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for path, content in self.entries:
            digest.update(path.encode() + b"\0" + (b"" if content is None else content.digest))
        for path, first in self.second_names:
            digest.update(f"{path}\0{first}\0".encode())
        return digest.digest()

    @property
    def story(self) -> str:
        lost = [f"{path}: {content.story}" for path, content in self.entries if content is not None and content.story]
        return "; ".join([*lost, *([self.names_lost] if self.names_lost else [])]) or "everything is there"

    def put(self, directory: str) -> None:
        """Write the image into ``directory``, which must exist."""
        first_names = dict(self.second_names)
        for path, content in self.entries:
            target = os.path.join(directory, path)
            if content is None:
                os.makedirs(target, exist_ok=True)
                continue
            if path in first_names:
                os.link(os.path.join(directory, first_names[path]), target)
                continue
            with open(target, "wb") as file:
                file.write(content.data)


@dataclass(slots=True)
class _File:
    """A file: its durable content ``sure``, and the later ``operations``, each with whether a sync covered it."""

    sure: bytes = b""
    operations: list[tuple[Write | Truncate, bool]] = field(default_factory=list)
    failed: int = 0  # number of the first operations that no later sync covers, because a sync failed
    contents: list[Content] | None = None


@dataclass(slots=True)
class _Directory:
    sure: dict[str, int] = field(default_factory=dict)
    changes: list[Name] = field(default_factory=list)
    has_failed: bool = False


class Disk:
    """Takes events, and returns at each moment the possible contents of the disk after a power loss."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.is_capped = False
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {ROOT: _Directory()}

    # ---- events

    def apply(self, event: Event) -> None:
        if isinstance(event, Write | Truncate):
            file = self._files.setdefault(event.node, _File())
            file.operations.append((event, False))
            file.contents = None
        elif isinstance(event, Link | Unlink):
            self._directories[event.directory].changes.append(event)
            if isinstance(event, Link) and event.is_directory:
                self._directories.setdefault(event.node, _Directory())
            elif isinstance(event, Link):
                self._files.setdefault(event.node, _File())
        elif isinstance(event, Move):
            for directory in {event.directory, event.into}:
                self._directories[directory].changes.append(event)
        elif isinstance(event, Sync):
            self._sync(event)

    def _sync(self, event: Sync) -> None:
        directory = self._directories.get(event.node)
        if directory is not None:
            directory.has_failed = directory.has_failed or event.has_failed
            if not directory.has_failed:
                self._settle(event.node)
            return
        file = self._files[event.node]
        file.contents = None
        if event.has_failed:
            file.failed = sum(not is_sure for _, is_sure in file.operations)
            return
        unsure = 0
        for number, (operation, is_sure) in enumerate(file.operations):
            unsure += not is_sure
            file.operations[number] = (operation, is_sure or unsure > file.failed)
        while file.operations and file.operations[0][1]:
            file.sure = _applied(file.sure, file.operations.pop(0)[0], None)

    def _settle(self, node: int) -> None:
        """Make all changes to the names of a directory durable, and the other half of each rename."""
        changes, self._directories[node].changes = self._directories[node].changes, []
        names = self._directories[node].sure
        for change in changes:
            _rename(names, node, change)
            if isinstance(change, Move) and change.directory != change.into:
                other = change.into if change.directory == node else change.directory
                pending = self._directories[other].changes
                if change in pending:
                    upto = pending.index(change) + 1
                    for earlier in pending[:upto]:
                        _rename(self._directories[other].sure, other, earlier)
                    del pending[:upto]

    # ---- possible images

    def images(self) -> Iterator[Image]:
        """Yield the images that are possible now, at most MOMENT_IMAGES_MAX; some may be equal."""
        for names, lost in self._namings():
            visible = list(self._walk(names, ROOT, ""))
            nodes = list(dict.fromkeys(node for _, node in visible if node is not None))
            for choice in self._bounded([self._contents(node) for node in nodes], MOMENT_IMAGES_MAX):
                yield _image(visible, dict(zip(nodes, choice, strict=True)), lost)

    def image(self) -> Image:
        """Return a random one of the images that are possible now, without computing all of them."""
        nodes = list(self._directories)
        while True:
            lengths = [self.dice.randint(0, len(self._directories[node].changes)) for node in nodes]
            if self.dice.random() < SHARE_OF_ALL_NAMES:
                lengths = [len(self._directories[node].changes) for node in nodes]
            found = self._naming(dict(zip(nodes, lengths, strict=True)))
            if found is not None:
                break
        names, lost = found
        visible = list(self._walk(names, ROOT, ""))
        return _image(visible, {node: self._random_content(node) for _, node in visible if node is not None}, lost)

    def _namings(self) -> Iterator[tuple[dict[int, dict[str, int]], str]]:
        """Yield the possible names in all directories, with a description of what is lost."""
        nodes = list(self._directories)
        for lengths in product(*(range(len(self._directories[node].changes) + 1) for node in nodes)):
            found = self._naming(dict(zip(nodes, lengths, strict=True)))
            if found is not None:
                yield found

    def _naming(self, lengths: dict[int, int]) -> tuple[dict[int, dict[str, int]], str] | None:
        """Return the names after this number of each directory's unsynced changes; None if this would split a
        rename."""
        kept = {node: self._directories[node].changes[:length] for node, length in lengths.items()}
        names = {node: dict(directory.sure) for node, directory in self._directories.items()}
        lost: list[str] = []
        for node, length in lengths.items():
            for change in self._directories[node].changes:
                if isinstance(change, Move) and (change in kept[change.directory]) != (change in kept[change.into]):
                    return None
            for change in kept[node]:
                _rename(names[node], node, change)
            lost += [_in_words(change) for change in self._directories[node].changes[length:]]
        return names, "; ".join(lost)

    def _walk(self, names: dict[int, dict[str, int]], node: int, path: str) -> Iterator[tuple[str, int | None]]:
        for name, child in sorted(names[node].items()):
            if child in names:
                yield path + name, None
                yield from self._walk(names, child, path + name + "/")
            else:
                yield path + name, child

    def _contents(self, node: int) -> list[Content]:
        file = self._files[node]
        if file.contents is None:
            unsure = [number for number, (_, is_sure) in enumerate(file.operations) if not is_sure]
            fates = list(_fates([file.operations[number][0] for number in unsure]))
            if len(fates) > FILE_IMAGES_MAX:
                self.is_capped = True
                # First the one with all changes, then the one with none.
                fates = fates[:2] + self.dice.sample(fates[2:], FILE_IMAGES_MAX - 2)
            contents = (_content(file, dict(zip(unsure, fate, strict=True))) for fate in fates)
            file.contents = list({content.digest: content for content in contents}.values())
        return file.contents

    def _random_content(self, node: int) -> Content:
        file = self._files[node]
        unsure = [number for number, (_, is_sure) in enumerate(file.operations) if not is_sure]
        share = self.dice.choice((0.0, 0.5, 0.9, 1.0))  # share of the writes that are present
        fate = {number: WHOLE if self.dice.random() < share else DROPPED for number in unsure}
        if unsure and self.dice.random() < 0.5:
            torn = self.dice.choice(unsure)
            fate[torn] = self.dice.choice(_tears(file.operations[torn][0]) or [DROPPED])
        return _content(file, fate)

    def _bounded(self, choices: list[list[Content]], limit: int) -> Iterator[tuple[Content, ...]]:
        """Yield all combinations, or a sample of ``limit`` of them."""
        count = 1
        for choice in choices:
            count *= len(choice)
        if count <= limit:
            yield from product(*choices)
            return
        self.is_capped = True
        for _ in range(limit):
            yield tuple(self.dice.choice(choice) for choice in choices)


def _image(visible: list[tuple[str, int | None]], contents: dict[int, Content], lost: str) -> Image:
    first_names: dict[int, str] = {}
    second_names = [
        (path, first)
        for path, node in visible
        if node is not None and (first := first_names.setdefault(node, path)) != path
    ]
    entries = tuple((path, None if node is None else contents[node]) for path, node in visible)
    return Image(entries, lost, tuple(second_names))


WHOLE = "whole"
DROPPED = "dropped"


def _content(file: _File, fate: dict[int, str]) -> Content:
    """Return the content with this fate of each operation that no sync covers."""
    data = file.sure
    for number, (operation, _) in enumerate(file.operations):
        chosen = fate.get(number, WHOLE)
        if chosen != DROPPED:
            data = _applied(data, operation, None if chosen == WHOLE else chosen)
    return Content(hashlib.blake2b(data, digest_size=16).digest(), data, _in_words_of(tuple(fate.values())))


def _fates(operations: list[Write | Truncate]) -> Iterator[tuple[str, ...]]:
    """Yield fates: complete or missing for each operation, at most one torn; first all complete, then all missing."""
    if not operations:
        yield ()
        return
    numbers = range(len(operations))
    yield (WHOLE,) * len(operations)
    yield (DROPPED,) * len(operations)
    for choice in product((WHOLE, DROPPED), repeat=len(operations)):
        if len(set(choice)) > 1:
            yield choice
    for torn in combinations(numbers, TORN_AT_ONCE):
        others = [number for number in numbers if number not in torn]
        for tears in product(*(_tears(operations[number]) for number in torn)):
            for choice in product((WHOLE, DROPPED), repeat=len(others)):
                fate = dict(zip([*torn, *others], [*tears, *choice], strict=True))
                yield tuple(fate[number] for number in numbers)


def _tears(operation: Write | Truncate) -> list[str]:
    if isinstance(operation, Truncate):
        return []
    count = len(_sectors(operation.offset, len(operation.data)))
    different = {tuple(sorted(set(kept(count)))): name for name, kept in reversed(TEARS.items())}
    return [LENGTH_ONLY, *(name for kept, name in different.items() if 0 < len(kept) < count)]


@cache
def _sectors(offset: int, length: int) -> tuple[tuple[int, int], ...]:
    """Return the parts of a write that are in separate sectors."""
    cuts = [offset, *range((offset // SECTOR_BYTES + 1) * SECTOR_BYTES, offset + length, SECTOR_BYTES), offset + length]
    return tuple(pairwise(cuts))


def _applied(content: bytes, operation: Write | Truncate, tear: str | None) -> bytes:
    if isinstance(operation, Truncate):
        return content[: operation.length].ljust(operation.length, b"\0")
    offset, data = operation.offset, operation.data
    result = bytearray(content)
    if tear == LENGTH_ONLY:
        return bytes(result.ljust(offset + len(data), b"\0"))
    sectors = _sectors(offset, len(data))
    for number in range(len(sectors)) if tear is None else TEARS[tear](len(sectors)):
        start, stop = sectors[number]
        if len(result) < start:
            result.extend(bytes(start - len(result)))
        result[start:stop] = data[start - offset : stop - offset]
    return bytes(result)


def _rename(names: dict[str, int], directory: int, change: Name) -> None:
    """Apply a change to the names of one directory."""
    if isinstance(change, Link):
        names[change.name] = change.node
        return
    if change.directory == directory:
        names.pop(change.name, None)
    if isinstance(change, Move) and change.into == directory:
        names[change.as_name] = change.node


def _in_words(change: Name) -> str:
    if isinstance(change, Link):
        return f"the name {change.name} is lost"
    if isinstance(change, Unlink):
        return f"the name {change.name} is there still"
    return f"{change.name} is not yet {change.as_name}"


def _in_words_of(fates: tuple[str, ...]) -> str:
    if all(fate == WHOLE for fate in fates):
        return ""
    return ", ".join(f"write {number} of {len(fates)} {fate}" for number, fate in enumerate(fates, 1) if fate != WHOLE)
