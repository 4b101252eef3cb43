"""Last status of each other member, as this node heard it. It decides nothing.

The file `replication.known` beside the promise file holds the same for commands that run while no process runs there
(`tandemmq replication leave` and `forget`): JSON, replaced now and then, never synced. It may be old or missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from tandemmq.broker.replication.quorum import NOWHERE, Place
from tandemmq.disk import open_regular, read_fully

FILE_NAME: Final = "replication.known"
FILE_BYTES_MAX: Final = 1 << 20
#: Keys of a member's status that are written to the file.
WRITTEN: Final = ("node", "role", "epoch", "position", "final", "is_whole", "is_voter")

Status = Mapping[str, Any]


def place_of(said: object) -> Place | None:
    """Return the place in a status, written as [file, end]. None for anything else."""
    if isinstance(said, list) and len(said) == 2 and all(type(each) is int for each in said) and said != [0, 0]:
        return said[0], said[1]
    return None


class Known:
    """Statuses of the members. One thread notes them, any thread may read them. ``now`` is a clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heard: dict[str, tuple[float, Status]] = {}
        self._final: dict[str, Place] = {}

    def note(self, store: str, status: Status) -> None:
        """Note the status that ``store`` reports of itself now."""
        self._heard[store] = (self._now(), status)
        self._final[store] = max(self.final(store), place_of(status.get("final_here")) or NOWHERE)

    def final(self, store: str) -> Place:
        """Return the highest final place that the store had on its disk, by its reports to this process."""
        return self._final.get(store, NOWHERE)

    def of(self, store: str) -> tuple[Status, float] | None:
        """Return its last status and the age of the status in seconds; None: nothing was heard."""
        heard = self._heard.get(store)
        return None if heard is None else (heard[1], max(0.0, self._now() - heard[0]))

    def written(self, own: Status) -> dict[str, Any]:
        """Return the content of the file: statuses by store, with ``own`` for this node."""
        said = {store: status for store, (_, status) in list(self._heard.items())}
        said[str(own["store"])] = own
        return {store: {key: status.get(key) for key in WRITTEN} for store, status in said.items()}


def write_known(directory: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that writes what is known into the file of this directory when it has changed. The function
    reports no disk error: other parts report the disk."""
    path = os.path.join(directory, FILE_NAME)
    last: list[Mapping[str, Any]] = []

    def write(members: Mapping[str, Any]) -> None:
        if last == [members]:
            return
        try:
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump({"members": members}, file, ensure_ascii=False)
            os.replace(f"{path}.new", path)
        except OSError:
            return
        last[:] = [members]

    return write


def read_known(directory: str) -> tuple[dict[str, dict[str, Any]], float] | None:
    """Return what was known, by store, and when it was written, in seconds since 1970. None: no readable file."""
    try:
        fd = open_regular(os, os.path.join(directory, FILE_NAME), os.O_RDONLY)
        try:
            content = read_fully(os, fd, FILE_BYTES_MAX, 0)
            at = os.fstat(fd).st_mtime
        finally:
            os.close(fd)
        members = json.loads(content)["members"]
        known = {str(store): {key: said.get(key) for key in WRITTEN} for store, said in members.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return known, at
