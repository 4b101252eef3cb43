"""``tandemmq status``: the status of a running broker, master or standby."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import click

from tandemmq.cli.admin_login import ANSWER_BYTES_MAX, NO_TOKEN, answer_of, authority, json_object, token_of
from tandemmq.cli.answers import json_option
from tandemmq.cli.connect import connect_options, tls
from tandemmq.cli.failures import Failed, Unreachable
from tandemmq.cli.table import Column, print_facts, print_table
from tandemmq.client.tls import reason_of_tls

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_ADMIN = "http://127.0.0.1:8161"
ANSWER_SECONDS_MAX = 5.0

# The columns of the queue table. A column that no queue fills is left out.
QUEUE_COLUMNS = ("messages", "unacknowledged", "consumers", "enqueued", "dequeued")


class NoBroker(Unreachable):
    """Nothing listens at the address, or it does not answer in time."""


class NotABroker(Failed):
    """Something answers, but it is not a broker's admin server."""


def ask(admin: str, page: str = "status") -> dict[str, Any]:
    """Return the JSON of one page of the admin server at ``admin``. Raises NoBroker or NotABroker. If the broker
    requires a login and there is none, ``status`` is short: without names."""
    place, authorization = authority(admin)
    request = urllib.request.Request(f"{place}/{page}", headers={"Accept": "application/json"})
    try:
        answer = _answer_for_viewers(request, place, authorization)
    except urllib.error.HTTPError as error:
        told = answer_of(error).get("error")
        reason = f": {told}" if told and error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) else ""
        raise NotABroker(f"{place} answers {error.code} {error.reason} for /{page}{reason}") from error
    except (OSError, ValueError) as error:
        raise NoBroker(f"no broker answers at {place}: {reason_of(error)}") from error
    if answer is None:
        raise NotABroker(f"{place} answers, but not with JSON: is that a broker's admin address?")
    if page != "status" and is_short(answer):
        raise NotABroker(f"{place} shows /{page} to users with the role viewer: --login NAME, or TANDEMMQ_ADMIN_TOKEN")
    if "role" not in answer:
        raise NotABroker(f"{place} answers, but not as a broker does: its answer names no role")
    return answer


def is_short(answer: dict[str, Any]) -> bool:
    """Return whether the page is the one that a broker with users shows to clients without a login."""
    return "role" in answer and not any(each in answer for each in ("name", "node"))


def _answer_for_viewers(
    request: urllib.request.Request, place: str, authorization: str | None
) -> dict[str, Any] | None:
    """Do as ``answer_to``, and send the user or the token if the answer requires it. Without both, and for a user
    without a role, use the broker's own token from the file that the broker names."""
    short: dict[str, Any] | None = None
    refused: urllib.error.HTTPError | None = None
    has_no_role: urllib.error.HTTPError | None = None
    try:
        short = answer_to(request, ANSWER_SECONDS_MAX)
        if short is None or not is_short(short):
            return short
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.UNAUTHORIZED:
            raise
        refused = error
    if authorization is not None:
        request.add_header("Authorization", authorization)
        try:
            found = answer_to(request, ANSWER_SECONDS_MAX)
            if found is None or not is_short(found):
                return found
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.FORBIDDEN:
                raise
            has_no_role = error
    try:
        if refused is None:
            request.add_header("Authorization", NO_TOKEN)
            answer_to(request, ANSWER_SECONDS_MAX)
    except urllib.error.HTTPError as error:
        refused = error
    try:
        token = "" if refused is None else token_of(place, refused)
    except click.ClickException as error:
        if short is not None:
            return short
        if has_no_role is not None:
            raise has_no_role from error
        raise NotABroker(error.message) from error
    request.add_header("Authorization", f"Bearer {token}")
    return answer_to(request, ANSWER_SECONDS_MAX)


def answer_to(request: urllib.request.Request, seconds_max: float) -> dict[str, Any] | None:
    """Return the JSON of a page, or None if it has none. HTTPError for a refusal, else OSError, even for no HTTP."""
    # The admin server is near: no proxy of the environment is used.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if request.type == "https":
        handlers.append(urllib.request.HTTPSHandler(context=tls()))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=seconds_max) as response:
            return json_object(response.read(ANSWER_BYTES_MAX))
    except http.client.HTTPException as error:
        raise OSError(f"it does not speak HTTP ({type(error).__name__}): is it TLS, https://?") from error


def reason_of(error: Exception) -> str:
    """Return in words why there is no answer."""
    found = getattr(error, "reason", None) or error
    return reason_of_tls(found) if isinstance(found, ssl.SSLError) else str(found)


def ask_around(
    admins: Sequence[str], ask_one: Callable[[str], tuple[T, str | None]]
) -> tuple[list[tuple[str, T]], list[str]]:
    """Return the answers of ``admins`` and of the addresses that an answer names, each called once; and complaints.

    ``ask_one`` returns an answer and one further address to call, or None.
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
        except (NoBroker, NotABroker) as error:
            complaints.append(str(error))
            continue
        answers.append((admin, answer))
        if further is not None:
            waiting.append(further)
    return answers, complaints


def admin_urls(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(url for each in value if (url := admin_url(context, parameter, each)) is not None))


def admin_url(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the address as a URL. HOST:PORT alone is accepted, as by ``run --admin``."""
    if value is None:
        return None
    url = value if "://" in value else f"http://{value}"
    parts = urllib.parse.urlsplit(url)
    try:
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_usable = False
    if not is_usable:
        raise click.BadParameter(f"{value!r} is not an address like {DEFAULT_ADMIN} or 127.0.0.1:8161")
    return url


def admins_option(help: str) -> Callable[[Command], Command]:
    """Return the option for the brokers to query, with the options of a connection."""
    option = click.option("--admin", "admins", metavar="URL", multiple=True, callback=admin_urls, help=help)
    return lambda command: option(connect_options(command))


def admin_option(help: str, default: str | None = DEFAULT_ADMIN) -> Callable[[Command], Command]:
    """Return the option for the broker to query, by default ``default``, the one on this host, with the options of a
    connection."""
    option = click.option("--admin", metavar="URL", default=default, callback=admin_url, help=help)
    return lambda command: option(connect_options(command))


@click.command()
@admin_option("Admin address of the broker.")
@json_option
def status(admin: str, as_json: bool) -> None:
    """Show role, epoch, store and queues of a running broker.

    Ends with 0 if a broker answers, master or standby, and with 3 if none does.
    """
    answer = ask(admin)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        _print(answer)


def _print(answer: dict[str, Any]) -> None:
    print_facts(_facts(answer))
    if is_short(answer):
        click.echo("for more than this, name a user with the role viewer (--login NAME), or set TANDEMMQ_ADMIN_TOKEN")
    queues = answer.get("queues") or []
    if not queues:
        return
    columns = [key for key in QUEUE_COLUMNS if any(key in queue for queue in queues)]
    click.echo()
    print_table(
        [Column("queue"), *(Column(key, is_number=True) for key in columns)],
        ([str(queue.get("name", "?")), *(queue.get(key) for key in columns)] for queue in queues),
    )
    left_out = _object(_object(answer, "left_out") or {}, "queues")
    if left_out:
        click.echo(f"and {left_out.get('rows')} more: tandemmq queues list")


def _facts(answer: dict[str, Any]) -> list[tuple[str, str]]:
    role, holder, standby = answer["role"], answer.get("holder"), _object(answer, "standby")
    is_standby = role == "standby"
    facts = [
        ("name", None if is_short(answer) else answer.get("name", "?")),
        ("role", role),
        ("epoch", answer.get("epoch", "?")),
        ("phase", None if answer.get("phase") == role else answer.get("phase")),
        *_lock(answer),
        ("stands by for", (holder_in_words(holder) or "none known") if is_standby else None),
        *(_lag(standby) if standby is not None else ()),
        *_part_in_set(_object(answer, "replication") or {}),
        ("store", None if is_short(answer) else answer.get("store", "?")),
        ("serves" if role == "master" else "will serve", ", ".join(map(str, answer.get("connectors") or ()))),
        *(("bridge", _bridge(each)) for each in answer.get("bridges") or ()),
        ("code", answer.get("code")),
        ("because", None if is_standby else answer.get("reason")),
        # Zeros are left out for people; --json has them.
        *(
            (name.replace("_", " "), _figure(value) if value else None)
            for name, value in (answer.get("counts") or {}).items()
        ),
        *(("problem", problem) for problem in answer.get("problems") or ()),
        *(("warning", warning) for warning in answer.get("warnings") or ()),
    ]
    return [(heading, str(text)) for heading, text in facts if text not in (None, "")]


def _bridge(said: dict[str, Any]) -> str:
    """Describe one bridge: whether it is connected, what it carried, and its last error."""
    where = f"connected to {said.get('address')}" if said.get("connected") else "NOT connected"
    figures = ", ".join(f"{_figure(said[key])} {key}" for key in ("received", "sent", "refused") if said.get(key))
    error = "" if said.get("connected") or not said.get("last_error") else f": {said['last_error']}"
    return f"{said.get('name', '?')} {where}{error}{'; ' if figures else ''}{figures}"


def _object(answer: dict[str, Any], key: str) -> dict[str, Any] | None:
    found = answer.get(key)
    return found if isinstance(found, dict) else None


def _part_in_set(said: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the role of a member in its replicated set; `tandemmq replication status` shows the whole set."""
    if said:
        vote = f"one of {len(said.get('voters') or ())} voters" if said.get("is_voter") else "a learner"
        yield "in its set", f"{said.get('role', '?')}, {vote}, {'whole' if said.get('is_whole') else 'NOT whole'}"
    for follower in (said.get("followers") or {}).values():
        if follower.get("lag_bytes"):
            yield "behind", f"{follower.get('node')} by {_figure(follower['lag_bytes'])} bytes"


def _lock(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lock, the master's proof of ownership, and the demotions so far."""
    if (lock := _object(answer, "lock")) is not None:
        age, holds = lock.get("proof_age_seconds"), lock.get("proof_holds_seconds")
        proof = "" if age is None else f"; proved {age:.1f} s ago"
        proof += "" if holds is None else f", holds for {holds:.1f} s"
        yield "lock", f"{lock.get('type', '?')}{proof}"
    demotions = _object(answer, "demotions") or {}
    yield "demotions", ", ".join(f"{trouble} {_figure(times)}" for trouble, times in demotions.items())
    takeover = answer.get("last_takeover_seconds")
    if isinstance(takeover, int | float):
        yield "took over in", f"{takeover:.3f} s"


def _lag(standby: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how far a standby is behind and how long a take-over would take, if the broker reports it."""
    caught_up = "yes" if standby.get("has_caught_up") else "not yet"
    yield "caught up", f"{caught_up}, {_figure(standby.get('messages'))} messages"
    if (lag := _object(standby, "lag")) is not None:
        yield "behind by", f"{_figure(lag.get('bytes'))} bytes, {_figure(lag.get('records'))} records"
    if (takeover := _object(standby, "takeover")) is not None:
        parts = ", ".join(f"{part} {takeover.get(f'{part}_seconds', 0):.3f}" for part in ("lock", "replay", "load"))
        over = "" if takeover.get("is_within_budget", True) else "; more than failover_budget"
        yield "takes over in", f"{takeover.get('total_seconds', 0):.3f} s ({parts}){over}"


def holder_in_words(holder: Any, facts: Sequence[str] = ("epoch", "host", "pid", "admin")) -> str:
    """Describe the broker that holds the lock, in one line; empty without one. ActiveMQ leaves no name in the lock."""
    if not isinstance(holder, dict):
        return str(holder) if holder else ""
    name = str(holder.get("name") or holder.get("holder") or "an unnamed broker")
    details = [f"{key} {holder[key]}" for key in facts if holder.get(key) is not None]
    return f"{name} ({', '.join(details)})" if details else name


def _figure(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)
