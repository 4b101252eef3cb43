"""A store and the records of its clients, and the results of the pipeline's jobs for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from tandemmq.pipeline.jobs import JOBS
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Results, Sources
from tests.support.ledger.client import key_of
from tests.support.ledger.truth import Owner, Place, Truth, When, place_of

Row = dict[str, Any]
# Client and broker have the same clock; a time is truncated to milliseconds.
ROUNDED_MS: Final = 1


@dataclass
class Case:
    """A store, or several of one broker, with the records of its clients. ``session`` runs the jobs, which write into
    ``out``. ``is_whole``: no file was deleted since the start of the story. ``is_own``: TandemMQ wrote it."""

    session: Any
    stores: tuple[str, ...]
    truth: Truth
    out: Path
    is_whole: bool = True
    is_own: bool = True
    keys: dict[str, str] = field(default_factory=dict)  # message id -> key

    def __post_init__(self) -> None:
        self.keys = {id: key for key, ids in self.truth.ids.items() for id in ids}
        if self.truth.sent.keys() <= self.truth.ids.keys():
            return
        for row in self.table("messages"):  # STOMP and MQTT clients do not know the producer id
            self.keys[row["message_id"]] = row["key"]

    def run(self, job: str, *, stores: Sequence[str] = (), name: str = "", **options: Any) -> Summary:
        """Run a job; return its summary. ``name``: name of the output directory; default: that of the job."""
        run: Callable[..., Summary] = import_module(JOBS[job]).run
        return run(self.session, Sources(tuple(stores or self.stores)), str(self.out / (name or job)), **options)

    def table(self, name: str) -> list[Row]:
        """Return the rows of the data source for the stores."""
        return self.rows(Sources(self.stores).read(self.session, name), name)

    def rows(self, frame: Any, name: str) -> list[Row]:
        results = Results(self.session, str(self.out / "tables"))
        results.write(frame, name)
        return [_keyed(row) for row in read(results.written[name]) if is_of_a_client(row)]

    def named(self, rows: list[Row]) -> list[Row]:
        """Return the rows with the ``key`` of each message; an id that no client knows is its own key."""
        for row in rows:
            row["key"] = self.keys.get(row["message_id"], row["message_id"])
        return [row for row in rows if is_of_a_client(row)]

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield each journal file with its store, by file names only."""
        for store in self.stores:
            for path in sorted(Path(store).rglob("db-*.log")):
                if "quarantine" not in path.parts:
                    yield str(path.parent).removesuffix("/data-archive"), path


def read(path: str) -> list[Row]:
    found: list[Row] = pq.read_table(path).to_pylist()
    return found


def _keyed(row: Row) -> Row:
    if "properties" in row:
        row["key"] = key_of(dict(row["properties"] or ()), bytes(row["body"] or b"").decode())
    return row


def is_of_a_client(row: Row) -> bool:
    """Return whether the destination belongs to clients and not to the broker."""
    name = row.get("destination") or row.get("dlq") or ""
    return not name.startswith(("ActiveMQ.Advisory.", "ActiveMQ.MQTT."))


def owner_of(row: Row) -> Owner:
    return row["destination_type"], row["destination"], row["subscription"]


def place(row: Row) -> Place:
    return row["destination_type"], row["destination"]


def differs(what: str, found: Any, wanted: Any) -> Iterator[str]:
    """Yield one line for each difference; dicts are compared by key."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in {**found, **wanted}:
            yield from differs(f"{what} {key}", found.get(key), wanted.get(key))
    elif found != wanted:
        yield f"{what}: got {found}, expected {wanted}"


def outside(what: str, low: datetime | None, high: datetime | None, times: When) -> Iterator[str]:
    """Yield a line for each action whose time, between ``low`` and ``high``, is not possible by the client's times."""
    if low is None:
        yield f"{what}: no time is known"
    elif ms(low) > times[1] + ROUNDED_MS or (high is not None and ms(high) < times[0] - ROUNDED_MS):
        yield f"{what}: got {ms(low)} to {high and ms(high)}, the client says {times}"


def ms(time: datetime) -> int:
    """Return milliseconds since 1970. Times without a zone are UTC."""
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def stored(case: Case, rows: list[Row]) -> Iterator[str]:
    """Check the table messages: each message is there once, as it was sent."""
    found = Counter[tuple[Place, str]]()
    adds = [row for row in rows if row["command"] == "ADD_MESSAGE"]
    for row in adds:
        yield from _content(case, row)
        found[place(row), row["key"]] += 1
    if case.is_whole:
        wanted = case.truth.stored()
        for what in found:
            # Prepared messages are written again when they are moved.
            if what[1] in case.truth.optional or (what[1] in case.truth.branched and wanted[what]):
                wanted[what] = found[what]
        yield from differs("stored", dict(found), {what: count for what, count in wanted.items() if count})


def _content(case: Case, row: Row) -> Iterator[str]:
    where = f"{row['key']} in {row['destination']}"
    line = case.truth.sent.get(row["key"])
    if line is None:
        yield f"{where} is no persistent message of a client"
        return
    properties = dict(row["properties"] or ())
    cause = properties.pop("dlqDeliveryFailureCause", None)
    kind = {"message": "none"}.get(line["kind"], line["kind"])
    yield from differs(f"kind of {where}", row["body_kind"], kind)
    yield from differs(f"body of {where}", row["body"], line["body"].encode() or None)
    yield from differs(f"text of {where}", row["text"], line["body"] if kind == "text" else None)
    yield from differs(f"priority of {where}", row["priority"], line["priority"])
    yield from differs(f"persistent of {where}", row["persistent"], True)
    wanted = line["properties"]
    yield from differs(f"properties of {where}", {name: properties.get(name) for name in wanted}, wanted)
    if place(row) == place_of(line):
        yield from differs(f"cause of {where}", cause, None)
        expires = None if row["expires"] is None else ms(row["expires"])
        least, most = line["expires"] or (None, None)
        if expires != least and not (expires and least and least <= expires <= most):
            yield f"expires of {where}: got {expires}, expected {line['expires']}"
    known = case.truth.ids.get(row["key"], {row["message_id"]})
    if row["message_id"] not in known:
        yield f"id of {where}: got {row['message_id']}, the client saw {known}"
