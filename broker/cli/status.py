"""``tandemmq status``: what a running broker says of itself, master or standby."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

T = TypeVar("T")

DEFAULT_ADMIN = "http://127.0.0.1:8161"
ANSWER_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 64 << 20

EXIT_FAILED = 1
EXIT_NO_BROKER = 3

# The columns of the queue table: key in the status, heading. A column that no queue fills is left out.
QUEUE_COLUMNS = (
    ("messages", "messages"),
    ("unacknowledged", "unacknowledged"),
    ("consumers", "consumers"),
    ("enqueued", "enqueued"),
    ("dequeued", "dequeued"),
)


class NoBroker(Exception):
    """Nothing listens at the address, or it does not answer in time."""


class Stranger(Exception):
    """Something answers, but it is not a broker's admin server."""


def ask(admin: str, page: str = "status") -> dict[str, Any]:
    """The JSON of one page of the admin server at ``admin``; NoBroker or Stranger when there is none to be had."""
    admin = without_user(admin)
    request = urllib.request.Request(f"{admin}/{page}", headers={"Accept": "application/json"})
    # The admin server is near: no proxy of the environment is asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ANSWER_SECONDS_MAX) as response:
            body = response.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        raise Stranger(f"{admin} answers {error.code} {error.reason} for /{page}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise NoBroker(f"no broker answers at {admin}: {reason}") from error
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise Stranger(f"{admin} answers, but not with JSON: is that a broker's admin address?") from error
    if not isinstance(answer, dict) or "role" not in answer:
        raise Stranger(f"{admin} answers, but not as a broker does: its answer names no role")
    return answer


def without_user(admin: str) -> str:
    """The address of an admin server without user and password, which are shown where they are asked for only."""
    parts = urllib.parse.urlsplit(admin.rstrip("/"))
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def ask_around(
    admins: Sequence[str], ask_one: Callable[[str], tuple[T, str | None]]
) -> tuple[list[tuple[str, T]], list[str]]:
    """What is said at each of ``admins`` and wherever an answer leads, each address asked once; who does not answer.

    ``ask_one`` gives an answer and the address of somebody to be asked as well, if it names one.
    """
    answers: list[tuple[str, T]] = []
    complaints: list[str] = []
    waiting = list(admins)
    seen: set[str] = set()
    while waiting:
        admin = waiting.pop(0)
        if admin in seen:
            continue
        seen.add(admin)
        try:
            answer, further = ask_one(admin)
        except (NoBroker, Stranger) as error:
            complaints.append(str(error))
            continue
        answers.append((admin, answer))
        if further is not None:
            waiting.append(further)
    return answers, complaints


def admin_url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The address as a URL; HOST:PORT alone is understood, as ``run --admin`` takes it."""
    url = value if "://" in value else f"http://{value}"
    parts = urllib.parse.urlsplit(url)
    try:
        is_usable = parts.scheme == "http" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise click.BadParameter(f"{value!r} is not an address like {DEFAULT_ADMIN} or 127.0.0.1:8161")
    return url


@click.command()
@click.option(
    "--admin",
    metavar="URL",
    default=DEFAULT_ADMIN,
    show_default=True,
    callback=admin_url,
    help="The broker's admin address.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the broker says as JSON.")
def status(admin: str, as_json: bool) -> None:
    """Show the role, epoch, store and queues of a running broker.

    Ends with 0 whenever a broker answers, master or standby, and with 3 when none does.
    """
    try:
        answer = ask(admin)
    except NoBroker as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_NO_BROKER)
    except Stranger as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_FAILED)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        _print(answer)


def _print(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    facts = Table.grid(padding=(0, 2))
    facts.add_column()
    facts.add_column(overflow="fold")
    for heading, text in _facts(answer):
        facts.add_row(heading, text)
    console.print(facts)

    queues = answer.get("queues") or []
    if not queues:
        return
    columns = [(key, heading) for key, heading in QUEUE_COLUMNS if any(key in queue for queue in queues)]
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("queue", overflow="fold")
    for _, heading in columns:
        table.add_column(heading, justify="right")
    for queue in queues:
        table.add_row(str(queue.get("name", "?")), *(_figure(queue.get(key)) for key, _ in columns))
    console.print()
    console.print(table)


def _facts(answer: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("name", str(answer.get("name", "?"))),
        ("role", str(answer["role"])),
        ("epoch", str(answer.get("epoch", "?"))),
    ]
    if answer.get("phase") not in (None, answer["role"]):
        facts.append(("phase", str(answer["phase"])))
    facts += _lock(answer)
    holder = answer.get("holder")
    if answer["role"] == "standby":
        facts.append(("stands by for", _holder(holder)))
    standby = answer.get("standby")
    if isinstance(standby, dict):
        caught_up = "yes" if standby.get("has_caught_up") else "not yet"
        facts.append(("caught up", f"{caught_up}, {_figure(standby.get('messages'))} messages"))
        facts += _takeover(standby)
    facts.append(("store", str(answer.get("store", "?"))))
    if answer.get("connectors"):
        verb = "serves" if answer["role"] == "master" else "will serve"
        facts.append((verb, ", ".join(map(str, answer["connectors"]))))
    if answer["role"] != "standby" and answer.get("reason"):
        facts.append(("because", str(answer["reason"])))
    # What is 0 says little to people; --json has it.
    counts = answer.get("counts") or {}
    facts += [(name.replace("_", " "), _figure(value)) for name, value in counts.items() if value]
    facts += [("problem", str(problem)) for problem in answer.get("problems") or ()]
    facts += [("warning", str(warning)) for warning in answer.get("warnings") or ()]
    return facts


def _lock(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """The lock, how well a master can prove that it is its own, and how often that came to an end."""
    facts = []
    lock, demotions = answer.get("lock"), answer.get("demotions")
    if isinstance(lock, dict):
        age, holds = lock.get("proof_age_seconds"), lock.get("proof_holds_seconds")
        proof = "" if age is None else f"; proved {age:.1f} s ago"
        proof += "" if holds is None else f", holds for {holds:.1f} s"
        facts.append(("lock", f"{lock.get('type', '?')}{proof}"))
    if isinstance(demotions, dict) and demotions:
        facts.append(("demotions", ", ".join(f"{trouble} {_figure(times)}" for trouble, times in demotions.items())))
    takeover = answer.get("last_takeover_seconds")
    if isinstance(takeover, int | float):
        facts.append(("took over in", f"{takeover:.3f} s"))
    return facts


def _takeover(standby: dict[str, Any]) -> list[tuple[str, str]]:
    """How far a standby is behind, and how long it would take to take over, where it tells."""
    facts = []
    lag, takeover = standby.get("lag"), standby.get("takeover")
    if isinstance(lag, dict):
        facts.append(("behind by", f"{_figure(lag.get('bytes'))} bytes, {_figure(lag.get('records'))} records"))
    if isinstance(takeover, dict):
        parts = ", ".join(f"{part} {takeover.get(f'{part}_seconds', 0):.3f}" for part in ("lock", "replay", "load"))
        over = "" if takeover.get("is_within_budget", True) else "; more than failover_budget"
        facts.append(("takes over in", f"{takeover.get('total_seconds', 0):.3f} s ({parts}){over}"))
    return facts


def _holder(holder: Any) -> str:
    """One line for the broker that holds the lock; ActiveMQ leaves no name in it."""
    if not isinstance(holder, dict):
        return str(holder) if holder else "nobody known"
    name = str(holder.get("name") or holder.get("holder") or "an unnamed broker")
    details = [f"{key} {holder[key]}" for key in ("epoch", "host", "pid", "admin") if holder.get(key) is not None]
    return f"{name} ({', '.join(details)})" if details else name


def _figure(value: Any) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value if value is not None else "")
    )
