"""Header of a journal file: `TANDEMMQ 1 {json}` in a trace command, the only record of the file's first batch. Pure.

A header seals earlier files: it states the end of every earlier file whose end no valid header states. Bytes after an
end never count, and a header after an end is ignored. The header also marks a rotation, and shows which files existed.
ActiveMQ ignores the record. docs/formats/journal.md explains why this is safe.
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

# Limit of the ends of epochs in a header. Only the newest are written; a header with more is invalid.
LINEAGE_MAX = 1_000
VOTERS_MAX = 99
NODE_NAME_MAX = 255

_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class SetHeader:
    """Part of a header that describes the set of brokers (docs/formats/replication.md).

    id       id of the set, 32 hexadecimal digits
    voters   store ids of the voters, 32 hexadecimal digits each
    names    store id -> name of the node
    lineage  (epoch, file, end) for the end of each former epoch, ascending
    """

    id: str
    voters: tuple[str, ...]
    names: Mapping[str, str]
    lineage: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Header:
    """Content of the first batch of a file.

    epoch             epoch in which the file is written
    holder            name of the broker
    reason            "promotion" or "rotation"
    ends              earlier file -> offset of its end
    files             ids of the existing files, this one included
    openwire_version  OpenWire version of the message bodies in this file
    sync              sync strategy with which the file is written: "always", "periodic" or "never"
    length            length in bytes of the prepared file; 0: unknown
    foreign_openwire  OpenWire version of the bodies in earlier files without a header, set by the epoch that took them
                      over; 0: not stated, which means 11
    set               None in a journal without a set
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
    """Return the header as the JSON object that follows MARK in the record."""
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


def _set_body(set_header: SetHeader) -> dict[str, Any]:
    return {
        "id": set_header.id,
        "voters": list(set_header.voters),
        "names": dict(sorted(set_header.names.items())),
        "lineage": [list(ended) for ended in set_header.lineage[-LINEAGE_MAX:]],
    }


def decode_header(payload: bytes) -> Header | None:
    """Return the header in a record's payload, or None if the record is no header."""
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
    """Return the header in a JSON object of ``header_body``. Raises ValueError, KeyError, TypeError or AttributeError
    for any other value."""
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
        raise ValueError(f"a header has 1 to {VOTERS_MAX} voters, each once")
    if len(names) > VOTERS_MAX or any(len(name) > NODE_NAME_MAX for name in names.values()):
        raise ValueError(f"a header has at most {VOTERS_MAX} names of at most {NODE_NAME_MAX} characters")
    if len(lineage) > LINEAGE_MAX or any(later[0] <= former[0] for former, later in pairwise(lineage)):
        raise ValueError(f"a lineage has at most {LINEAGE_MAX} epochs, ascending")
    return SetHeader(_store_id(body["id"]), voters, names, lineage)


def _store_id(text: Any) -> str:
    if not _ID.fullmatch(text):
        raise ValueError(f"{text!r:.40} is no store id")
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
    """All valid headers of a journal together.

    ``headers``: file -> its valid header. ``ends``: file -> its end. There is no end for the last file, and for files
    that ActiveMQ wrote last. ``epoch``: the highest epoch; 0: there are no headers.
    """

    ends: Mapping[int, int]
    headers: Mapping[int, Header]

    @property
    def newest(self) -> int:
        """Last file with a valid header; 0: no file has one."""
        return max(self.headers, default=0)

    @property
    def named(self) -> tuple[int, ...]:
        """Files that existed according to the newest header."""
        return self.headers[self.newest].files if self.headers else ()

    @property
    def epoch(self) -> int:
        return max((header.epoch for header in self.headers.values()), default=0)

    def epoch_at(self, file: int) -> int:
        """Return the epoch in which ``file`` was written, according to the headers; 0: before the first header."""
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
        """Return whether ``file`` was written without a sync for each batch. After a power loss, a batch may then be
        missing although a later one exists; receipts did not promise durability."""
        header = self.headers.get(file)
        return header is not None and header.sync != "always"

    def first_of_epoch(self, file: int) -> bool:
        """Return whether ``file`` is, or may be, a fence. It must not be removed before all earlier files.

        A file without a valid header whose end is 0 may be the fence of a promotion that failed before it wrote its
        header. Nothing in the file counts, but the former master checks only whether this file exists.
        """
        header = self.headers.get(file)
        if header is None:
            return self.ends.get(file) == 0  # prove: headless-file-may-be-a-fence
        return header.reason == "promotion"  # prove: promotion-begins-an-epoch

    def missing_fences(self, files: Collection[int]) -> list[int]:
        """Return the fences without a header that are missing although an earlier file exists in ``files``. If a master
        of that earlier file was suspended and resumes, it finds no fence."""
        return sorted(
            file
            for file, end in self.ends.items()
            if end == 0 and file not in files and any(other < file for other in files)
        )


def read_epoch_history(files: Iterable[int], header_of: Callable[[int], Header | None]) -> EpochHistory:
    """Read the headers of ``files``, the newest first. A header is ignored if a newer header states that its file ends
    at 0.

    ``header_of`` returns the header in the first batch of a file, or None.
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
