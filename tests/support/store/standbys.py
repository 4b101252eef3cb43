"""Brokers that stand by, and promotions step by step."""

from __future__ import annotations

import os
from typing import Any, cast

from tandemmq.disk import Disk
from tandemmq.journal.files import JournalFiles
from tandemmq.store.settings import StoreSettings
from tandemmq.store.standby import Standby
from tandemmq.store.store import Store
from tests.support.store.store_harness import SMALL


def standby_of(
    directory: str, broker: str = "b", settings: StoreSettings = SMALL, *, disk: object = os, **others: Any
) -> Standby:
    """A broker beside the master of this directory."""
    return Standby(directory, f"{directory}/index", broker, settings, disk=cast(Disk, disk), **others)


def follow_to_end(standby: Standby) -> None:
    """Follow a master that goes on removing files: what is removed while it is read ends that reading."""
    standby.follow()
    while not standby.follower.has_caught_up:
        standby.follow()


def begin(standby: Standby, **options: Any) -> Store:
    """Write the header of a promotion that has put up its fence and has read; nobody runs its loop."""
    return standby.begin(
        has_proof=lambda: True,
        call_soon=lambda _: None,
        call_later=lambda _, function: None,
        on_lost=lambda _: None,
        **options,
    )


def fence_and_die(directory: str, broker: str, settings: StoreSettings = SMALL) -> None:
    """Begin a promotion that comes to nothing: its fence stands there without a header."""
    standby = standby_of(directory, broker, settings)
    standby.fence(lambda: True)
    standby.close()


def publish_next(directory: str, broker: str = "b") -> None:
    """Make the file behind the last, as another master does."""
    files = JournalFiles(directory)
    files.prepare(broker, 4096)
    files.publish(broker, files.list()[-1] + 1)
