"""Lost files: journal files that were deleted before the pipeline archived them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from tandemmq.pipeline.lake import Lake
from tandemmq.store.records.headers import ranges

_FILE: Final = "stores.json"


class Seen:
    """For each store, the numbers of all files that existed, and of the files that are done: in the lake, or lost and
    skipped. Stored in the lake's ledger.

    Files that were deleted before the first listing of a store are not known and not reported. After that, each number
    up to the newest one is a file, because brokers number files without gaps.
    """

    def __init__(self, lake: Lake, body: Mapping[str, Any]) -> None:
        self._lake = lake
        self._present: dict[str, set[int]] = {}
        self._done: dict[str, set[int]] = {}
        for store, entries in body.items():
            self._present[store] = _numbers(entries["there"])
            self._done[store] = _numbers(entries["done"]) | lake.files_of(store)
        self._written = dict(body)

    @classmethod
    def of(cls, lake: Lake) -> Seen:
        return cls(lake, lake.read(_FILE) or {})

    def note_present(self, present: Mapping[str, Collection[int]]) -> None:
        """Record the files that exist now. Durable on return."""
        for store, files in present.items():
            if not files:
                continue
            there = self._present.get(store)
            if there is None:
                self._present[store] = set(files)
                self._done[store] = self._lake.files_of(store)
            else:
                there.update(files, range(max(there) + 1, max(files)))
        self._write()

    def note_archived(self, store: str, file: int) -> None:
        """Record that the lake has the file."""
        self._done.setdefault(store, set()).add(file)

    def lost(self, present: Mapping[str, Collection[int]]) -> dict[str, list[int]]:
        """Return the files of the stores in ``present`` that existed, do not exist any more, and are not in the
        lake."""
        found = {
            store: sorted(self._present.get(store, set()) - set(files) - self._done.get(store, set()))
            for store, files in present.items()
        }
        return {store: files for store, files in found.items() if files}

    def skip(self, lost: Mapping[str, Iterable[int]]) -> None:
        """Record that these files are skipped, so that ``lost`` does not return them any more. Durable on return."""
        for store, files in lost.items():
            self._done[store].update(files)
        self._write()

    def _write(self) -> None:
        body = {
            store: {"there": ranges(there), "done": ranges(self._done[store])} for store, there in self._present.items()
        }
        if body != self._written:
            self._lake.write(_FILE, body)
            self._written = body


def ranges_of(files: Iterable[int]) -> str:
    """Format file numbers: [3, 4, 5, 9] -> "db-3.log to db-5.log, db-9.log"."""
    return ", ".join(
        f"db-{first}.log" if first == last else f"db-{first}.log to db-{last}.log" for first, last in ranges(files)
    )


def _numbers(entries: Iterable[Iterable[int]]) -> set[int]:
    return {number for first, last in entries for number in range(first, last + 1)}
