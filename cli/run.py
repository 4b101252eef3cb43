"""``tandemmq run``: a broker in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import sys

import click

from tandemmq import log_events
from tandemmq.broker.admin.events import NameInUse
from tandemmq.cli import imported
from tandemmq.cli.config import WrongSettings, read_again, settings_options
from tandemmq.config.errors import SettingsError
from tandemmq.config.secrets import secrets_in
from tandemmq.config.settings import Settings
from tandemmq.index.errors import IndexTrouble
from tandemmq.journal.errors import JournalError
from tandemmq.locker.contract import LockError, LockSettingsError, UnknownLocker
from tandemmq.modes import whose
from tandemmq.store.membership import BelongsToSet
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.recovery.follow import JournalLost
from tandemmq.store.several.filters import StoresClash
from tandemmq.store.volume import UnsafeVolume

_OF_STORES = (JournalError, JournalLost, RecordDamaged, IndexTrouble, StoresClash, UnsafeVolume, BelongsToSet)


@click.command()
@settings_options
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Lowest level that is logged (logging.level).",
)
def run(settings: Settings, log_level: str | None) -> None:
    """Run a broker.

    If the lock of the store directory is free, it becomes master; else it stands by and takes over when the master
    ends. SIGTERM and Ctrl-C hand over: waiting data is written, and the lock is released last.
    """
    imported("tandemmq.broker.run")
    from tandemmq.broker.ha.stall_detector import end_despite_them
    from tandemmq.broker.process.log import Log
    from tandemmq.broker.run import run_broker

    settings = _with_level(log_level, settings)
    read = read_again()
    try:
        log = Log(settings.logging, int(settings.store.file_mode, 8), set(secrets_in(settings.model_dump())))
    except SettingsError as error:
        raise WrongSettings(str(error)) from error
    code = 1
    try:
        run_broker(settings, lambda: _with_level(log_level, read()), log)
        code = 0
    except (LockSettingsError, UnknownLocker, SettingsError, NameInUse) as error:
        raise WrongSettings(str(error)) from error
    except (OSError, LockError, *_OF_STORES, *_of_sets()) as error:
        owner = whose(error) if isinstance(error, OSError) else ""
        logging.getLogger(__name__).error("the broker ends: %s%s", error, owner, extra=log_events.ENDED_BY_FAILURE)
        sys.exit(code)
    finally:
        log.close()
        end_despite_them(code)


def _of_sets() -> tuple[type[Exception], type[Exception]]:
    """Return the errors of a node of a set, whose modules another broker does not import."""
    from tandemmq.broker.replication.promise import PromiseFileInUse, PromiseUnknown

    return PromiseFileInUse, PromiseUnknown


def _with_level(level: str | None, settings: Settings) -> Settings:
    """Return the settings with the option's level, which overrides the setting."""
    return settings if level is None else settings.with_level(level)
