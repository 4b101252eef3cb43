"""Options of a read or a stream, set with ``option(...)``. See docs/pipeline-jobs.md.

Spark passes the names in lower case, and several paths as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.pipeline import columns
from tandemmq.pipeline.offsets import BadOffsets, Offsets
from tandemmq.pipeline.places import Access, access_of, is_access
from tandemmq.pipeline.rows import MODES, PERMISSIVE

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_OF_BOTH: Final = ("path", "paths", "table", "mode", "follow", "payload")
_OF_READ: Final = ("fromFile", "toFile", "endingOffsets")
_OF_STREAM: Final = ("startingOffsets", "failOnDataLoss", "maxFilesPerTrigger", "maxBytesPerTrigger")
_BOOLEANS: Final = ("true", "false")


class BadOption(ValueError):
    """An unknown option, or an invalid value."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a read or a stream. ``first`` and ``last``: limits of the file numbers. ``until``: end of the read in
    each store; None: the end at the time of the read. ``access``: settings to reach remote paths, which may contain a
    secret."""

    paths: tuple[str, ...]
    table: str = columns.RECORDS
    mode: str = PERMISSIVE
    is_tail_wanted: bool = True
    first: int | None = None
    last: int | None = None
    until: Offsets | None = None
    payload: bool = False
    access: Access = field(default=(), repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str], follow: str = "tail") -> Options:
        """Parse the options of ``spark.read``. ``follow``: default of the option with that name. Raises BadOption."""
        given = _given(options, (*_OF_BOTH, *_OF_READ), "readStream", _OF_STREAM)
        return cls(
            _paths(given),
            _table(given),
            _one_of({"mode": given.get("mode", PERMISSIVE).upper()}, "mode", MODES, PERMISSIVE),
            _one_of(given, "follow", ("closed", "tail"), follow) == "tail",
            _number(given, "fromFile", "the number of a journal file"),
            _number(given, "toFile", "the number of a journal file"),
            _ending(given.get("endingoffsets", LATEST)),
            _one_of(given, "payload", _BOOLEANS, "false") == "true",
            access_of(given),
        )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of a stream. ``starting``: EARLIEST, LATEST or the position at which each store begins."""

    read: Options
    starting: str | Offsets = EARLIEST
    is_loss_fatal: bool = True
    files_max: int | None = None
    bytes_max: int | None = None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> StreamOptions:
        """Parse the options of ``spark.readStream``. Raises BadOption."""
        given = _given(settings, (*_OF_BOTH, *_OF_STREAM), "read", _OF_READ)
        options = cls(
            Options.of({name: value for name, value in given.items() if name not in _small(_OF_STREAM)}, "closed"),
            _starting(given.get("startingoffsets", EARLIEST)),
            _one_of(given, "failOnDataLoss", _BOOLEANS, "true") == "true",
            _number(given, "maxFilesPerTrigger", "a number of journal files, at least 1", 1),
            _number(given, "maxBytesPerTrigger", "a number of bytes, at least 1", 1),
        )
        if options.files_max is not None and options.bytes_max is not None:
            raise BadOption("maxFilesPerTrigger and maxBytesPerTrigger: Spark takes one limit")
        if options.read.table == columns.FILES and options.read.is_tail_wanted:
            raise BadOption("a file has its row in the table files when it is closed: not with follow=tail")
        return options


def table_of(options: Mapping[str, str]) -> str:
    """Return the requested table without a check of the other options. Raises BadOption."""
    return _table({name.lower(): value for name, value in options.items()})


def _given(options: Mapping[str, str], names: tuple[str, ...], other: str, others: tuple[str, ...]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(name for name in given.keys() - _small(names) if not is_access(name))
    if unknown:
        hint = f"; {', '.join(others)} are options of {other}" if _small(others) & set(unknown) else ""
        raise BadOption(f"unknown options: {', '.join(unknown)}; there are: {', '.join(names)}{hint}")
    return given


def _small(names: tuple[str, ...]) -> set[str]:
    return {name.lower() for name in names}


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    paths = [given["path"]] if given.get("path") else []
    if "paths" in given:
        try:
            several = json.loads(given["paths"])
        except ValueError:
            several = None
        if not isinstance(several, list) or not all(isinstance(path, str) for path in several):
            raise BadOption(f'paths is a list in JSON, ["/a", "/b"], not {given["paths"]!r}')
        paths += several
    return tuple(paths)


def _table(given: Mapping[str, str]) -> str:
    return _one_of(given, "table", columns.TABLES, columns.RECORDS)


def _one_of(given: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(name.lower(), default)
    if value not in allowed:
        raise BadOption(f"{name} is one of {', '.join(allowed)}, not {value!r}")
    return value


def _number(given: Mapping[str, str], name: str, meaning: str, least: int = 0) -> int | None:
    value = given.get(name.lower())
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()) or int(value) < least:
        raise BadOption(f"{name} is {meaning}, not {value!r}")
    return int(value)


def _starting(value: str) -> str | Offsets:
    return value if value in (EARLIEST, LATEST) else _offsets(value, f"startingOffsets is {EARLIEST}, {LATEST}")


def _ending(value: str) -> Offsets | None:
    return None if value == LATEST else _offsets(value, f"endingOffsets is {LATEST}")


def _offsets(value: str, otherwise: str) -> Offsets:
    try:
        return Offsets.of(json.loads(value))
    except (ValueError, BadOffsets) as error:
        raise BadOption(f"{otherwise}, or offsets in JSON as a query's progress shows them: {error}") from error
