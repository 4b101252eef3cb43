"""The data directory that a command is about: is it one, who holds it, and the lock for those that write."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from broker.locking import make_locker
from config.locker import LockerSettings
from config.settings import Settings
from journal.files import JournalFiles, file_id
from journal.format import FILE_LENGTH_DEFAULT
from locker.contract import Holder, Locker, LockError, LockRequest, LockUnavailable
from locker.shared_file import SharedFileLocker
from store.headers import Chronicle
from store.inspect import read_headers
from store.several.layout import stores_in
from store.why.inventory import file_named
from tandemmq.disk import irregular
from tandemmq.modes import made_like

LOCK = "lock"
DIRECTORY = click.Path(exists=True, file_okay=False)


class WrongDirectory(click.UsageError):
    """The directory is none that the command can work on: exit code 2, like any wrong argument."""


def demand_journal(directory: str) -> None:
    """WrongDirectory unless there is a journal; NotRegular when something else has the name of a file of it."""
    demand_names(directory)
    files = JournalFiles(directory)
    for strange in irregular(map(files.path, files.list())):
        raise strange


def demand_names(directory: str) -> None:
    """WrongDirectory unless something there has the name of a journal file."""
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


def known_files(directory: str) -> Chronicle:
    """What the headers of a journal say. Ends the command when it has none of ours: a broker takes it over first."""
    demand_journal(directory)
    chronicle = read_headers(JournalFiles(directory))
    if not chronicle.headers:
        raise click.ClickException(
            f"the journal in {directory} is ActiveMQ's, and was not taken over yet: start a broker on it, or import it"
        )
    return chronicle


def file_length(chronicle: Chronicle) -> int:
    """How long journal files get here, in bytes: as long as the newest that a rotation began, for an epoch's first file
    begins short. KahaDB's default where there is none."""
    rotated = [file for file, header in chronicle.headers.items() if header.reason == "rotation" and header.length]
    return chronicle.headers[max(rotated)].length if rotated else FILE_LENGTH_DEFAULT


def journal_file(text: str) -> int:
    """The id in db-87.log, db-87 or 87. Raises BadParameter for anything else."""
    number = file_named(os.path.basename(text))
    if number is None:
        raise click.BadParameter(f"{text!r} is no journal file: db-87.log, db-87 or 87 would be one")
    return number


def lock_place(directory: str) -> str:
    """Where the lock of a store lies: one of several stores of a broker has that of the directory above."""
    parent = os.path.dirname(os.path.abspath(directory))
    if not os.path.lexists(os.path.join(directory, LOCK)) and os.path.lexists(os.path.join(parent, LOCK)):
        return parent
    return directory


def holder_of(directory: str) -> Holder | None:
    """Who holds the lock file of a directory; None: nobody. It is looked at, not touched."""
    place = lock_place(directory)
    if not os.path.lexists(os.path.join(place, LOCK)):
        return None
    try:
        return SharedFileLocker(LockRequest(directory=place, holder=Holder(name="tandemmq store"))).holder()
    except LockUnavailable as error:
        raise click.ClickException(str(error)) from error


def demand_unheld(directory: str, instead: str) -> None:
    """Refuse with exit code 1 while a broker is master there, naming it; ``instead`` says what may be done."""
    holder = holder_of(directory)
    if holder is not None:
        raise click.ClickException(f"{directory} is in use by {holder}: {instead}")


@contextmanager
def locked(
    directory: str, command: str, settings: Settings | None = None, instead: str = "stop it first"
) -> Iterator[Callable[[], bool]]:
    """Hold the lock of a directory as a master would, by the kind in ``settings``, else the lock file.

    Gives the question whether it is still ours, for ``OfflineStore(has_proof=...)``; any thread may ask it. What is
    made meanwhile is open to those to whom the directory is. When somebody else holds the lock the command ends with
    exit code 1, naming the holder.
    """
    with made_like(directory):
        locker = _locker(lock_place(directory), command, settings)
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


def _locker(directory: str, command: str, settings: Settings | None) -> Locker:
    said = LockerSettings() if settings is None else settings.locker  # type: ignore[call-arg]
    return make_locker(said, directory, f"tandemmq-{command.replace(' ', '-')}", fail_if_locked=False)


def _keep(locker: Locker, has_ended: threading.Event) -> None:
    """Prove ownership again and again; what cannot be proved grows old, and ``has_proof`` says no."""
    period = locker.settings.lock_keep_alive_period_seconds
    while period > 0 and not has_ended.wait(period):
        try:
            if not locker.keep_alive():
                return
        except LockUnavailable:
            continue
