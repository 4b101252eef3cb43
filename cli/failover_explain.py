"""``tandemmq failover explain``: the timeline of the last failover, with the duration of each phase."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import click

from tandemmq.broker.admin.events import (
    CAPACITY,
    SUFFIX,
    Clock,
    Event,
    Moment,
    event_of,
    moment_of,
    read_ring,
    rings_in,
)
from tandemmq.cli.admin import DEFAULT_ADMIN, NoBroker, NotABroker, admins_option, ask, ask_around
from tandemmq.cli.failover_timeline import MEANING, PHASES, Happening, Outage, Reading, merge, outages
from tandemmq.cli.failures import Unreachable
from tandemmq.cli.output import json_option, say_each
from tandemmq.config.section import milliseconds

#: Requests that compare a broker's clock with the local one; the one with the shortest round trip counts.
CLOCK_QUESTIONS: Final = 3
#: An uncertainty of a clock above this is reported.
DOUBT_SECONDS: Final = 0.02


def _since(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Convert a TIME option to seconds before now."""
    if value is None:
        return None
    try:
        return milliseconds(value) / 1000
    except ValueError:
        pass
    try:
        return max(0.0, (datetime.now().astimezone() - datetime.fromisoformat(value).astimezone()).total_seconds())
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a time like 10min nor one like 2026-11-21T18:40") from None


@click.group()
def failover() -> None:
    """Explain changes of masters."""


@failover.command()
@admins_option(f"Admin address of a broker; repeatable. Default: {DEFAULT_ADMIN}, unless --data is given.")
@click.option(
    "--data",
    "directories",
    metavar="DIR",
    multiple=True,
    help="Data or index directory with the events of brokers that do not answer.",
)
@click.option("--last", type=click.IntRange(1), default=1, help="Number of outages, the latest.")
@click.option(
    "--since", callback=_since, metavar="TIME", help="All outages since then: 10min (ago), or 2026-11-21T18:40."
)
@json_option
def explain(
    admins: tuple[str, ...], directories: tuple[str, ...], last: int, since: float | None, as_json: bool
) -> None:
    """Explain the last outage: which broker ended, why, which one took over, and the duration of each phase.

    Merges the events of all named brokers, of their masters and of all members of a replicated set into one timeline,
    and corrects clock differences. Ends with 3 if no broker answers and no events are found.
    """
    if not admins and not directories:
        admins = (DEFAULT_ADMIN,)
    readings, complaints = _ask_all(admins)
    readings += _from_files(directories, {reading.name for reading in readings}, complaints)
    if not readings:
        raise Unreachable("\n".join(complaints) or f"no events of a broker in {', '.join(directories)}")
    say_each("", complaints, is_error=True)
    here = Clock().now()
    happenings, notes = merge(readings, here)
    found = outages(happenings)
    found = found[-last:] if since is None else [one for one in found if here.boot_seconds - one.began <= since]
    doubtful = (reading for reading in readings if reading.doubt > DOUBT_SECONDS)
    notes += [f"the clock of {reading.name} is known to {reading.doubt:.3f} s" for reading in doubtful]
    if as_json:
        brokers = [{"name": reading.name, "source": reading.source} for reading in readings]
        shown = [_as_json(one, here) for one in found]
        click.echo(json.dumps({"outages": shown, "brokers": brokers, "notes": notes}, indent=2, default=str))
        return
    for one in found:
        click.echo("\n".join(_lines(one, here)))
        click.echo()
    if not found:
        names = " and ".join(reading.name for reading in readings)
        click.echo(f"the events of {names} show no change of masters{' since then' if since is not None else ''}")
    say_each("note: ", notes)


# ---- where events come from


def _ask_all(admins: Sequence[str]) -> tuple[list[Reading], list[str]]:
    """Return the events of all brokers that answer and of their masters, and an error text for each of the others."""
    answers, complaints = ask_around([*admins, *_members(admins)], _ask)
    readings: dict[str, Reading] = {}
    for _, reading in answers:
        readings.setdefault(reading.name, reading)  # one broker by two addresses is one
    return list(readings.values()), complaints


def _members(admins: Sequence[str]) -> list[str]:
    """Return the admin addresses of the other members of a set; none for brokers without a set."""
    found: list[str] = []
    for admin in admins:
        try:
            members = ask(admin, "replication").get("members", ())
        except (NoBroker, NotABroker):
            continue  # the request for its events reports why
        found += [each["admin"] for each in members if each.get("admin") and each.get("is_linked")]
    return [admin for admin in dict.fromkeys(found) if admin not in admins]


def _ask(admin: str) -> tuple[Reading, str | None]:
    clock = Clock()
    answer = ask(admin, "events")
    asked: list[tuple[float, float, Moment]] = []
    for _ in range(CLOCK_QUESTIONS):
        before = clock.now().boot_seconds
        now = moment_of(ask(admin, "events?last=0").get("now"))
        if now is None:
            raise NotABroker(f"{admin} answers without its clocks: is that a broker's admin address?")
        asked.append((before, clock.now().boot_seconds, now))
    before, after, now = min(asked, key=lambda times: times[1] - times[0])
    entries, earlier = list(answer.get("events", ())), answer.get("earlier")
    for _ in range(CAPACITY):
        if earlier is None:
            break
        page = ask(admin, f"events?before={earlier}")
        entries, earlier = [*page["events"], *entries], page["earlier"]
    events = tuple(event for entry in entries if (event := event_of(entry)) is not None)
    master = answer.get("holder")
    further = master.get("admin") if isinstance(master, dict) else None
    return Reading(str(answer.get("name", admin)), admin, events, now, before, after), further


def _from_files(directories: Sequence[str], known: set[str], complaints: list[str]) -> list[Reading]:
    """Return the events of brokers that did not answer, from their files."""
    readings: list[Reading] = []
    for directory in directories:
        for path in rings_in(directory):
            if os.path.basename(path).removesuffix(SUFFIX) in known:
                continue
            try:
                ring = read_ring(path)
            except OSError as error:
                complaints.append(f"{path}: {error.strerror} (errno {error.errno})")
                continue
            if ring is not None and ring.name not in known:
                known.add(ring.name)
                events: tuple[Event, ...] = ring.events if ring.end is None else (*ring.events, ring.end)
                readings.append(Reading(ring.name, path, events))
    return readings


# ---- words


def _wall(time: float, here: Moment) -> datetime:
    return datetime.fromtimestamp(here.wall_ms / 1000 + (time - here.boot_seconds)).astimezone()


def _clock_time(time: float, here: Moment) -> str:
    return _wall(time, here).strftime("%H:%M:%S.%f")[:-3]


def _lines(outage: Outage, here: Moment) -> Iterator[str]:
    day = _wall(outage.began, here).strftime("%Y-%m-%d")
    former = "?" if outage.former is None else f"{outage.former} (epoch {outage.former_epoch})"
    yield (
        f"outage of {outage.seconds:.3f} s on {day} at {_clock_time(outage.began, here)}: "
        f"{former} -> {outage.successor} (epoch {outage.epoch})"
    )
    yield f"  {outage.cause}"
    for phase in PHASES:
        seconds = outage.phases[phase]
        shown = "      –  " if seconds is None else f"{seconds:9.3f}"
        yield f"  {phase:<14}{shown} s  {MEANING[phase]}"
    whole = outage.seconds_until_receipt
    if whole is not None:
        yield f"  {whole:.3f} s until a message was confirmed, the time that clients took included"
    if outage.last_receipt is not None and outage.first_receipt is not None:
        yield (
            f"  last receipt at {_clock_time(outage.last_receipt, here)}, "
            f"the next {outage.first_receipt - outage.last_receipt:.3f} s later"
        )
    yield ""
    width = max((len(happening.broker) for happening in outage.happenings), default=0)
    for happening in outage.happenings:
        yield f"  {_line(happening, outage, here, width)}"


def _line(happening: Happening, outage: Outage, here: Moment, width: int) -> str:
    facts = ", ".join(
        f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in happening.event.facts.items()
        if value not in (None, "") and not name.endswith(("_at_boot", "_boot_seconds"))
    )
    mark = " " if happening.is_certain else "~"
    at = f"{_clock_time(happening.time, here)} {mark}{happening.time - outage.began:+9.3f}"
    return f"{at}  {happening.broker:<{width}}  {happening.event.kind:<15}{facts}".rstrip()


def _as_json(outage: Outage, here: Moment) -> dict[str, Any]:
    def at(time: float | None) -> str | None:
        return None if time is None else _wall(time, here).isoformat(timespec="milliseconds")

    whole = outage.seconds_until_receipt
    names = ("former", "former_epoch", "successor", "epoch")
    return {name: getattr(outage, name) for name in names} | {
        "began": at(outage.began),
        "seconds": round(outage.seconds, 4),
        "seconds_until_receipt": None if whole is None else round(whole, 4),
        "phases": {phase: None if seconds is None else round(seconds, 4) for phase, seconds in outage.phases.items()},
        "cause": outage.cause,
        "last_receipt": at(outage.last_receipt),
        "first_receipt": at(outage.first_receipt),
        "events": [
            {
                "at": at(happening.time),
                "seconds": round(happening.time - outage.began, 4),
                "broker": happening.broker,
                "kind": happening.event.kind,
                "epoch": happening.event.epoch,
                "is_certain": happening.is_certain,
                "facts": dict(happening.event.facts),
            }
            for happening in outage.happenings
        ],
    }
