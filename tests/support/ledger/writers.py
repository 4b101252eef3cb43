"""The brokers and clients that write the stores for the tests of the pipeline's jobs.

There is no store of ActiveMQ with an MQTT client: ActiveMQ delivers persistent messages of STOMP to an MQTT session
with QoS 0, and also messages published while it was not subscribed, so the expected content does not follow from the
client's records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.ledger.stores import SETTINGS
from tests.support.ledger.truth import Truth

_SEVERAL: Final = """\
[[store.filtered_persistence_adapters]]
queue = "slow.>"
[[store.filtered_persistence_adapters]]
queue = "prices"
[[store.filtered_persistence_adapters]]
"""
_NO_ARCHIVE: Final = SETTINGS.replace("archive_data_logs = true", "archive_data_logs = false")


@dataclass(frozen=True)
class Writer:
    """``protocol``: that of the client. ``options``: settings of TandemMQ, or arguments of LedgerBroker. ``is_whole``:
    no file is deleted. ``is_sample``: CI runs jobs with its store; a proof runs all jobs with all stores."""

    protocol: str
    options: tuple[str, ...] = ()
    is_whole: bool = True
    is_sample: bool = False


@dataclass(frozen=True)
class Written:
    """Stores, and their expected content."""

    stores: tuple[str, ...]
    truth: Truth
    is_whole: bool
    is_own: bool

    @property
    def directory(self) -> Path:
        return Path(self.stores[0])


WRITERS: Final = {
    "tandemmq-mqtt": Writer("mqtt", (SETTINGS,), is_sample=True),
    "tandemmq-xa": Writer("jms", (SETTINGS,), is_sample=True),
    "tandemmq-stomp": Writer("stomp", (SETTINGS,)),
    "tandemmq-compacted": Writer("jms", (_NO_ARCHIVE,), is_whole=False),
    "tandemmq-several": Writer("jms", (SETTINGS + _SEVERAL,)),
    "tandemmq-set": Writer("jms", is_whole=False),
    "activemq-stomp": Writer("stomp"),
    "activemq-xa": Writer("jms", ("archive",)),
    "activemq-compacted": Writer("jms", ("compact",), is_whole=False),
    "activemq-several": Writer("jms", ("several",), is_sample=True),
    "activemq-6-xa": Writer("jms", ("archive",)),
    "activemq-6-compacted": Writer("stomp", ("compact",), is_whole=False),
    "activemq-6-several": Writer("jms", ("several",)),
}
#: Writers that need no other program.
OWN: Final = "tandemmq-mqtt"


def needs_java(writer: str) -> bool:
    return writer.startswith("activemq") or WRITERS[writer].protocol == "jms"
