"""``tandemmq handover``: a planned change of master."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final, NamedTuple

import click

from tandemmq.cli.admin_call import call
from tandemmq.cli.answers import json_option
from tandemmq.cli.failures import EXIT_FAILED
from tandemmq.cli.status import NoBroker, NotABroker, admin_option, ask

#: Longer than the 30 s after which the broker itself gives up: its answer must arrive first.
HANDOVER_SECONDS_MAX: Final = 35.0
POLL_SECONDS: Final = 0.02
WAIT_SECONDS: Final = 10.0


class Successor(NamedTuple):
    """The broker that is master now."""

    successor: str
    epoch: int
    admin: str


@click.command()
@admin_option("Admin address of the master.")
@click.option("--to", metavar="NODE", help="In a replicated set: the next master. It must be connected and caught up.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0),
    default=WAIT_SECONDS,
    metavar="SECONDS",
    help="Time to wait for the next master; 0: only until the lock is free.",
)
@json_option
def handover(admin: str, to: str | None, wait_seconds: float, as_json: bool) -> None:
    """Make the master hand over, and show the new master and the duration.

    The master writes and answers received data, makes a checkpoint, releases the lock and stands by. For a while it
    does not take the lock; if no other broker takes it, it becomes master again, and the command ends with 1. If the
    broker is not master, the command ends with 3 and names the master.
    """
    began = time.monotonic()
    done = call(admin, "handover", {"to": to}, method="POST", seconds_max=HANDOVER_SECONDS_MAX)
    answer: dict[str, Any] = {
        "former": done["name"],
        "former_epoch": done["epoch"],
        "released_after_seconds": round(done["seconds"], 4),
    }
    successor = _await(admin, str(done["name"]), int(done["epoch"]), began, wait_seconds) if wait_seconds else None
    if successor is not None:
        answer |= successor._asdict() | {"seconds": round(time.monotonic() - began, 4)}
    click.echo(json.dumps(answer, indent=2) if as_json else _sentence(answer, wait_seconds))
    if wait_seconds and (successor is None or successor.successor == done["name"]):
        sys.exit(EXIT_FAILED)


def _sentence(answer: dict[str, Any], wait_seconds: float) -> str:
    former = answer["former"]
    released = f"{former} released the lock after {answer['released_after_seconds']:.3f} s"
    if "successor" not in answer:
        return f"{released}; no master was seen in {wait_seconds:g} s" if wait_seconds else released
    if answer["successor"] == former:
        return f"{released}; no other broker took it, so {former} is master again, of epoch {answer['epoch']}"
    return (
        f"{released}; {answer['successor']} is master of epoch {answer['epoch']} {answer['seconds']:.3f} s after the "
        f"request, at {answer['admin']}"
    )


def _await(admin: str, former: str, epoch: int, began: float, wait_seconds: float) -> Successor | None:
    """Return the next master, as the former one or the new one reports it; None if there is none in time."""
    while time.monotonic() - began < wait_seconds:
        seen = {admin: _status(admin)}
        holder = seen[admin].get("holder")
        if isinstance(holder, dict) and holder.get("name") != former and (place := holder.get("admin")):
            seen[place] = _status(place)
        for place, status in seen.items():
            if status.get("role") == "master" and status["epoch"] > epoch:
                return Successor(str(status.get("name") or place), int(status["epoch"]), place)
        time.sleep(POLL_SECONDS)
    return None


def _status(admin: str) -> dict[str, Any]:
    """Return the status, or an empty object if no broker answers."""
    try:
        return ask(admin)
    except (NoBroker, NotABroker):
        return {}
