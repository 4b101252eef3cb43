"""``tandemmq handover``: let the other broker be master, as planned."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final, NamedTuple

import click

from broker.cli.status import DEFAULT_ADMIN, EXIT_FAILED, NoBroker, Stranger, admin_url, ask
from broker.cli.store.admin import call

#: The broker itself gives up after 30 s; its answer is to come before ours is given up.
HANDOVER_SECONDS_MAX: Final = 35.0
POLL_SECONDS: Final = 0.02
WAIT_SECONDS: Final = 10.0


class Successor(NamedTuple):
    """Who is master now."""

    name: str
    epoch: int
    admin: str


@click.command()
@click.option(
    "--admin", metavar="URL", default=DEFAULT_ADMIN, show_default=True, callback=admin_url, help="The master's address."
)
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0),
    default=WAIT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="For the next master; 0: only until the lock is free.",
)
@click.option("--json", "as_json", is_flag=True, help="For a machine.")
def handover(admin: str, wait_seconds: float, as_json: bool) -> None:
    """Have the master hand over, and tell who took over and how long it took.

    The master writes what it was given, answers it, makes a checkpoint and lets the lock go; then it stands by. For a
    while it leaves the lock to others; when nobody takes it, it is master again, and this ends with 1. Asked of a
    broker that is not master it ends with 3 and names the one that is.
    """
    began = time.monotonic()
    done = call(admin, "handover", {}, is_post=True, seconds_max=HANDOVER_SECONDS_MAX)
    answer: dict[str, Any] = {
        "former": done["name"],
        "former_epoch": done["epoch"],
        "released_after_seconds": round(done["seconds"], 4),
    }
    successor = _await(admin, str(done["name"]), int(done["epoch"]), began, wait_seconds) if wait_seconds else None
    seconds = time.monotonic() - began
    if successor is not None:
        answer |= {
            "successor": successor.name,
            "epoch": successor.epoch,
            "admin": successor.admin,
            "seconds": round(seconds, 4),
        }
    click.echo(json.dumps(answer, indent=2) if as_json else _sentence(answer, wait_seconds))
    if wait_seconds and (successor is None or successor.name == done["name"]):
        sys.exit(EXIT_FAILED)


def _sentence(answer: dict[str, Any], wait_seconds: float) -> str:
    former = answer["former"]
    released = f"{former} let the lock go after {answer['released_after_seconds']:.3f} s"
    if "successor" not in answer:
        return f"{released}; no master was seen in {wait_seconds:g} s" if wait_seconds else released
    if answer["successor"] == former:
        return f"{released}; nobody took it, so {former} is master again, of epoch {answer['epoch']}"
    return (
        f"{released}; {answer['successor']} is master of epoch {answer['epoch']} {answer['seconds']:.3f} s after the "
        f"handover was asked for, at {answer['admin']}"
    )


def _await(admin: str, former: str, epoch: int, began: float, wait_seconds: float) -> Successor | None:
    """The next master, wherever the former one sees it; None when there is none in time."""
    while time.monotonic() - began < wait_seconds:
        for place in (admin, _holder_admin(admin, former)):
            status = None if place is None else _status(place)
            if place is not None and status is not None and status["role"] == "master" and status["epoch"] > epoch:
                return Successor(str(status["name"]), int(status["epoch"]), place)
        time.sleep(POLL_SECONDS)
    return None


def _holder_admin(admin: str, former: str) -> str | None:
    """Where the one answers whom the former master stands by for."""
    holder = (_status(admin) or {}).get("holder")
    if not isinstance(holder, dict) or holder.get("name") == former:
        return None
    return holder.get("admin") or None


def _status(admin: str) -> dict[str, Any] | None:
    try:
        return ask(admin)
    except (NoBroker, Stranger):
        return None
