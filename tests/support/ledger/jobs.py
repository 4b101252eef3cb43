"""Checks of the pipeline's jobs against the clients' records. A check yields the differences as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

from tandemmq.pipeline.jobs import archive
from tests.support.ledger import lives
from tests.support.ledger.case import Case, differs, is_of_a_client, outside, place, read, stored
from tests.support.ledger.truth import ACKED, DEAD, EXPIRED, LIVE, Place, place_of

# Cause of letters without a cause, as in docs/pipeline-jobs.md.
NO_CAUSE: Final = "no cause was written"


def check(case: Case, job: str) -> list[str]:
    """Check a job. ``job``: one of CHECKED, the jobs and the table of messages."""
    return list(_CHECKS[job](case))


def _messages(case: Case) -> Iterator[str]:
    yield from stored(case, case.table("messages"))


def _archive(case: Case) -> Iterator[str]:
    """Check the lake of all files, which are closed because they are copied as an archive. Two runs give the same
    lake."""
    copies = set()
    for store, path in case.files():
        target = case.out / "closed" / Path(store).relative_to(Path(case.stores[0]).parent) / "data-archive"
        target.mkdir(parents=True, exist_ok=True)
        (target / path.name).write_bytes(path.read_bytes())
        copies.add(str(target))
    lake = str(case.out / "lake")
    for _ in range(2):
        summary = case.run("archive", stores=sorted(copies), name="lake")
        yield from differs("clean", summary.is_clean, True)
        yield from stored(case, case.rows(archive.read(case.session, lake, "messages"), "lake"))


def _composition(case: Case) -> Iterator[str]:
    """Check that each byte of each file is accounted for, and the number of records by the clients' actions."""
    summary = case.run("composition")
    yield from differs("clean", summary.is_clean, True)
    sizes = {(store, int(path.stem[3:])): path.stat().st_size for store, path in case.files()}
    yield from differs(
        "bytes of", {(row["store"], row["file"]): row["accounted"] for row in read(summary.written["balance"])}, sizes
    )
    if not case.is_whole:
        return
    found: dict[str, Counter[Place]] = {"ADD_MESSAGE": Counter(), "REMOVE_MESSAGE": Counter()}
    for row in read(summary.written["composition"]):
        if row["command"] in found and is_of_a_client(row):
            found[row["command"]][place(row)] += row["records"]
    truth = case.truth
    least = Counter[Place]()
    for (where, _), count in truth.stored().items():
        least[where] += count
    most = least + Counter(place_of(truth.sent[key]) for key in truth.optional if key in truth.sent)
    again = {place_of(truth.sent[key]) for key in truth.branched}  # they are written again when they are moved
    for where, count in found["ADD_MESSAGE"].items():
        if count > most[where] and where not in again:
            yield f"messages stored in {where}: got {count}, expected {most[where]} at most"
    yield from _less("messages stored in", found["ADD_MESSAGE"], least)
    gone = Counter(life.owner[:2] for life in truth.lives if life.state in (ACKED, EXPIRED, DEAD))
    yield from _less("removed from", found["REMOVE_MESSAGE"], gone)  # ActiveMQ writes some of them twice


def _less(what: str, found: Counter[Place], least: Counter[Place]) -> Iterator[str]:
    for where, count in least.items():
        if found[where] < count:
            yield f"{what} {where}: got {found[where]}, expected {count} at least"


def _verify(case: Case) -> Iterator[str]:
    summary = case.run("verify")
    yield from differs("clean", summary.is_clean, True)
    checked = read(summary.written["checked"])
    files = Counter(store for store, _ in case.files())
    yield from differs("files of", {row["store"]: row["files"] for row in checked}, dict(files))
    yield from differs("damaged bytes", sum(row["damaged_bytes"] for row in checked), 0)
    damage = [row for row in read(summary.written["damage"]) if row["is_damage"]]
    yield from differs("places of damage", damage, [])
    yield from differs("concerned", read(summary.written["concerned"]), [])


def _duplicates(case: Case) -> Iterator[str]:
    """Check the duplicates: only bodies are there twice, because no client sends a message again with its id."""
    truth = case.truth
    least, most = Counter[tuple[Place, str]](), Counter[tuple[Place, str]]()
    places = [(place_of(line), key) for key, line in truth.sent.items()]
    for where, key in (*places, *((letter.owner[:2], letter.key) for letter in truth.letters)):
        if body := truth.sent[key]["body"]:
            most[where, body] += 1
            is_sure = where != place_of(truth.sent[key]) or key not in truth.optional | truth.in_doubt
            least[where, body] += is_sure
    wanted = {("same_body", where, len(body)): count for (where, body), count in least.items() if count > 1}
    bounds = {("same_body", where, len(body)): count for (where, body), count in most.items()}
    summary = case.run("duplicates")
    found = {}
    for row in case.named(read(summary.written["duplicates"])):
        what = row["kind"], place(row), row["body_bytes"]
        found[what] = row["copies"]
        if wanted.get(what, 0) <= row["copies"] <= bounds.get(what, 0):
            wanted[what] = row["copies"]
    yield from differs("clean", summary.is_clean, True)
    if case.is_whole:
        yield from differs("copies", found, wanted)
    else:
        yield from differs("copies of ids and numbers", [what for what in found if what[0] != "same_body"], [])
    rows = read(summary.written["duplicates"])
    yield from differs("of a broker", [row["destination"] for row in rows if not is_of_a_client(row)], [])


def _dlq(case: Case) -> Iterator[str]:
    summary = case.run("dlq")
    rows = {(row["dlq"], row["key"]): row for row in case.named(read(summary.written["dead_letters"]))}
    letters = {(life.owner[1], life.key): life for life in case.truth.letters}
    wanted = {which: (life.origin, life.cause or NO_CAUSE, life.state == LIVE) for which, life in letters.items()}
    found = {which: (row["original_destination"], row["cause"], row["is_there"]) for which, row in rows.items()}
    if not case.is_whole:  # the files of messages taken since may be deleted
        found = {which: letter for which, letter in found.items() if letter[2]}
        wanted = {which: letter for which, letter in wanted.items() if letter[2]}
    yield from differs("letter", found, wanted)
    for which, life in letters.items():
        if which in found and (died := rows[which]["died"]) is not None:
            error = rows[which]["died_error_ms"]
            span = timedelta(milliseconds=error or 0)
            yield from outside(f"{which} died", died - span, None if error is None else died + span, life.added)
    yield from differs("clean", summary.is_clean, not any(life.state == LIVE for life in letters.values()))


_CHECKS: Final[dict[str, Callable[[Case], Iterator[str]]]] = {
    "messages": _messages,
    "composition": _composition,
    "verify": _verify,
    "archive": _archive,
    "duplicates": _duplicates,
    "dlq": _dlq,
    "latency": lives.latency,
    "replay": lives.replay,
    "pins": lives.pins,
    "at": lives.at,
}
CHECKED: Final = tuple(_CHECKS)
