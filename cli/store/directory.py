"""The data directory of a command: checks of its content, its holder, and the lock for commands that write."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from tandemmq.broker.ha.locks import make_locker
from tandemmq.config.locker import LockerSettings
from tandemmq.config.settings import Settings
from tandemmq.disk import irregular
from tandemmq.index.errors import IndexTrouble
from tandemmq.journal.errors import JournalError
from tandemmq.journal.files import JournalFiles, file_id
from tandemmq.journal.format import FILE_LENGTH_DEFAULT
from tandemmq.locker.contract import Holder, Locker, LockError, LockRequest, LockUnavailable
from tandemmq.locker.shared_file import SharedFileLocker
from tandemmq.modes import made_like
from tandemmq.store.damage.report import JournalLost
from tandemmq.store.membership import BelongsToSet, demand_no_set
from tandemmq.store.migration.contents import NotTransferable
from tandemmq.store.records.errors import RecordDamaged, Unencodable
from tandemmq.store.records.headers import EpochHistory
from tandemmq.store.recovery.rebuild import NotRebuilt
from tandemmq.store.several.layout import stores_in
from tandemmq.store.tools.backup import BackupFailed
from tandemmq.store.tools.inspect import read_headers
from tandemmq.store.tools.why.inventory import file_named
from tandemmq.store.writer.journal_end import NoProof

LOCK = "lock"
DIRECTORY = click.Path(exists=True, file_okay=False)


# Problems of a store that are no bugs.
FAILURES = (
    *(JournalError, IndexTrouble, JournalLost, RecordDamaged, Unencodable),
    *(NotTransferable, NoProof, NotRebuilt, BackupFailed),
)


@contextmanager
def failures_reported(advice: str = "") -> Iterator[None]:
    """End the command with exit code 1 and a sentence when the block fails because of the store or the volume.
    ``advice`` is added to failures of the store."""
    try:
        yield
    except FAILURES as error:
        raise click.ClickException(f"{error}{advice}") from error
    except OSError as error:
        raise click.ClickException(str(error)) from error


class WrongDirectory(click.UsageError):
    """The command cannot work on this directory: exit code 2, like any wrong argument."""


def demand_journal(directory: str) -> None:
    """Raise WrongDirectory if there is no journal, NotRegular if one of its files is not regular."""
    demand_names(directory)
    files = JournalFiles(directory)
    for strange in irregular(map(files.path, files.list())):
        raise strange


def demand_names(directory: str) -> None:
    """Raise WrongDirectory if no file has the name of a journal file."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise WrongDirectory(f"{directory} cannot be read: {error.strerror or error}") from error
    if any(file_id(name) is not None for name in names):
        return
    below = [os.path.join(directory, name) for name in stores_in(directory)]
    if below:
        raise WrongDirectory(f"{directory} holds several stores, name one of them: {', '.join(below)}")
    raise WrongDirectory(f"{directory} holds no journal: there is no file db-1.log, db-2.log, ... in it")


def known_files(directory: str) -> EpochHistory:
    """Return the headers of a journal. Ends the command when it has no header of TandemMQ: a broker must take it over
    first."""
    demand_journal(directory)
    epoch_history = read_headers(JournalFiles(directory))
    if not epoch_history.headers:
        raise click.ClickException(
            f"the journal in {directory} is ActiveMQ's, and was not taken over yet: start a broker on it, or import it"
        )
    return epoch_history


def file_length(epoch_history: EpochHistory) -> int:
    """Return the length of journal files here, in bytes: the length of the newest file that a rotation began, because
    the first file of an epoch begins short. Without such a file, return KahaDB's default."""
    rotated = [file for file, header in epoch_history.headers.items() if header.reason == "rotation" and header.length]
    return epoch_history.headers[max(rotated)].length if rotated else FILE_LENGTH_DEFAULT


def journal_file(text: str) -> int:
    """Parse the id in db-87.log, db-87 or 87. Raises BadParameter for anything else."""
    number = file_named(os.path.basename(text))
    if number is None:
        raise click.BadParameter(f"{text!r} is no journal file: expected a name such as db-87.log, db-87 or 87")
    return number


def lock_place(directory: str) -> str:
    """Return the directory of a store's lock: one of several stores of a broker uses that of the directory above."""
    parent = os.path.dirname(os.path.abspath(directory))
    if not os.path.lexists(os.path.join(directory, LOCK)) and os.path.lexists(os.path.join(parent, LOCK)):
        return parent
    return directory


def holder_of(directory: str) -> Holder | None:
    """Return the holder of a directory's lock file, or None if it is free. Reads only."""
    place = lock_place(directory)
    if not os.path.lexists(os.path.join(place, LOCK)):
        return None
    try:
        return SharedFileLocker(LockRequest(directory=place, holder=Holder(name="tandemmq store"))).holder()
    except LockUnavailable as error:
        raise click.ClickException(str(error)) from error


def demand_unheld(directory: str, instead: str) -> None:
    """Refuse with exit code 1 while a broker is master there, and name it. ``instead``: advice for the user."""
    holder = holder_of(directory)
    if holder is not None:
        raise click.ClickException(f"{directory} is in use by {holder}: {instead}")


def demand_single(directory: str) -> None:
    """Refuse with exit code 1 the directory of a member of a replicated set."""
    try:
        demand_no_set(lock_place(directory))
        demand_no_set(directory)
    except BelongsToSet as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def locked(
    directory: str, command: str, settings: Settings | None = None, instead: str = "stop it first"
) -> Iterator[Callable[[], bool]]:
    """Hold the lock of a directory as a master would, by the kind in ``settings``, else the lock file.

    Yields a function that returns whether the lock is still ours, for ``OfflineStore(has_proof=...)``; any thread may
    call it. New files get the access rights of the directory. If another process holds the lock, the command ends with
    exit code 1 and names the holder. The directory of a member of a set is refused.
    """
    demand_single(directory)
    with made_like(directory):
        options = LockerSettings() if settings is None else settings.locker  # type: ignore[call-arg]
        name = f"tandemmq-{command.replace(' ', '-')}"
        locker = make_locker(options, lock_place(directory), name, fail_if_locked=False)
        try:
            if not locker.try_acquire():
                raise click.ClickException(f"{directory} is in use by {locker.holder() or 'another broker'}: {instead}")
        except LockError as error:
            raise click.ClickException(str(error)) from error
        has_ended = threading.Event()
        keeper = threading.Thread(target=_keep, args=(locker, has_ended), daemon=True)
        keeper.start()
        try:
            yield lambda: locker.proof().holds_at(locker.clock.now())
        finally:
            has_ended.set()
            keeper.join()
            locker.release()


def _keep(locker: Locker, has_ended: threading.Event) -> None:
    """Renew the proof of ownership periodically. Without renewal it expires, and ``has_proof`` returns False."""
    period = locker.settings.lock_keep_alive_period_seconds
    while period > 0 and not has_ended.wait(period):
        try:
            if not locker.keep_alive():
                return
        except LockUnavailable:
            continue
