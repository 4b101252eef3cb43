"""Checks of the jobs about the life of each message: latency, pins, at and replay."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import Final

from tandemmq.pipeline.sending.request import ALL, UNACKNOWLEDGED, ReplayRequest
from tests.support.ledger.case import ROUNDED_MS, Case, Row, differs, is_of_a_client, outside, owner_of, place, read
from tests.support.ledger.truth import ACKED, DEAD, DELETED, EXPIRED, LIVE, Life, Owner, Place, place_of

_SHARES: Final = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
_WINDOWED: Final = ("enqueued", "acked", "gone")


def latency(case: Case) -> Iterator[str]:
    summary = case.run("latency", window_seconds=1)
    yield from differs("clean", summary.is_clean, True)
    rows = case.named(read(summary.written["lifecycle"]))
    found: dict[tuple[Owner, str], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["added_lo"] is None, row["added_lo"])):
        if row["state"] != "unmatched_ack":
            found[owner_of(row), row["key"]].append(row)
    wanted: dict[tuple[Owner, str], list[Life]] = defaultdict(list)
    for life in case.truth.lives:
        wanted[life.owner, life.key].append(life)
    if not case.is_whole:  # nothing is known of messages in deleted files
        for which in case.truth.skipped:
            found.pop(which, None)
        wanted = {which: all for which, all in wanted.items() if which in found or all[-1].state == LIVE}
    if not case.is_own:  # ActiveMQ's record does not contain the reason of a removal
        for which in found.keys() & wanted.keys():
            for row, life in zip(found[which], wanted[which], strict=False):
                if (row["state"], life.state) == ("removed", EXPIRED):
                    row["state"] = EXPIRED
    yield from differs(
        "states of",
        {which: [row["state"] for row in all] for which, all in found.items()},
        {which: [life.state for life in all] for which, all in wanted.items()},
    )
    if not case.is_whole:
        return
    for which, all in found.items():
        for row, life in zip(all, wanted.get(which, ()), strict=False):
            yield from outside(f"{which} was stored", row["added_lo"], row["added_hi"], life.added)
            if life.gone is not None and row["state"] == life.state:
                yield from outside(f"{which} went", row["ack_lo"], row["ack_hi"], life.gone)
    by_place = case.truth.by_place()
    yield from _totals(by_place, read(summary.written["destinations"]))
    sums: dict[Place, Counter[str]] = defaultdict(Counter)
    for row in read(summary.written["destination_stats"]):
        if is_of_a_client(row):
            sums[place(row)].update({name: row[name] for name in _WINDOWED})
    in_windows = {where: Counter({name: _counts(all)[name] for name in _WINDOWED}) for where, all in by_place.items()}
    yield from differs("sums of the windows of", dict(sums), in_windows)


def _counts(lives: Sequence[Life]) -> dict[str, int]:
    states = Counter(life.state for life in lives)
    gone = states[EXPIRED] + states[DEAD] + states[DELETED]
    return {"enqueued": len(lives), "acked": states[ACKED], "gone": gone, "backlog": states[LIVE], "unmatched": 0}


def _totals(by_place: dict[Place, list[Life]], rows: list[Row]) -> Iterator[str]:
    """Check the table ``destinations``: counts, and latencies within the limits by the client's times."""
    found = {place(row): row for row in rows}
    yield from differs("destinations", sorted(found), sorted(by_place))
    for where, row in found.items():
        counts = _counts(by_place.get(where, ()))
        yield from differs(f"counts of {where}", {name: row[name] for name in counts}, counts)
        taken = [(life.gone, life.added) for life in by_place.get(where, ()) if life.state == ACKED and life.gone]
        if row["unbounded"] or row["acked"] != len(taken) or not taken:
            continue
        least = sorted(max(0, gone[0] - added[1]) for gone, added in taken)
        most = sorted(gone[1] - added[0] for gone, added in taken)
        error = row["interval_error_ms"] + 2 * ROUNDED_MS
        for name, share in _SHARES.items():
            rank = max(0, ceil(share * len(taken)) - 1)
            if row[name] + error < least[rank] or row[name] - error > most[rank]:
                yield f"{name} of {where}: got {row[name]} +-{error}, the client says {least[rank]} to {most[rank]}"


def pins(case: Case) -> Iterator[str]:
    summary = case.run("pins")
    yield from differs("clean", summary.is_clean, True)
    found: Counter[Owner] = Counter()
    for row in read(summary.written["pins"]):
        if row["reason"] == "message" and is_of_a_client(row):
            found[owner_of(row)] += row["items"]
    wanted = {owner: len(keys) for owner, keys in case.truth.held().items()}
    yield from differs("live messages of", dict(found), wanted)
    for row in read(summary.written["file_verdicts"]):
        if row["live_messages"] and not row["is_held"] and row["state"] != "tail":
            yield f"file {row['file']} holds {row['live_messages']} messages, and nothing holds it"


def at(case: Case) -> Iterator[str]:
    """Check the job at, for a moment of the story, and for its end."""
    moments = sorted(case.truth.moments) if case.is_whole else []
    for moment in moments[len(moments) // 2 :][:1]:
        time = datetime.fromtimestamp(moment / 1000, UTC)
        yield from _contents(case, time, case.truth.moments[moment])
    yield from _contents(case, datetime.now(UTC), case.truth.held(), is_end=True)


def _contents(case: Case, time: datetime, wanted: dict[Owner, list[str]], *, is_end: bool = False) -> Iterator[str]:
    summary = case.run("at", time=time, with_bodies=True)
    yield from differs("clean", summary.is_clean, True)
    rows = case.named(read(summary.written["contents"]))
    found: dict[Owner, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row["order_file"], row["order_offset"], row["order_number"] or 0)):
        found.setdefault(owner_of(row), []).append(row["key"])
        line = case.truth.sent.get(row["key"])
        yield from differs(f"body of {row['key']}", row["body"], line and (line["body"].encode() or None))
    # Letters that expired together have no defined order.
    yield from differs(
        f"at {time} in",
        {owner: sorted(keys) if "DLQ" in owner[1] else keys for owner, keys in found.items()},
        {owner: sorted(keys) if "DLQ" in owner[1] else keys for owner, keys in wanted.items()},
    )
    totals = [row for row in read(summary.written["totals"]) if is_of_a_client(row)]
    counts = {owner: len(keys) for owner, keys in found.items()}
    yield from differs("totals of", {owner_of(row): row["messages"] for row in totals}, counts)
    if is_end:
        doubted = {(life.owner, life.key): True for life in case.truth.lives if life.is_doubted}
        marked = {(owner_of(row), row["key"]): True for row in rows if row["is_in_doubt"]}
        yield from differs("in doubt", marked, doubted)


def replay(case: Case) -> Iterator[str]:
    """Check a dry run of replay: the messages that it would send, and the reasons for the others. With ALL only expired
    ones are left out."""
    truth = case.truth
    for only, held, gone in ((ALL, "send", "send"), (UNACKNOWLEDGED, "send", "acknowledged")):
        request = ReplayRequest(only=only, is_expired_sent=only == UNACKNOWLEDGED)
        summary = case.run("replay", request=request, name=f"replay-{only}")
        rows = read(summary.written["replay_selection"])
        found = {(row["destination"], row["key"]): row["fate"] for row in case.named(rows)}
        fates = {"held": held, "gone": gone}
        wanted = {}
        for key, line in truth.sent.items():
            fate = truth.fate(key)
            is_expired = line["expires"] is not None and only == ALL and fate in fates
            wanted[place_of(line)[1], key] = "expired" if is_expired else fates.get(fate, fate)
        wanted |= {(life.owner[1], life.key): fates["held" if life.state == LIVE else "gone"] for life in truth.letters}
        for which in [which for which in wanted if which[1] in truth.optional and which not in found]:
            del wanted[which]
        if not case.is_whole:
            wanted = {
                which: fate
                for which, fate in wanted.items()
                if which in found or (fate == "send" and only == UNACKNOWLEDGED)
            }
        yield from differs(f"fate ({only}) of", found, wanted)
        sent = [row for row in rows if row["fate"] == "send" and not is_of_a_client(row)]
        yield from differs(f"sent ({only}) of a broker", [row["destination"] for row in sent], [])
