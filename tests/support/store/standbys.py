"""Standbys, and promotions step by step."""

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
    """Return a standby for this directory."""
    return Standby(directory, f"{directory}/index", broker, settings, disk=cast(Disk, disk), **others)


def follow_to_end(standby: Standby) -> None:
    """Follow a master that continues to remove files: the removal of a file during a read ends this read."""
    standby.follow()
    while not standby.follower.has_caught_up:
        standby.follow()


def begin(standby: Standby, **options: Any) -> Store:
    """Write the header of a promotion that has published its fence and read the journal; no loop runs."""
    return standby.begin(
        has_proof=lambda: True,
        call_soon=lambda _: None,
        call_later=lambda _, function: None,
        on_lost=lambda _: None,
        **options,
    )


def fence_and_die(directory: str, broker: str, settings: StoreSettings = SMALL) -> None:
    """Begin a promotion that ends after its fence, without a header."""
    standby = standby_of(directory, broker, settings)
    standby.fence(lambda: True)
    standby.close()


def publish_next(directory: str, broker: str = "b") -> None:
    """Create the file after the last one, as another master does."""
    files = JournalFiles(directory)
    files.prepare(broker, 4096)
    files.publish(broker, files.list()[-1] + 1)
