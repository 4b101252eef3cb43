"""Checks before a start for errors that would stop it: one list, for `tandemmq run` and `tandemmq config check`.

A check creates nothing, takes no lock, and contacts no other program. It yields a sentence for each warning, and an
error for each problem that stops the start, or raises the error. The order is that of the operator's file.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import combinations, islice
from typing import Final, NamedTuple

from tandemmq.broker.core.access import OpenAccess
from tandemmq.broker.ha.locks import make_locker
from tandemmq.broker.net.server import addresses_of, bound_sockets
from tandemmq.broker.process.log import demand_log
from tandemmq.broker.security.setup import access_of, tls_of, tls_of_admin, tls_of_set
from tandemmq.broker.settings.engine import engine_settings
from tandemmq.broker.settings.policies import policies_of
from tandemmq.broker.settings.replication import security_token, zk_password
from tandemmq.broker.wiring import bridges_of, demand_tracing, expiries_of, filters_of
from tandemmq.config.errors import RefusedSetting, SettingsError, SeveralWrong
from tandemmq.config.settings import Settings
from tandemmq.disk import kind_of
from tandemmq.journal.files import JournalFiles
from tandemmq.locker.contract import LockSettingsError, UnknownLocker
from tandemmq.locker.shared_file import SharedFileLocker
from tandemmq.modes import groups, mending, nearest, who_may, wider
from tandemmq.store.membership import BelongsToSet, demand_no_set
from tandemmq.store.several.filters import StoresClash
from tandemmq.store.several.layout import path_of, stores_in
from tandemmq.store.volume import Concern, UnsafeVolume, demand_safe

Finding = str | Exception
Check = Callable[[Settings], Iterator[Finding]]

#: Errors that an operator can correct; all others are errors of the broker.
_EXPECTED: Final = (SettingsError, LockSettingsError, UnknownLocker, StoresClash, BelongsToSet, UnsafeVolume, OSError)
# Maximum number of files of the store whose permissions are checked at the start.
LOOKED_AT_MAX: Final = 1_000


def findings(settings: Settings) -> list[Finding]:
    """Return all findings of the checks. Blocks: reads files and resolves names."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            found += check(settings)
        except _EXPECTED as error:
            found.append(error)
    return found


def demand(settings: Settings) -> list[str]:
    """Return the warnings. Raises the error that stops the start: SeveralWrong if several settings do."""
    found = findings(settings)
    errors = [each for each in found if isinstance(each, Exception)]
    wrong = [each for error in errors if isinstance(error, SettingsError) for each in error.all]
    if len(wrong) > 1:
        raise SeveralWrong(wrong)
    for error in (*wrong, *errors):
        raise error
    return [each for each in found if isinstance(each, str)]


def in_use(settings: Settings) -> Iterator[Finding]:
    """Yield ports that cannot be bound now. `run` does not check this beforehand: it binds them. A port in use is only
    a warning: a broker that runs with these settings uses it."""
    for listener in _listeners(settings):
        try:
            for each in bound_sockets(listener.host, listener.port):
                each.close()
        except socket.gaierror:
            continue  # found before (_ports)
        except OSError as error:
            reason = f"cannot bind {listener.host}:{listener.port}: {error.strerror or error}"
            if error.errno == errno.EADDRINUSE:
                yield f"{listener.uri}: {reason}. `run` fails if this is not the broker with these settings"
            else:
                yield RefusedSetting(listener.key, listener.uri, reason, settings.origin(listener.key))


def expiring(settings: Settings) -> list[str]:
    """Return a sentence for each certificate and revocation list that expired or soon does. `run` logs them, too, each
    day."""
    made = [tls_of(each, settings) for each in settings.connectors] + [tls_of_admin(settings)]
    found = expiries_of(settings, [each for each in made if each is not None])
    found.refresh()
    return found.sentences()


# ---- the checks


def _policies(settings: Settings) -> Iterator[Finding]:
    engine_settings(settings)
    policies_of(settings)
    filters_of(settings)
    yield from ()


def _users(settings: Settings) -> Iterator[Finding]:
    access = access_of(settings)
    if not isinstance(access, OpenAccess):
        access.close()
    yield from ()


def _tls(settings: Settings) -> Iterator[Finding]:
    makers: list[Callable[[], object]] = [partial(tls_of, each, settings) for each in settings.connectors]
    makers.append(partial(tls_of_admin, settings))
    if settings.replication is not None:
        makers.append(partial(tls_of_set, settings.replication, settings.tls))
    for make in makers:
        try:
            make()
        except RefusedSetting as error:
            yield error


def _set(settings: Settings) -> Iterator[Finding]:
    if settings.replication is not None:
        security_token(settings.replication)
        zk_password(settings.replication)
    yield from ()


def _lock(settings: Settings) -> Iterator[Finding]:
    if settings.replication is not None:
        return  # a set has no other lock
    locker = make_locker(settings.locker, _directory(settings), settings.broker.name)
    if locker.unsafe is not None:
        yield f"unsafe: {locker.unsafe}"
    if isinstance(locker, SharedFileLocker):
        kind = kind_of(locker.path)
        reason = f"is {kind}, no regular file" if kind else _not_open(locker.path, os.R_OK | os.W_OK)
        if reason is not None:
            yield OSError(f"{locker.where} cannot be locked: {reason}")


def _bridges(settings: Settings) -> Iterator[Finding]:
    """Check the files of bridges. They are read at each connect: a missing file delays a bridge, but not the broker."""
    bridges_of(settings, lambda topic, size: 0)
    for number, each in enumerate(settings.bridges):
        for key, path in (
            ("password_file", each.password_file),
            ("tls.ca", each.tls.ca),
            ("tls.certificate", each.tls.certificate),
            ("tls.key", each.tls.key),
            ("tls.key_password_file", each.tls.key_password_file),
        ):
            if path is not None and not os.access(path, os.R_OK, effective_ids=True):
                yield f"bridges[{number}].{key} = {path!r}: cannot be read now; the bridge {each.name} needs it"


def _tracing(settings: Settings) -> Iterator[Finding]:
    demand_tracing(settings)
    yield from ()


def _log(settings: Settings) -> Iterator[Finding]:
    demand_log(settings.logging)
    yield from ()


def _directories(settings: Settings) -> Iterator[Finding]:
    """Check the directories that a broker needs, and those that only a part of its work needs."""
    store = settings.store
    index_root = store.index_directory
    if index_root is None and os.path.lexists(default := os.path.join(store.directory, "index")):
        index_root = default
    needed = {"store.directory": store.directory, "store.index_directory": index_root}
    if settings.locker.type == SharedFileLocker.kind:
        needed["locker.directory"] = settings.locker.directory
    for key, path in needed.items():
        reason = None if path is None else _not_usable(path)
        if reason is not None:
            # Not a wrong setting: a volume that is mounted late may be there at the next start.
            yield OSError(f"{key} = {path!r}: {reason}")
    wanted = {
        "store.directory_archive": settings.store.directory_archive if settings.store.archive_data_logs else None,
        "admin.backup_directory": settings.admin.backup_directory,
    }
    for key, path in wanted.items():
        reason = None if path is None else _not_usable(path)
        if reason is not None:
            yield f"{key} = {path!r}: {reason}"


def _journal(settings: Settings) -> Iterator[Finding]:
    """Check existing files of the journal: the newest of each store is synced, the others are read. The store itself
    checks a name that is not a regular file: in some cases it waits until the name is gone."""
    directory = _directory(settings)
    if not os.path.isdir(directory) or _not_usable(directory) is not None:
        return
    for name in stores_in(directory):
        files = JournalFiles(path_of(directory, name))
        paths = [files.path(file) for file in files.list()]
        for path in paths[-LOOKED_AT_MAX:]:
            reason = _not_open(path, os.R_OK | os.W_OK if path == paths[-1] else os.R_OK)
            if reason is not None:
                yield OSError(f"{path}: {reason}")


def _not_open(path: str, access: int) -> str | None:
    """Return why a broker cannot open the file ``path``; None: it can. The file may not exist yet, or a master may
    remove it meanwhile. ``access`` as for ``os.access``."""
    if os.access(path, access, effective_ids=True) or not os.path.exists(path):
        return None
    return f"it cannot be {'read and written' if access & os.W_OK else 'read'}: {who_may(path)}"


def _not_usable(path: str) -> str | None:
    """Return why a broker cannot keep files in the directory ``path``, which may have to be created; None: it can."""
    found = nearest(path)
    if not os.path.isdir(found):
        return f"{found} is not a directory"
    if not os.access(found, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        return f"it cannot be written: {who_may(found)}"
    return None


class _Listener(NamedTuple):
    """Address that the broker listens on. ``is_dual``: an IPv6 socket of all interfaces also takes IPv4."""

    key: str
    uri: str
    host: str
    port: int
    is_dual: bool = True

    @property
    def places(self) -> set[tuple[socket.AddressFamily, str]]:
        """Family and address of each socket. Raises OSError."""
        found = {(family, str(where[0])) for family, _, _, _, where in addresses_of(self.host, self.port)}
        # The address is compared, and not bound here
        if self.is_dual and (socket.AF_INET6, "::") in found:
            found.add((socket.AF_INET, "0.0.0.0"))  # nosec B104
        return found


def _listeners(settings: Settings) -> Iterator[_Listener]:
    for number, each in enumerate(settings.connectors):
        yield _Listener(f"connectors[{number}].uri", each.uri, each.address.host, each.address.port, is_dual=False)
    admin, replication = settings.admin.address, settings.replication
    if admin is not None:
        yield _Listener("admin.uri", settings.admin.uri, admin.host, admin.port)
    if replication is not None:
        bind = replication.bind_address
        yield _Listener("replication.bind", replication.bind, bind.host, bind.port)


def _ports(settings: Settings) -> Iterator[Finding]:
    """Check that the ports differ. Linux lets sockets with SO_REUSEADDR share a port until one listens: both of a
    broker would be bound, and the second would fail when the broker is master."""
    places = {}
    for listener in _listeners(settings):
        try:
            places[listener] = listener.places
        except OSError as error:
            reason = f"{listener.host} cannot be resolved: {error.strerror or error}"
            yield RefusedSetting(listener.key, listener.uri, reason, settings.origin(listener.key))
    for (one, its), (other, theirs) in combinations(places.items(), 2):
        if one.port and one.port == other.port and _overlap(its, theirs):
            reason = f"{one.key} = {one.uri!r} has this port"
            yield RefusedSetting(other.key, other.uri, reason, settings.origin(other.key))


_ANY: Final = frozenset(("0.0.0.0", "::"))  # nosec B104


def _overlap(some: set[tuple[socket.AddressFamily, str]], others: set[tuple[socket.AddressFamily, str]]) -> bool:
    return any(
        family == its and (address == where or not _ANY.isdisjoint((address, where)))
        for family, address in some
        for its, where in others
    )


def _volume(settings: Settings) -> Iterator[Finding]:
    directory = _directory(settings)
    if settings.replication is None:
        demand_no_set(directory)
    places = {directory: {Concern.FENCE, Concern.DURABILITY}}
    if settings.locker.type == SharedFileLocker.kind:
        places.setdefault(settings.locker.directory or directory, set()).add(Concern.LOCK)
    for place, concerns in places.items():
        yield from demand_safe(place, settings.store.ignore_unsafe_volume, concerns=concerns)


def _open_to_others(settings: Settings) -> Iterator[Finding]:
    """Check for existing files that are open to more users than ``file_mode`` allows."""
    directory, mode = _directory(settings), settings.store.file_mode
    if not os.path.isdir(directory):
        return
    with closing(os.scandir(directory)) as entries:
        names = [directory, *(each.path for each in islice(entries, LOOKED_AT_MAX))]
    if settings.store.index_directory is not None:
        names.insert(1, settings.store.index_directory)
    found = list(dict.fromkeys(wider(names, int(mode, 8))))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        text = f"{found[0]}{more}: open to more users than store.file_mode {mode} allows"
        yield f"{text}; to repair it: {mending([directory, *found], int(mode, 8), os.geteuid(), groups())}"


def _directory(settings: Settings) -> str:
    return os.path.abspath(settings.store.directory)


CHECKS: Final[tuple[Check, ...]] = (
    _ports,
    _directories,
    _volume,
    _open_to_others,
    _lock,
    _journal,
    _set,
    _log,
    _tracing,
    _tls,
    _users,
    _policies,
    _bridges,
)
