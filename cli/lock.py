"""``tandemmq lock status``: the holder of the lock, its proof, and the brokers that wait for it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from tandemmq.broker.ha.locks import make_locker
from tandemmq.cli.answers import json_option
from tandemmq.cli.failures import Failed, Unreachable
from tandemmq.cli.lines import say_each
from tandemmq.cli.options import WrongSettings, load_settings
from tandemmq.cli.status import DEFAULT_ADMIN, admins_option, ask, ask_around, holder_in_words
from tandemmq.cli.table import print_facts
from tandemmq.config.load import Flags
from tandemmq.config.settings import Settings
from tandemmq.locker.contract import LockError, LockSettingsError, LockUnavailable

#: Longest wait for a lock whose volume or database hangs.
LOCK_SECONDS_MAX: Final = 5.0

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

    It asks brokers, the holder too if only a standby was named. With --config, --data or --set it reads the lock itself
    if no --admin is given or none answers, and then asks its holder. Ends with 3 if there is nothing to ask, with 1 if
    the lock does not answer.
    """
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
        shown["unsafe"] = f"{names} all say that the lock is theirs; the fence decides, and all but one will notice"
    return shown


# ---- the lock itself


def _ask_lock_or_end(settings: Settings) -> Answer:
    """Return the lock's answer, or its holder's if the lock gives an address for the holder."""
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
    nobody = "none" if shown["all_waiting_are_known"] else "none known; name standbys by --admin"
    lines.append(("waiting", ", ".join(waiting) or nobody))
    if shown["unsafe"]:
        lines.append(("unsafe", str(shown["unsafe"])))
    print_facts(lines)


def _who(holder: Answer | None) -> str:
    return holder_in_words(holder, ("epoch", "pid", "host", "admin")) or "none"
