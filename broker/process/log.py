"""Log of a broker: levels, format and target of its lines.

A thread that logs never waits: lines go into a queue of at most LINES_MAX, and the log's thread writes them. A pipe
without a reader, or a disk that hangs, delays only the log's thread. When the queue is full, further lines are dropped
and counted; a later line states their number. At the end, waiting lines are written for at most FLUSH_SECONDS_MAX.
Secrets of the settings are masked.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from importlib.util import find_spec
from typing import Final, Protocol

from tandemmq import log_events
from tandemmq.broker.process.log_formats import FORMATS, JournalFormatter, TextFormatter
from tandemmq.config.errors import SettingsError
from tandemmq.config.logging import LoggingSettings
from tandemmq.config.secrets import MASK, masked_text
from tandemmq.disk import open_regular, write_fully
from tandemmq.modes import whose

#: Maximum number of lines that wait to be written; further lines are dropped.
LINES_MAX: Final = 10_000
#: Maximum number of lines in one write.
BATCH_LINES_MAX: Final = 200
FLUSH_SECONDS_MAX: Final = 1.0
#: Interval of the checks whether another program renamed or removed the file.
CHECK_SECONDS: Final = 1.0
#: Minimum length of a secret that is masked: a shorter one may occur as an ordinary word.
SECRET_CHARACTERS_MIN: Final = 6

LEVELS: Final = ("debug", "info", "warning", "error")
#: Value in place of a level: use the level of the settings.
DEFAULT: Final = "default"
OURS: Final = "tandemmq"
#: First parts of the names of libraries' loggers.
OTHERS: Final = ("aiohttp", "asyncio", "kazoo", "ldap3", "sqlalchemy")
#: Minimum level of libraries' loggers that are not named in the settings: debug lines may contain a password.
_OTHERS_LEVEL_MIN: Final = logging.INFO

log = logging.getLogger(__name__)


class UnknownLogger(Exception):
    """Unknown name of a logger."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no logger {name!r}: expected a package or module, such as store or broker.net")


class Target(Protocol):
    """Target of lines. Called on the log's thread; raises OSError."""

    def write(self, lines: bytes) -> None: ...

    def close(self) -> None: ...


class Stderr:
    def write(self, lines: bytes) -> None:
        view = memoryview(lines)
        while view:
            view = view[os.write(2, view) :]

    def close(self) -> None:
        pass


class File:
    """A log file that is rotated before it is longer than ``size_max`` bytes. At most ``count_max`` former files are
    kept; ``PATH.1`` is the latest. If another program renames or removes the file, a new one is opened within
    CHECK_SECONDS. Raises OSError."""

    def __init__(self, path: str, size_max: int, count_max: int, mode: int) -> None:
        self._path = os.path.realpath(path)
        self._size_max = size_max
        self._count_max = count_max
        self._mode = mode
        self._size = 0
        self._looked_at = time.monotonic()
        self._descriptor = self._open()

    def write(self, lines: bytes) -> None:
        self._check_file()
        if self._size and self._size + len(lines) > self._size_max:
            self._rotate()
        self._size += len(lines)
        write_fully(self, self._descriptor, lines, 0)

    def close(self) -> None:
        os.close(self._descriptor)

    @staticmethod
    def pwrite(descriptor: int, data: bytes | bytearray | memoryview, offset: int, /) -> int:
        return os.write(descriptor, data)  # the file is open for appending, so the offset is not used

    def _open(self) -> int:
        descriptor = open_regular(os, self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, self._mode)
        self._size = os.fstat(descriptor).st_size
        return descriptor

    def _check_file(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < CHECK_SECONDS:
            return
        self._looked_at = now
        ours = os.fstat(self._descriptor)
        self._size = ours.st_size  # another program may have truncated it
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            self._reopen()
            return
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            self._reopen()

    def _rotate(self) -> None:
        for number in range(self._count_max, 0, -1):
            former = self._path if number == 1 else f"{self._path}.{number - 1}"
            with suppress(FileNotFoundError):
                os.replace(former, f"{self._path}.{number}")
        self._reopen()

    def _reopen(self) -> None:
        former, self._descriptor = self._descriptor, self._open()
        os.close(former)


class _Mark(threading.Event):
    """Item in the queue that is set when all lines before it are written."""


class Lines(logging.Handler):
    """Handler that takes records from any thread, and writes them on its own thread. The thread is a daemon, so that it
    does not delay the end of the process."""

    def __init__(self, formatter: logging.Formatter, target: Target, secrets: Collection[str] = ()) -> None:
        super().__init__()
        self._refused = self._failed = 0  # lines that the full queue refused, and lines that the target failed to write
        self._secrets = [each for each in secrets if len(each) >= SECRET_CHARACTERS_MIN]
        self._queue: deque[bytes | Target | _Mark] = deque()
        self._wake = threading.Event()
        self._target = target
        self._is_failing = False
        self.setFormatter(formatter)
        threading.Thread(target=self._write, name="tandemmq-log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Number of lines that were not written."""
        return self._refused + self._failed

    def take(self, formatter: logging.Formatter, target: Target) -> None:
        """Use ``formatter`` and ``target`` for the next lines."""
        self.setFormatter(formatter)
        self._put(target)

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._queue) >= LINES_MAX:
            self._refused += 1
            return
        try:
            self._put(self._line(record))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all lines are written, at most FLUSH_SECONDS_MAX."""
        mark = _Mark()
        self._put(mark)
        mark.wait(FLUSH_SECONDS_MAX)

    def _line(self, record: logging.LogRecord) -> bytes:
        line = masked_text(self.format(record))
        for secret in self._secrets:
            line = line.replace(secret, MASK)
        return line.encode(errors="backslashreplace") + b"\n"

    def _put(self, item: bytes | Target | _Mark) -> None:
        self._queue.append(item)
        self._wake.set()

    # ---- on the log's thread

    def _write(self) -> None:
        reported = 0
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, bytes):
                    self._write_lines(item)
                elif isinstance(item, _Mark):
                    item.set()
                else:
                    former, self._target = self._target, item
                    former.close()
            if self.dropped > reported and not self._is_failing:
                number, reported = self.dropped - reported, self.dropped
                log.warning("%d lines of the log were dropped", number, extra=log_events.LINES_DROPPED)

    def _write_lines(self, first: bytes) -> None:
        lines = [first]
        while len(lines) < BATCH_LINES_MAX and self._queue and isinstance(self._queue[0], bytes):
            line = self._queue.popleft()
            assert isinstance(line, bytes), "only this thread takes from the queue"
            lines.append(line)
        try:
            self._target.write(b"".join(lines))
            self._is_failing = False
        except OSError as error:
            self._failed += len(lines)
            if not self._is_failing:
                self._is_failing = True
                with suppress(OSError):
                    Stderr().write(f"the log cannot be written: {error}\n".encode())


class Log:
    """Log of this process, as set in [logging]. Only ``dropped`` and ``levels`` may be read from any thread.

    ``mode``: permissions of the log file. ``__init__`` and ``take`` raise SettingsError, also if the file cannot be
    opened; ``take`` then changes nothing.
    """

    def __init__(self, settings: LoggingSettings, mode: int = 0o600, secrets: Collection[str] = ()) -> None:
        self._mode = mode
        self._settings = settings
        self._named: dict[str, str] = {}  # levels set with ``set_level``
        _check(settings)
        self._lines = Lines(_formatter(settings), _target(settings, mode), secrets)
        logging.getLogger().addHandler(self._lines)
        self._set_levels()

    @property
    def dropped(self) -> int:
        """Number of lines that were not written."""
        return self._lines.dropped

    def take(self, settings: LoggingSettings) -> None:
        """Apply ``settings``, and drop the levels that were set with ``set_level``."""
        _check(settings)
        if settings.where != self._settings.where:
            self._lines.take(_formatter(settings), _target(settings, self._mode))
        self._forget_levels()
        self._settings, self._named = settings, {}
        self._set_levels()

    def set_level(self, name: str, level: str | None) -> None:
        """Set the level of a logger and of all loggers below it, until ``take`` or the end of the process. None: the
        level of the settings. Raises UnknownLogger."""
        full = full_name(name)
        self._forget_levels()
        if level is None:
            self._named.pop(full, None)
        else:
            self._named[full] = level
        self._set_levels()

    @property
    def levels(self) -> dict[str, str]:
        """Levels by logger, from the settings or from ``set_level``."""
        of_settings = {full_name(name): level for name, level in self._settings.loggers.items()}
        return {OURS: self._settings.level, **of_settings, **self._named}

    def close(self) -> None:
        """Write the waiting lines, for at most FLUSH_SECONDS_MAX."""
        self._lines.flush()

    def _set_levels(self) -> None:
        levels = self.levels
        logging.getLogger().setLevel(max(_number(levels[OURS]), _OTHERS_LEVEL_MIN))
        for name, level in levels.items():
            logging.getLogger(name).setLevel(_number(level))

    def _forget_levels(self) -> None:
        for name in self.levels:
            logging.getLogger(name).setLevel(logging.NOTSET)


def demand_log(settings: LoggingSettings) -> None:
    """Raise SettingsError if a log with these settings is not possible. Creates no file."""
    _check(settings)
    if settings.file is None:
        return
    try:
        if os.path.exists(settings.file):
            os.close(open_regular(os, os.path.realpath(settings.file), os.O_WRONLY | os.O_APPEND))
        else:
            directory = os.path.dirname(os.path.realpath(settings.file))
            if not os.path.isdir(directory):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
            if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory)
    except OSError as error:
        raise _no_file(settings.file, error) from error


def _check(settings: LoggingSettings) -> None:
    for name, level in settings.loggers.items():
        try:
            full_name(name)
        except UnknownLogger as error:
            raise SettingsError(f"logging.loggers.{name}", level, str(error)) from error


def _no_file(path: str, error: OSError) -> SettingsError:
    return SettingsError("logging.file", path, f"a file that can be written: {error}{whose(error)}")


def full_name(name: str) -> str:
    """Return the full name of a logger. Loggers of the broker are named by their module in the package. Raises
    UnknownLogger."""
    if name == OURS or name.partition(".")[0] in OTHERS:
        return name
    full = name if name.startswith(f"{OURS}.") else f"{OURS}.{name}"
    try:
        is_known = find_spec(full) is not None
    except (ImportError, ValueError):
        is_known = False
    if not is_known:
        raise UnknownLogger(name)
    return full


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _formatter(settings: LoggingSettings) -> logging.Formatter:
    is_journal = settings.target == "journald"
    if settings.format == "text":
        formatter: logging.Formatter = TextFormatter(has_time=not is_journal)
    else:
        formatter = FORMATS[settings.format]()
    return JournalFormatter(formatter) if is_journal else formatter


def _target(settings: LoggingSettings, mode: int) -> Target:
    if settings.file is None:
        return Stderr()
    try:
        return File(settings.file, settings.file_max_size, settings.file_max_count, mode)
    except OSError as error:
        raise _no_file(settings.file, error) from error
