"""File systems of journals: mounted file systems, and remote ones through pyarrow (s3a, hdfs, gs, abfs).

    place = place_of("s3a://lake/orders", access)
    place.entries("s3a://lake/orders")                 the directory
    place.open("s3a://lake/orders/db-1.log")           ranges of a file, which is not copied

Spark's workers and planners are Python processes without Hadoop's classes. So remote paths are read with pyarrow's file
systems, and Hadoop's settings ``spark.hadoop.fs.s3a.*`` are passed as ``access``. pyarrow is imported only for remote
paths.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tandemmq.disk import NotRegular, data_from, kind_of, open_with_status, read_fully

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# Hadoop's settings by name, for example fs.s3a.endpoint; sorted, so that equal settings are the same key.
Access = tuple[tuple[str, str], ...]

# scheme in pyarrow for each scheme of Hadoop
SCHEMES: Final = {"s3a": "s3", "s3n": "s3"} | {name: name for name in ("s3", "hdfs", "viewfs", "gs", "abfs", "abfss")}
# Prefixes of Hadoop's settings, in Hadoop and in Spark
_FS: Final = "fs."
_HADOOP: Final = "spark.hadoop."
# Number of file systems that a process caches with their connections, one for each set of settings.
_KEPT: Final = 8
# Number of irregular files for which it is remembered that a warning was logged
_WARNED_MAX: Final = 1024

log = logging.getLogger(__name__)


class NoPlace(Exception):
    """The file system of a path cannot be reached; the message states what is missing."""


class Entry(NamedTuple):
    """Entry of a directory; ``size`` in bytes, 0 for a directory."""

    name: str
    is_directory: bool
    size: int


class Opened(ABC):
    """An open file with the size that it had when it was opened: a live file grows during a read."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes at ``offset``; fewer only at the end of the file."""
        wanted = min(length, self._size - offset)
        return self._read(offset, wanted) if wanted > 0 else b""

    def data_from(self, offset: int) -> int:
        """Return the end of the hole (zeros) that begins at ``offset``, if it is known without a read; otherwise
        ``offset``."""
        return offset

    def close(self) -> None:  # noqa: B027
        """Do nothing: the code that opened the file must ``release`` it, not the scans that use it."""

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def _read(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes, at least one, which must be in the file."""


class Place(Protocol):
    """A file system. Paths must be absolute, or URLs if it is remote."""

    is_remote: bool

    def entries(self, directory: str) -> list[Entry]:
        """Return the entries of a directory, ordered by name. Raises FileNotFoundError, NotADirectoryError."""

    def open(self, path: str) -> Opened:
        """Open a file. Raises FileNotFoundError."""


def is_access(name: str) -> bool:
    """Return whether a setting is for access to file systems, for example (spark.hadoop.)fs.s3a.endpoint."""
    return name.removeprefix(_HADOOP).startswith(_FS)


def access_of(settings: Mapping[str, str]) -> Access:
    """Return the settings for access to file systems."""
    return tuple(sorted((name.removeprefix(_HADOOP), value) for name, value in settings.items() if is_access(name)))


def is_remote(path: str) -> bool:
    """Return whether ``path`` is a URL of a remote file."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme != "file"


def normal(path: str) -> str:
    """Return the absolute path, or the URL without redundant slashes."""
    scheme, separator, rest = path.partition("://")
    if is_remote(path):
        authority, *names = rest.split("/")
        return "/".join([f"{scheme}{separator}{authority}", *filter(None, names)])
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return os.path.abspath(path)


def place_of(path: str, access: Access = ()) -> Place:
    """Return the file system of an absolute path or URL. Raises NoPlace."""
    if not is_remote(path):
        return MOUNTED
    scheme, _, rest = path.partition("://")
    return _remote(scheme, rest.partition("/")[0], access)


def open_file(path: str, access: Access = ()) -> Opened:
    """Open a file. Raises FileNotFoundError, NotRegular, NoPlace."""
    return place_of(path, access).open(path)


# -- mounted -----------------------------------------------------------------------------------------------------------


class _MountedFile(Opened):
    def __init__(self, path: str) -> None:
        self._fd, status = open_with_status(os, path, os.O_RDONLY)
        super().__init__(status.st_size)

    def data_from(self, offset: int) -> int:
        return min(data_from(os, self._fd, offset), self._size)

    def release(self) -> None:
        os.close(self._fd)

    def _read(self, offset: int, length: int) -> bytes:
        return read_fully(os, self._fd, length, offset)


class _Mounted:
    is_remote = False

    def entries(self, directory: str) -> list[Entry]:
        return sorted(_entries(directory))

    def open(self, path: str) -> Opened:
        return _MountedFile(path)


MOUNTED: Final[Place] = _Mounted()


def _entries(directory: str) -> Iterable[Entry]:
    with os.scandir(directory) as found:
        for entry in found:
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield Entry(entry.name, True, 0)
                elif entry.is_file(follow_symlinks=False):
                    yield Entry(entry.name, False, entry.stat(follow_symlinks=False).st_size)
                else:
                    warn_left_out(entry.path, kind_of(entry.path) or "deleted meanwhile")
            except FileNotFoundError:  # the entry was deleted meanwhile
                continue


@lru_cache(_WARNED_MAX)
def warn_left_out(path: str, kind: str) -> None:
    """Log a warning about an irregular file with a journal file's name, only once: a stream lists it many times."""
    log.warning("%s: left out", NotRegular(path, kind))


# -- remote ------------------------------------------------------------------------------------------------------------


class _RemoteFile(Opened):
    def __init__(self, system: FileSystem, path: str) -> None:
        self._file = system.open_input_file(path)
        super().__init__(int(self._file.size()))

    def release(self) -> None:
        self._file.close()

    def _read(self, offset: int, length: int) -> bytes:
        return bytes(self._file.read_at(length, offset))


class _Remote:
    is_remote = True

    def __init__(self, system: FileSystem, root: str, prefix: str) -> None:
        """``prefix``: text that replaces ``root`` of a URL in a path of ``system``."""
        self._system = system
        self._root = root
        self._prefix = prefix

    def entries(self, directory: str) -> list[Entry]:
        from pyarrow.fs import FileSelector, FileType

        listed = self._system.get_file_info(FileSelector(self._own(directory)))
        return sorted(
            Entry(info.base_name, info.type == FileType.Directory, info.size or 0)
            for info in listed
            if info.type in (FileType.Directory, FileType.File)
        )

    def open(self, path: str) -> Opened:
        return _RemoteFile(self._system, self._own(path))

    def _own(self, path: str) -> str:
        assert path.startswith(self._root), "a place opens its own paths"
        return (self._prefix + path.removeprefix(self._root)) or "/"


@lru_cache(_KEPT)
def _remote(scheme: str, authority: str, access: Access) -> Place:
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise NoPlace(f"journals are not read through {scheme}://: mount it, or use one of {known}")
    try:
        from pyarrow import ArrowException
        from pyarrow import fs as arrow_fs
    except ImportError as error:
        raise NoPlace(f"{error.name} is not installed: pip install 'tandemmq[spark]'") from error

    root = f"{scheme}://{authority}"
    try:
        if SCHEMES[scheme] == "s3":
            return _Remote(arrow_fs.S3FileSystem(**_s3(authority, dict(access), os.environ)), root, authority)
        system, prefix = arrow_fs.FileSystem.from_uri(f"{SCHEMES[scheme]}://{authority}/")
    except (OSError, ArrowException, ValueError) as error:
        text = str(error).splitlines()[0]
        if "libhdfs" in text:
            text += "; it comes with Hadoop: set HADOOP_HOME, or ARROW_LIBHDFS_DIR, and CLASSPATH"
        elif "libjvm" in text:
            text += "; it comes with Java: set JAVA_HOME"
        raise NoPlace(f"{root} cannot be reached: {text}") from error
    return _Remote(system, root, str(prefix).rstrip("/"))


def _s3(bucket: str, access: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, object]:
    """Return the options of pyarrow's S3FileSystem. Settings of the bucket (fs.s3a.bucket.NAME.*) override general
    settings, which override the environment. Without settings, AWS's credential chain is used (environment, profile,
    instance)."""

    def setting(name: str, *variables: str) -> str | None:
        for key in (f"fs.s3a.bucket.{bucket}.{name}", f"fs.s3a.{name}"):
            if access.get(key):
                return access[key]
        return next((environment[variable] for variable in variables if environment.get(variable)), None)

    options: dict[str, object] = {
        "access_key": setting("access.key"),
        "secret_key": setting("secret.key"),
        "session_token": setting("session.token"),
        "region": setting("endpoint.region", "AWS_REGION", "AWS_DEFAULT_REGION"),
    }
    endpoint = setting("endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    if endpoint:
        scheme, separator, host = endpoint.rpartition("://")
        is_plain = setting("connection.ssl.enabled") == "false" if not separator else scheme == "http"
        options |= {"endpoint_override": host.rstrip("/"), "scheme": "http" if is_plain else "https"}
        options["force_virtual_addressing"] = setting("path.style.access") == "false"
    if (setting("aws.credentials.provider") or "").endswith("AnonymousAWSCredentialsProvider"):
        options["anonymous"] = True
    return {name: value for name, value in options.items() if value is not None}
