"""Each job of the pipeline, held against a book. A check gives what differs, in words; nothing where all is true."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from tandemmq.pipeline.jobs import JOBS, archive
from tandemmq.pipeline.jobs.summary import Summary
from tandemmq.pipeline.jobs.tables import Results, Sources
from tandemmq.pipeline.sending.request import UNACKNOWLEDGED, ReplayRequest
from tests.support.ledger.story import key_of
from tests.support.ledger.truth import ACKED, DEAD, DELETED, EXPIRED, LIVE, Life, Owner, Truth

Row = dict[str, Any]
# The client's clock and the broker's are one; a time is cut to milliseconds.
ROUNDED_MS: Final = 1
# What docs/pipeline-jobs.md says of letters without a cause.
NO_CAUSE: Final = "no cause was written"


@dataclass
class Case:
    """A store, or several that one broker has, with the book of its clients. ``session`` runs the jobs.

    ``is_whole``: no file was deleted since the story began. ``has_clock``: the journal shows the time of removes.
    """

    session: Any
    stores: tuple[str, ...]
    truth: Truth
    out: Path
    is_whole: bool = True
    keys: dict[str, str] = field(default_factory=dict)  # message id -> key

    def __post_init__(self) -> None:
        self.keys = {id: key for key, ids in self.truth.ids.items() for id in ids}
        for row in self.table("messages"):
            self.keys[row["message_id"]] = _key(row)

    def run(self, job: str, *, stores: Sequence[str] = (), name: str = "", **options: Any) -> Summary:
        run: Callable[..., Summary] = import_module(JOBS[job]).run
        return run(self.session, Sources(tuple(stores or self.stores)), str(self.out / (name or job)), **options)

    def table(self, name: str) -> list[Row]:
        """What the data source gives of the stores."""
        results = Results(self.session, str(self.out / "tables"))
        results.write(Sources(self.stores).read(self.session, name), name)
        found: list[Row] = pq.read_table(results.written[name]).to_pylist()
        return [row for row in found if not row.get("destination") or _is_own(row)]

    def named(self, rows: list[Row]) -> list[Row]:
        """With the ``key`` of each row's message."""
        for row in rows:
            row["key"] = self.keys.get(row["message_id"], row["message_id"])
        return rows


def _key(row: Row) -> str:
    return key_of(dict(row["properties"] or ()), bytes(row["body"] or b"").decode())


def check(case: Case, job: str) -> list[str]:
    return list(_CHECKS[job](case))


def _rows(summary: Summary, table: str) -> list[Row]:
    found: list[Row] = pq.read_table(summary.written[table]).to_pylist()
    return found


def _differs(what: str, found: Any, wanted: Any) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in {**found, **wanted}:
            yield from _differs(f"{what} {key}", found.get(key), wanted.get(key))
    elif found != wanted:
        yield f"{what}: got {found}, expected {wanted}"


def _ms(time: datetime) -> int:
    return round(time.replace(tzinfo=UTC).timestamp() * 1000)


def _owner(row: Row) -> Owner:
    return row["destination_type"], row["destination"], row["subscription"]


def _is_own(row: Row) -> bool:
    """Whether a story touches the destination: brokers have some for themselves."""
    return not str(row["destination"]).startswith(("ActiveMQ.Advisory", "ActiveMQ.MQTT."))


# ---- the tables


def _messages(case: Case) -> Iterator[str]:
    """The data source: each message once, as it was sent."""
    yield from _stored(case, case.table("messages"))


def _stored(case: Case, rows: list[Row]) -> Iterator[str]:
    found = Counter[tuple[str, str]]()
    truth = case.truth
    for row in rows:
        if row["command"] != "ADD_MESSAGE":
            continue
        row["key"] = _key(row)
        yield from _content(case, row)
        found[row["destination"], row["key"]] += 1
    wanted = Counter({(_place(line["to"])[1], key): 1 for key, line in truth.sent.items() if key not in truth.undone})
    wanted.update((letter.owner[1], letter.key) for letter in truth.letters)
    # What was rolled back, or nobody wanted, may be there, or not.
    found, wanted = (
        {place: n for place, n in each.items() if place[1] not in truth.optional} for each in (found, wanted)
    )
    if case.is_whole:
        yield from _differs("stored", dict(found), dict(wanted))


def _content(case: Case, row: Row) -> Iterator[str]:
    line = case.truth.sent[row["key"]]
    where = f"{row['key']} in {row['destination']}"
    said = dict(row["properties"] or ())
    cause = said.pop("dlqDeliveryFailureCause", None)
    is_letter = row["destination"] != line["to"].partition("://")[2]
    yield from _differs(f"body of {where}", row["body"], line["body"].encode())
    yield from _differs(f"text of {where}", row["text"], line["body"] if line["is_text"] else None)
    yield from _differs(f"kind of {where}", row["body_kind"], "text" if line["is_text"] else "bytes")
    for name in ("priority", "persistent"):
        yield from _differs(f"{name} of {where}", row[name], line[name])
    yield from _differs(
        f"properties of {where}", {name: said.get(name) for name in line["properties"]}, line["properties"]
    )

    if not is_letter:
        expires = None if row["expires"] is None else _ms(row["expires"])
        least, most = line["expires"] or (None, None)
        if expires != least and not (expires and least and least <= expires <= most):
            yield f"expires of {where}: got {expires}, expected {line['expires']}"
        yield from _differs(f"cause of {where}", cause, None)
    known = case.truth.ids.get(row["key"], {row["message_id"]})
    if row["message_id"] not in known:
        yield f"id of {where}: got {row['message_id']}, the client saw {known}"


# ---- the jobs


def _composition(case: Case) -> Iterator[str]:
    summary = case.run("composition")
    sizes = {(store, int(path.stem[3:])): path.stat().st_size for store, path in _files(case)}
    found = {(row["store"], row["file"]): row["accounted"] for row in _rows(summary, "balance")}
    yield from _differs("bytes of", found, sizes)
    if not case.is_whole:
        return
    stored, removed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in _rows(summary, "composition"):
        place = row["destination_type"], row["destination"]
        if row["destination"] and _is_own(row):
            stored[place] += row["records"] if row["command"] == "ADD_MESSAGE" else 0
            removed[place] += row["records"] if row["command"] == "REMOVE_MESSAGE" else 0
    truth = case.truth
    optional = Counter(_place(truth.sent[key]["to"]) for key in truth.optional)
    sent = Counter(_place(line["to"]) for key, line in truth.sent.items() if key not in truth.optional)
    sent.update(letter.owner[:2] for letter in truth.letters)
    for place in stored:
        # Of what a broker may store or not it stored so many.
        if sent[place] < stored[place] <= sent[place] + optional[place]:
            sent[place] = stored[place]
    gone = Counter(
        life.owner[:2] for life in truth.lives if life.state in (ACKED, EXPIRED, DEAD) and life.owner[0] == "queue"
    )
    # What stands in branches may be written again, when it is prepared or moved.
    branched = {place for place in stored if truth.has_branches and stored[place] > sent[place]}
    yield from _differs(
        "messages stored in", *({p: n for p, n in each.items() if n and p not in branched} for each in (stored, sent))
    )
    of_queues = {
        place: count for place, count in removed.items() if count and place[0] == "queue" and place[1] != "branched"
    }
    gone.pop(("queue", "branched"), None)
    # ActiveMQ writes some removes twice.
    for place, count in gone.items():
        if of_queues.get(place, 0) < count:
            yield f"removed from {place}: got {of_queues.get(place)}, expected {count}"


def _place(url: str) -> tuple[str, str]:
    kind, _, name = url.partition("://")
    return kind, name


def _files(case: Case) -> Iterator[tuple[str, Path]]:
    for store in case.stores:
        for path in sorted(Path(store).rglob("db-*.log")):
            if "quarantine" not in path.parts:
                yield str(path.parent).removesuffix("/data-archive"), path


def _verify(case: Case) -> Iterator[str]:
    summary = case.run("verify")
    yield from _differs("clean", summary.is_clean, True)
    files = Counter(store for store, _ in _files(case))
    yield from _differs("files of", {row["store"]: row["files"] for row in _rows(summary, "checked")}, dict(files))
    yield from _differs("damaged bytes", sum(row["damaged_bytes"] for row in _rows(summary, "checked")), 0)
    yield from _differs("places of damage", [row for row in _rows(summary, "damage") if row["is_damage"]], [])


def _duplicates(case: Case) -> Iterator[str]:
    """Bodies alone are there twice: no client sends a message again under its id."""
    truth = case.truth
    sure, possible = Counter[tuple[tuple[str, str], str]](), Counter[tuple[tuple[str, str], str]]()
    places = [(_place(line["to"]), key) for key, line in truth.sent.items()]
    for place, key in (*places, *((letter.owner[:2], letter.key) for letter in truth.letters)):
        if body := truth.sent[key]["body"]:
            possible[place, body] += 1
            sure[place, body] += (place[0] == "queue" and "DLQ" in place[1]) or key not in truth.optional
    wanted = {("same_body", place, len(body)): count for (place, body), count in sure.items() if count > 1}
    most = {("same_body", place, len(body)): count for (place, body), count in possible.items()}
    found = {}
    for row in case.named(_rows(case.run("duplicates"), "duplicates")):
        what = row["kind"], (row["destination_type"], row["destination"]), row["body_bytes"]
        found[what] = row["copies"]
        if row["kind"] == "same_body" and wanted.get(what, 0) <= row["copies"] <= most.get(what, 0):
            wanted[what] = row["copies"]
    if case.is_whole:
        yield from _differs("copies", found, wanted)
    else:
        yield from _differs("ids that are there twice", [what for what in found if what[0] != "same_body"], [])


def _dlq(case: Case) -> Iterator[str]:
    summary = case.run("dlq")
    found = {}
    for row in case.named(_rows(summary, "dead_letters")):
        found[row["dlq"], row["key"]] = (row["original_destination"], row["cause"], row["is_there"])
    letters = {(life.owner[1], life.key): life for life in case.truth.letters}
    wanted = {place: (life.origin, life.cause or NO_CAUSE, life.state == LIVE) for place, life in letters.items()}
    if not case.is_whole:
        found = {place: told for place, told in found.items() if told[2]}
        wanted = {place: told for place, told in wanted.items() if told[2]}
    yield from _differs("letter", found, wanted)
    yield from _differs("clean", summary.is_clean, not any(life.state == LIVE for life in letters.values()))


def _latency(case: Case) -> Iterator[str]:
    summary = case.run("latency", window_seconds=1)
    lives = case.named([row for row in _rows(summary, "lifecycle") if _is_own(row) and row["state"] != "unmatched_ack"])
    found: dict[tuple[Owner, str], list[Row]] = defaultdict(list)
    for row in sorted(lives, key=lambda row: (row["added_lo"] is None, row["added_lo"])):
        found[_owner(row), row["key"]].append(row)
    wanted: dict[tuple[Owner, str], list[Life]] = defaultdict(list)
    for life in case.truth.lives:
        wanted[life.owner, life.key].append(life)
    if not case.is_whole:  # of what went with its file nothing is known
        for place in case.truth.skipped:
            found.pop(place, None)
        wanted = {place: all for place, all in wanted.items() if place in found or all[-1].state == LIVE}
    yield from _differs(
        "states of",
        {place: [row["state"] for row in rows] for place, rows in found.items()},
        {place: [life.state for life in all] for place, all in wanted.items()},
    )
    if not case.is_whole:
        return
    for place, rows in found.items():
        for row, life in zip(rows, wanted.get(place, ()), strict=False):
            yield from _outside(f"{place} was stored", row["added_lo"], row["added_hi"], life.added)
            if life.gone is not None and row["ack_hi"] is not None:
                yield from _outside(f"{place} went", row["ack_lo"], row["ack_hi"], life.gone)
    yield from _sums(case, [row for row in _rows(summary, "destinations") if _is_own(row)])
    stats: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in _rows(summary, "destination_stats"):
        if _is_own(row):
            stats[row["destination_type"], row["destination"]].update(
                {name: row[name] for name in ("enqueued", "acked", "gone")}
            )
    totals = {place: _counts(lives) for place, lives in _by_place(case.truth).items()}
    wanted_sums = {
        place: Counter({name: counts[name] for name in ("enqueued", "acked", "gone")})
        for place, counts in totals.items()
    }
    yield from _differs("sums of the windows of", dict(stats), wanted_sums)


def _outside(what: str, low: datetime | None, high: datetime | None, told: tuple[int, int]) -> Iterator[str]:
    if low is None:
        yield f"{what}: no time is known"
    elif _ms(low) > told[1] + ROUNDED_MS or (high is not None and _ms(high) < told[0] - ROUNDED_MS):
        yield f"{what}: got {_ms(low)} to {high and _ms(high)}, the client says {told}"


def _by_place(truth: Truth) -> dict[tuple[str, str], list[Life]]:
    found: dict[tuple[str, str], list[Life]] = defaultdict(list)
    for life in truth.lives:
        found[life.owner[:2]].append(life)
    return found


def _counts(lives: Sequence[Life]) -> dict[str, int]:
    states = Counter(life.state for life in lives)
    gone = states[EXPIRED] + states[DEAD] + states[DELETED]
    return {"enqueued": len(lives), "acked": states[ACKED], "gone": gone, "backlog": states[LIVE], "unmatched": 0}


def _sums(case: Case, rows: list[Row]) -> Iterator[str]:
    """The table ``destinations``: counts, and latencies within what the client's times allow."""
    by_place = _by_place(case.truth)
    found = {(row["destination_type"], row["destination"]): row for row in rows}
    for place, lives in by_place.items():
        row = found.pop(place, None)
        if row is None:
            yield f"{place} is missing"
            continue
        counts = _counts(lives)
        yield from _differs(f"counts of {place}", {name: row[name] for name in counts}, counts)
        taken = [(life.gone, life.added) for life in lives if life.state == ACKED and life.gone is not None]
        least = sorted(max(0, gone[0] - added[1]) for gone, added in taken)
        most = sorted(gone[1] - added[0] for gone, added in taken)
        if row["unbounded"] or not taken:
            continue
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("max_ms", 1.0)):
            rank = max(0, ceil(share * len(taken)) - 1)
            error = row["interval_error_ms"] + 2 * ROUNDED_MS
            if row[name] + error < least[rank] or row[name] - error > most[rank]:
                yield f"{name} of {place}: got {row[name]} +-{error}, the client says {least[rank]} to {most[rank]}"
    for place in found:
        yield f"{place} was never used"


def _pins(case: Case) -> Iterator[str]:
    summary = case.run("pins")
    found: Counter[Owner] = Counter()
    for row in _rows(summary, "pins"):
        if row["reason"] == "message" and _is_own(row):
            found[_owner(row)] += row["items"]
    yield from _differs(
        "live messages of", dict(found), {owner: len(keys) for owner, keys in case.truth.held().items()}
    )
    for row in _rows(summary, "file_verdicts"):
        if row["live_messages"] and not row["is_held"] and row["state"] != "tail":
            yield f"file {row['file']} holds {row['live_messages']} messages and nothing holds it"


def _at(case: Case) -> Iterator[str]:
    """At moments of the story, and at its end."""
    truth = case.truth
    moments = sorted(truth.moments) if case.is_whole else []
    chosen = {moments[len(moments) // 2]: truth.moments[moments[len(moments) // 2]]} if moments else {}
    for at, wanted in (*chosen.items(), (None, truth.held())):
        time = datetime.fromtimestamp(at / 1000, UTC) if at is not None else datetime.now(UTC)
        summary = case.run("at", time=time, with_bodies=True, name=f"at-{at}")
        found: dict[Owner, list[str]] = {}
        rows = [row for row in case.named(_rows(summary, "contents")) if _is_own(row)]
        for row in sorted(rows, key=lambda row: (row["order_file"], row["order_offset"], row["order_number"] or 0)):
            found.setdefault(_owner(row), []).append(row["key"])
        for owner in {*found, *wanted}:
            # Letters that expired together come in no particular order.
            known = sorted if "DLQ" in owner[1] else list
            yield from _differs(f"{owner} at {at}", known(found.get(owner, [])), known(wanted.get(owner, [])))
        if at is None:
            doubted = {(_owner(row), row["key"]) for row in rows if row["is_in_doubt"]}
            yield from _differs(
                "in doubt", doubted, {(life.owner, life.key) for life in truth.lives if life.is_doubted}
            )
        for row in rows:
            yield from _differs(f"body of {row['key']}", row["body"], truth.sent[row["key"]]["body"].encode())


def _replay(case: Case) -> Iterator[str]:
    """A dry run: which messages it would send, and why not the others."""
    truth = case.truth
    for only, fates in (
        (None, {"held": "send", "gone": "send", "rolled_back": "rolled_back", "in_doubt": "in_doubt"}),
        (
            UNACKNOWLEDGED,
            {"held": "send", "gone": "acknowledged", "rolled_back": "rolled_back", "in_doubt": "in_doubt"},
        ),
    ):
        summary = case.run("replay", request=ReplayRequest(only=only, is_expired_sent=True), name=f"replay-{only}")
        found = {}
        for row in case.named(_rows(summary, "replay_selection")):
            if not row["destination"].startswith("ActiveMQ.Advisory"):
                found[row["destination"], row["key"]] = row["fate"]
        wanted = {(_place(line["to"])[1], key): fates[truth.fate(key)] for key, line in truth.sent.items()}
        for life in truth.letters:
            wanted[life.owner[1], life.key] = fates["held" if life.state == LIVE else "gone"]
        for place in [place for place in wanted if place[1] in truth.optional and place not in found]:
            del wanted[place]
        if not case.is_whole:
            wanted = {place: fate for place, fate in wanted.items() if place in found or (fate == "send" and only)}
        yield from _differs(f"fate ({only}) of", found, wanted)


def _archive(case: Case) -> Iterator[str]:
    """The lake of all files: as an archive all of them are closed."""
    copies = []
    for store in case.stores:
        for owner, path in _files(case):
            if owner.startswith(store):
                target = (
                    case.out
                    / "closed"
                    / os.path.relpath(owner, Path(case.stores[0]).parent)
                    / "data-archive"
                    / path.name
                )
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
                copies.append(str(target.parent))
    lake = str(case.out / "lake")
    summary = case.run("archive", stores=sorted(set(copies)), name="lake")
    yield from _differs("clean", summary.is_clean, True)
    again = case.run("archive", stores=sorted(set(copies)), name="lake")
    results = Results(case.session, str(case.out / "tables"))
    results.write(archive.read(case.session, lake, "messages"), "lake")
    rows = [row for row in pq.read_table(results.written["lake"]).to_pylist() if _is_own(row)]
    yield from _stored(case, rows)
    del again


_CHECKS: Final[dict[str, Callable[[Case], Iterator[str]]]] = {
    "messages": _messages,
    "composition": _composition,
    "verify": _verify,
    "archive": _archive,
    "duplicates": _duplicates,
    "dlq": _dlq,
    "latency": _latency,
    "replay": _replay,
    "pins": _pins,
    "at": _at,
}
CHECKED: Final = tuple(_CHECKS)
