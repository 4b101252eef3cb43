"""The master: `tandemmq lock status` shows it, its proof and the brokers that wait; `tandemmq handover` replaces it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tandemmq.cli.admin import DEFAULT_ADMIN, NoBroker, NotABroker, admin_option, admins_option, ask, ask_around, call
from tandemmq.cli.failures import EXIT_FAILED, Failed, Unreachable
from tandemmq.cli.output import json_option, print_facts, say_each
from tandemmq.cli.status import holder_in_words

if TYPE_CHECKING:
    from tandemmq.config.settings import Settings

#: Longest wait for a lock whose volume or database hangs.
LOCK_SECONDS_MAX: Final = 5.0
#: Longer than the 30 s after which the broker itself gives up: its answer must arrive first.
HANDOVER_SECONDS_MAX: Final = 35.0
POLL_SECONDS: Final = 0.02
WAIT_SECONDS: Final = 10.0

Answer = dict[str, Any]


@click.group()
def lock() -> None:
    """Show the lock that elects the master."""


@lock.command()
@admins_option(f"Admin address of a broker; repeat it to see all waiting brokers. Default: {DEFAULT_ADMIN}.")
@click.option("--config", metavar="FILE", help="Read the lock of these settings directly.")
@click.option("--data", metavar="DIR", help="Read the lock of this data directory directly.")
@click.option("--set", "overrides", metavar="SECTION.KEY=VALUE", multiple=True, help="Any setting; repeatable.")
@json_option
def status(
    admins: tuple[str, ...], config: str | None, data: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Show holder, epoch, the proof of ownership and its age, and waiting brokers.

    Queries the brokers, and also the holder if only a standby was named. With --config, --data or --set, if no --admin
    is given or none answers, reads the lock itself, and then queries its holder. Ends with 3 if there is nothing to
    query, with 1 if the lock does not answer.
    """
    from tandemmq.cli.config import load_settings
    from tandemmq.config.load import Flags

    has_settings = config is not None or data is not None or bool(overrides)
    # A broker at the default address may belong to another pair than these settings.
    answers, complaints = _ask_all(admins or (() if has_settings else (DEFAULT_ADMIN,)))
    if not answers and not has_settings:
        raise Unreachable("\n".join(complaints))
    if answers:
        say_each("", complaints, is_error=True)
    shown = merge(answers) if answers else _ask_lock_or_end(load_settings(config, overrides, Flags(data=data)))
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    else:
        _print(shown)


# ---- brokers


def _ask_all(admins: Sequence[str]) -> tuple[list[Answer], list[str]]:
    """Return the lock page of all that answer and of the holders that they name, and complaints about the others."""
    replies, complaints = ask_around(admins, _ask)
    answers: dict[object, Answer] = {}
    for admin, answer in replies:
        answers.setdefault(answer.get("name"), answer | {"admin": admin})  # one broker by two addresses is one
    return list(answers.values()), complaints


def _ask(admin: str) -> tuple[Answer, str | None]:
    answer = ask(admin, "lock")
    holder = answer.get("holder")
    return answer, (holder.get("admin") or None) if isinstance(holder, dict) else None


def merge(answers: Sequence[Answer]) -> Answer:
    """Merge the answers: the holder's answer counts most, and each waiting broker appears once."""
    holders = [answer for answer in answers if answer.get("is_ours")]
    first = (holders or list(answers))[0]
    waiting = {
        answer["name"]: {"name": answer["name"], "admin": answer["admin"]}
        for answer in answers
        if answer.get("role") == "standby"
    }
    told = [answer["waiters"] for answer in answers if answer.get("waiters") is not None]
    for waiter in (waiter for waiters in told for waiter in waiters):
        waiting.setdefault(waiter["name"], {"name": waiter["name"], "admin": waiter.get("admin")})
    keys = (
        "kind",
        "where",
        "holder",
        "holder_silent_seconds",
        "proof",
        "lease_seconds",
        "poll_seconds",
        "keep_alive_seconds",
        "unsafe",
    )
    shown = {key: first.get(key) for key in keys}
    shown["waiting"] = list(waiting.values())
    # Some kinds of lock list all waiting brokers; otherwise brokers that were not queried may wait, too.
    shown["all_waiting_are_known"] = bool(told)
    if len(holders) > 1:
        names = " and ".join(str(answer["name"]) for answer in holders)
        shown["unsafe"] = (
            f"{names} all report that they hold the lock; the fence decides, and all except one will be deposed"
        )
    return shown


# ---- the lock itself


def _ask_lock_or_end(settings: Settings) -> Answer:
    """Return the lock's answer, or its holder's if the lock gives an address for the holder."""
    from tandemmq.cli.config import WrongSettings
    from tandemmq.locker.contract import LockError, LockSettingsError

    try:
        shown = _ask_lock(settings)
    except LockSettingsError as error:
        raise WrongSettings(str(error)) from error
    except LockError as error:
        raise Failed(str(error)) from error
    holder = shown["holder"]
    answers, _ = _ask_all([holder["admin"]] if holder is not None and holder.get("admin") else [])
    return merge(answers) if any(answer["is_ours"] for answer in answers) else shown


def _ask_lock(settings: Settings) -> Answer:
    """Query the lock without taking part. LockError when it does not answer, after LOCK_SECONDS_MAX at most."""
    from tandemmq.broker.ha.locks import make_locker
    from tandemmq.locker.contract import LockError, LockUnavailable

    locker = make_locker(settings.locker, os.path.abspath(settings.store.directory), "tandemmq-lock-status")
    found: list[Answer] = []
    failed: list[LockError] = []

    def look() -> None:
        try:
            holder, waiters = locker.holder(), locker.waiters()
        except LockError as error:
            failed.append(error)
            return
        facts = None if holder is None else asdict(holder)
        waiting = [asdict(waiter) for waiter in waiters or ()]
        found.append({"holder": facts, "waiting": waiting, "all_waiting_are_known": waiters is not None})

    # A daemon thread, which the process does not wait for: a volume may hang for good.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(LOCK_SECONDS_MAX)
    if failed:
        raise failed[0]
    if not found:
        raise LockUnavailable(f"{locker.where} does not answer in {LOCK_SECONDS_MAX:g} s")
    return {
        "kind": settings.locker.type,
        "proof": None,
        "keep_alive_seconds": locker.settings.lock_keep_alive_period_seconds,
        **{name: getattr(locker, name) for name in ("where", "lease_seconds", "poll_seconds", "unsafe")},
        **found[0],
    }


# ---- words


def _print(shown: Answer) -> None:
    lines = [("lock", f"{shown['kind']}, {shown['where']}"), ("holder", _who(shown["holder"]))]
    if shown.get("holder_silent_seconds") is not None:
        silence = shown["holder_silent_seconds"]
        lines.append(("silent", f"the holder has shown no sign of life for {silence:.0f} s, and keeps the lock"))
    proof = shown["proof"]
    if proof is not None:
        holds = proof["holds_for_seconds"]
        ends = "and never ends" if holds is None else f"holds for {holds:.3f} s" if holds > 0 else "has expired"
        lines.append(("proof", f"{proof['age_seconds']:.3f} s old, {ends}"))
    if shown["lease_seconds"] is not None:
        lines.append(("lease", f"{shown['lease_seconds']:g} s"))
    waiting = [_who(waiter) for waiter in shown["waiting"]]
    none = "none" if shown["all_waiting_are_known"] else "none known; give the standbys with --admin"
    lines.append(("waiting", ", ".join(waiting) or none))
    if shown["unsafe"]:
        lines.append(("unsafe", str(shown["unsafe"])))
    print_facts(lines)


def _who(holder: Answer | None) -> str:
    return holder_in_words(holder, ("epoch", "pid", "host", "admin")) or "none"


# ---- handover


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
