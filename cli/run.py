"""``tandemmq run``: a broker in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import sys

import click

from tandemmq.broker.replication.promise import PromiseFileInUse, PromiseUnknown
from tandemmq.cli.log_lines import LineFormatter
from tandemmq.cli.options import WrongSettings, read_again, settings_options
from tandemmq.config.errors import SettingsError
from tandemmq.config.settings import Settings
from tandemmq.index.errors import IndexTrouble
from tandemmq.journal.errors import JournalError
from tandemmq.locker.contract import LockError, LockSettingsError, UnknownLocker
from tandemmq.store.membership import BelongsToSet
from tandemmq.store.records.errors import RecordDamaged
from tandemmq.store.recovery.follow import JournalLost
from tandemmq.store.several.filters import StoresClash
from tandemmq.store.volume import UnsafeVolume

_OF_STORES = (JournalError, JournalLost, RecordDamaged, IndexTrouble, StoresClash, UnsafeVolume, BelongsToSet)
_OF_SETS = (PromiseFileInUse, PromiseUnknown)
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


@click.command()
@settings_options
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="How much is logged, on stderr.",
)
def run(settings: Settings, log_level: str) -> None:
    """Run a broker.

    It is master when the lock of the store directory is free; else it stands by and takes over when the master
    goes. SIGTERM and Ctrl-C hand over: what is waiting is written, and the lock is released last.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(LOG_FORMAT))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    from tandemmq.broker.ha.hung_threads import end_despite_them
    from tandemmq.broker.run import run_broker

    code = 1
    try:
        run_broker(settings, read_again())
        code = 0
    except (LockSettingsError, UnknownLocker, SettingsError) as error:
        raise WrongSettings(str(error)) from error
    except (OSError, LockError, *_OF_STORES, *_OF_SETS) as error:
        logging.getLogger(__name__).error("the broker ends: %s", error)
        sys.exit(code)
    finally:
        end_despite_them(code)
