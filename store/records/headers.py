"""The header of a journal file: `TANDEMMQ 1 {json}` in a trace command, alone in the file's first batch.

The header is seal, rotation mark and gap detector in one: it names the end of every earlier file that no valid header
has named yet. Bytes after an end do not count, forever; a header after an end does not exist. ActiveMQ ignores the
record. Pure; docs/formats/journal.md argues why this is enough.
"""

# proofs: headers

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tandemmq.store.records.commands import Trace, decode, encode_trace
from tandemmq.store.records.loose import OPENWIRE_VERSION

MARK = "TANDEMMQ 1 "

# Limit of ends of epochs in a header: the newest are written; a header with more is invalid.
LINEAGE_MAX = 1_000
VOTERS_MAX = 99
NODE_NAME_MAX = 255

_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class SetHeader:
    """The part of a header about the set of brokers that the journal belongs to (docs/formats/replication.md).

    ``id`` and ``voters`` (the stores whose promises and disks count) are 32 hexadecimal digits each; ``names`` are the
    nodes' by store. ``lineage`` has the end of each former epoch: (epoch, file, end), ascending.
    """

    id: str
    voters: tuple[str, ...]
    names: Mapping[str, str]
    lineage: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The content of the first batch of a file.

    ``ends`` maps earlier files to the offset at which they end; ``files`` are the ids that existed, this one
    included; ``reason`` is "promotion" or "rotation"; ``sync`` the strategy by which the file is written (always,
    periodic, never). ``length`` is the length in bytes to which the file was prepared (0: unknown): no file of ours
    gets shorter. ``foreign_openwire`` is the version of the bodies in the files before this one that have no header,
    named by the epoch that took them over (0: not named, which means 11). ``set`` is None in a journal without a set.
    """

    epoch: int
    holder: str
    reason: str
    ends: Mapping[int, int]
    files: tuple[int, ...]
    openwire_version: int = 11
    sync: str = "always"
    length: int = 0
    foreign_openwire: int = 0
    set: SetHeader | None = None


def encode_header(header: Header) -> bytes:
    """Return the payload of the header's record."""
    return encode_trace(MARK + json.dumps(header_body(header), separators=(",", ":")))


def header_body(header: Header) -> dict[str, Any]:
    """Return the JSON value after the mark."""
    body: dict[str, Any] = {
        "epoch": header.epoch,
        "holder": header.holder,
        "why": header.reason,
        "ends": {str(file): end for file, end in sorted(header.ends.items())},
        "files": ranges(header.files),
        "openwire": header.openwire_version,
        "sync": header.sync,
        "length": header.length,
    }
    if header.foreign_openwire:
        body["foreign_openwire"] = header.foreign_openwire
    if header.set is not None:
        body["set"] = _set_body(header.set)
    return body


def _set_body(said: SetHeader) -> dict[str, Any]:
    return {
        "id": said.id,
        "voters": list(said.voters),
        "names": dict(sorted(said.names.items())),
        "lineage": [list(ended) for ended in said.lineage[-LINEAGE_MAX:]],
    }


def decode_header(payload: bytes) -> Header | None:
    """Return the header in a record's payload; None if the record is no header (ActiveMQ's files have none)."""
    if not payload or payload[0] != 0:
        return None
    command = decode(payload)
    if not isinstance(command, Trace) or not (command.message or "").startswith(MARK):
        return None
    try:
        return header_of_body(json.loads((command.message or "")[len(MARK) :]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def header_of_body(body: Mapping[str, Any]) -> Header:
    """Decode a ``header_body``. Raises ValueError, KeyError, TypeError or AttributeError for any other value."""
    return Header(
        epoch=int(body["epoch"]),
        holder=str(body["holder"]),
        reason=str(body["why"]),
        ends={int(file): int(end) for file, end in body["ends"].items()},
        files=tuple(file for first, last in body["files"] for file in range(first, last + 1)),
        openwire_version=int(body["openwire"]),
        sync=str(body["sync"]),
        length=int(body.get("length", 0)),
        foreign_openwire=int(body.get("foreign_openwire", 0)),
        set=_set_of_body(body["set"]) if "set" in body else None,
    )


def _set_of_body(body: Mapping[str, Any]) -> SetHeader:
    voters = tuple(map(_store_id, body["voters"]))
    names = {_store_id(store): str(name) for store, name in body["names"].items()}
    lineage = tuple((int(epoch), int(file), int(end)) for epoch, file, end in body["lineage"])
    if not 0 < len(voters) <= VOTERS_MAX or len(set(voters)) < len(voters):
        raise ValueError("voters are few, and each is named once")
    if len(names) > VOTERS_MAX or any(len(name) > NODE_NAME_MAX for name in names.values()):
        raise ValueError("names of nodes are few and short")
    if len(lineage) > LINEAGE_MAX or any(later[0] <= former[0] for former, later in pairwise(lineage)):
        raise ValueError("a lineage is short, and ascends")
    return SetHeader(_store_id(body["id"]), voters, names, lineage)


def _store_id(text: Any) -> str:
    if not _ID.fullmatch(text):
        raise ValueError(f"{text!r:.40} is no id")
    return str(text)


def ranges(files: Iterable[int]) -> list[list[int]]:
    """Return files as ranges: [1, 2, 3, 7] -> [[1, 3], [7, 7]]."""
    found: list[list[int]] = []
    for file in sorted(files):
        if found and file == found[-1][1] + 1:
            found[-1][1] = file
        else:
            found.append([file, file])
    return found


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Facts from all headers together: the files that count and their ends.

    ``ends`` has no entry for a file whose end no header names: the last one, and those that ActiveMQ wrote.
    ``headers`` are the valid ones; ``epoch`` is the highest among them (0: none).
    """

    ends: Mapping[int, int]
    headers: Mapping[int, Header]

    @property
    def newest(self) -> int:
        """Last file with a valid header; 0: there is none."""
        return max(self.headers, default=0)

    @property
    def named(self) -> tuple[int, ...]:
        """Files that the newest header names."""
        return self.headers[self.newest].files if self.headers else ()

    @property
    def epoch(self) -> int:
        return max((header.epoch for header in self.headers.values()), default=0)

    def epoch_at(self, file: int) -> int:
        """Return the epoch in which ``file`` was written, according to the headers; 0: before our first one."""
        earlier = [number for number in self.headers if number <= file]
        return self.headers[max(earlier)].epoch if earlier else 0

    def version_at(self, file: int) -> int:
        """Return the OpenWire version of the bodies in ``file``."""
        header = self.headers.get(file)
        if header is not None:
            return header.openwire_version
        numbers = [number for number in self.headers if number > file and self.headers[number].foreign_openwire]
        return self.headers[min(numbers)].foreign_openwire if numbers else OPENWIRE_VERSION

    def may_have_holes(self, file: int) -> bool:
        """Return whether ``file`` was written without a sync for each batch: then a power loss may leave a later batch
        without an earlier one, and no receipt promised durability for either."""
        header = self.headers.get(file)
        return header is not None and header.sync != "always"

    def first_of_epoch(self, file: int) -> bool:
        """Return whether ``file`` fenced off an epoch, or may have: it must not go before any file that precedes it.

        A file without a valid header whose named end is 0 may be the fence of a promotion that died before its header.
        Nothing in it counts, but the master before it looks for this name, and for no other.
        """
        header = self.headers.get(file)
        if header is None:
            return self.ends.get(file) == 0  # prove: headless-file-may-be-a-fence
        return header.reason == "promotion"  # prove: promotion-begins-an-epoch

    def missing_fences(self, files: Collection[int]) -> list[int]:
        """Return the files without header that went although an earlier one stays in ``files``: a master that sleeps in
        that one finds no fence when it wakes."""
        return sorted(
            file
            for file, end in self.ends.items()
            if end == 0 and file not in files and any(other < file for other in files)
        )


def read_epoch_history(files: Iterable[int], header_of: Callable[[int], Header | None]) -> EpochHistory:
    """Read the headers of ``files``, newest first, as far as newer ones let them exist.

    ``header_of`` returns the header in a file's first batch, None if there is none.
    """
    ends: dict[int, int] = {}
    headers: dict[int, Header] = {}
    for file in sorted(files, reverse=True):  # prove: newest-header-first ", reverse=True"
        if ends.get(file) == 0:  # prove: end-hides-header
            continue
        header = header_of(file)
        if header is None:
            continue
        headers[file] = header
        for earlier, end in header.ends.items():
            if earlier not in ends:  # prove: newest-end-counts
                ends[earlier] = end
    return EpochHistory(ends, headers)
