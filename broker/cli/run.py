"""``tandemmq run``: a broker in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import sys

import click

from broker.cli.log_lines import LineFormatter
from broker.cli.options import WrongSettings, settings_options
from config.errors import SettingsError
from config.settings import Settings
from index.errors import IndexTrouble
from journal.errors import JournalError
from locker.contract import LockError, LockSettingsError, UnknownLocker
from store.filters import StoresClash
from store.follow import JournalLost
from store.records.errors import RecordDamaged
from store.volume import UnsafeVolume

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


@click.command()
@settings_options
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
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
    from broker.hung_threads import end_despite_them
    from broker.wiring import run_broker

    code = 1
    try:
        run_broker(settings)
        code = 0
    except (LockSettingsError, UnknownLocker, SettingsError) as error:
        raise WrongSettings(str(error)) from error
    except (
        OSError,
        LockError,
        JournalError,
        JournalLost,
        RecordDamaged,
        IndexTrouble,
        StoresClash,
        UnsafeVolume,
    ) as error:
        logging.getLogger(__name__).error("the broker ends: %s", error)
        sys.exit(code)
    finally:
        end_despite_them(code)
