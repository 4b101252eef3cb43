"""Requests to the admin server of a running broker: address, login, answer, and failures in words.

`ask` reads a page for viewers; `call` makes the requests of operators. Both send a login only if the broker requires
one: a user, or the admin token in the file that the broker names.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final, TypeVar

import click

from tandemmq.broker.admin.token import SUFFIX, read_token
from tandemmq.cli.connect import Command, connect_options, credentials, tls
from tandemmq.cli.failures import Failed, Unreachable

T = TypeVar("T")

DEFAULT_ADMIN: Final = "http://127.0.0.1:8161"
#: Path of the API for operators.
API: Final = "api/v1/"
ANSWER_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 << 20
#: A token that no broker has. The refusal names the file that has the token.
NO_TOKEN: Final = "Bearer none"


class NoBroker(Unreachable):
    """The address has no listener, or it does not answer in time."""


class NotABroker(Failed):
    """Something answers, but it is not a broker's admin server."""


def ask(admin: str, page: str = "status") -> dict[str, Any]:
    """Return the JSON of one page of the admin server at ``admin``. Raises NoBroker or NotABroker. If the broker
    requires a login and the user has given no login, ``status`` is short: without names."""
    place, authorization = authority(admin)
    request = urllib.request.Request(f"{place}/{page}", headers={"Accept": "application/json"})
    try:
        answer = _answer_for_viewers(request, place, authorization)
    except urllib.error.HTTPError as error:
        detail = answer_of(error).get("error")
        reason = f": {detail}" if detail and error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) else ""
        raise NotABroker(f"{place} answers {error.code} {error.reason} for /{page}{reason}") from error
    except (OSError, ValueError) as error:
        raise NoBroker(f"no broker answers at {place}: {reason_of(error)}") from error
    if answer is None:
        raise NotABroker(f"{place} answers, but not with JSON: is that a broker's admin address?")
    if page != "status" and is_short(answer):
        raise NotABroker(f"{place} shows /{page} to users with the role viewer: --login NAME, or TANDEMMQ_ADMIN_TOKEN")
    if "role" not in answer:
        raise NotABroker(f"{place} answers, but not like a broker: its answer names no role")
    return answer


def is_short(answer: dict[str, Any]) -> bool:
    """Return whether the page is the one that a broker with users shows to clients without a login."""
    return "role" in answer and not any(each in answer for each in ("name", "node"))


def _answer_for_viewers(
    request: urllib.request.Request, place: str, authorization: str | None
) -> dict[str, Any] | None:
    """Do the same as ``answer_to``, and send the user or the token if the server requires one. If there is neither, or
    the user has no role, use the broker's own token from the file that the broker names."""
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
    """Return the JSON of a page, or None if it has none. Raises HTTPError for a refusal, OSError for any other failure,
    also if the answer is not HTTP."""
    # A proxy that the environment names is not used: the admin server is on this machine or in its network.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if request.type == "https":
        handlers.append(urllib.request.HTTPSHandler(context=tls()))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=seconds_max) as response:
            return json_object(response.read(ANSWER_BYTES_MAX))
    except http.client.HTTPException as error:
        raise OSError(
            f"it did not answer in HTTP ({type(error).__name__}); if it uses TLS, the address begins with https://"
        ) from error


def reason_of(error: Exception) -> str:
    """Return in words why there is no answer."""
    from tandemmq.client.tls import reason_of_tls

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


def authority(admin: str) -> tuple[str, str | None]:
    """Return the address without user and password, and the header Authorization: None without a user or token."""
    parts = urllib.parse.urlsplit(admin.rstrip("/"))
    login, passcode = credentials()
    if parts.username is not None:
        login, passcode = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
    if login is None:
        token = os.environ.get("TANDEMMQ_ADMIN_TOKEN")
        return without_user(admin), None if token is None else f"Bearer {token}"
    user = f"{login}:{passcode or ''}"
    return without_user(admin), f"Basic {base64.b64encode(user.encode()).decode()}"


def token_of(admin: str, error: urllib.error.HTTPError) -> str:
    """Return the token in the file that the broker names. The content of any other file is never returned, because a
    malicious server may name one."""
    path = str(answer_of(error).get("token_file") or "")
    try:
        token = read_token(path) if path.endswith(SUFFIX) else None
        reason = "there is no token in it"
    except (OSError, ValueError) as problem:
        token, reason = None, getattr(problem, "strerror", None) or str(problem)
    if token is None:
        where = f"in {path}: {reason}" if path else "which only commands on its machine can find"
        raise click.ClickException(
            f"{admin} requires its admin token, {where}. Run this as the broker's user, set TANDEMMQ_ADMIN_TOKEN, or "
            "name a user with the role that this needs: --login NAME"
        )
    return token


def answer_of(error: urllib.error.HTTPError) -> dict[str, Any]:
    """Return the JSON object in a refusal, or an empty object if it has none."""
    try:
        return json_object(error.read(ANSWER_BYTES_MAX)) or {}
    except OSError:
        return {}


def json_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``text``, or None if it is not one."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def without_user(admin: str) -> str:
    """Return the address of an admin server without user and password, which are sent only in a login."""
    parts = urllib.parse.urlsplit(admin.rstrip("/"))
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class NoMaster(Unreachable):
    """No broker answers at that address, or one that is not master."""


def call(
    admin: str,
    page: str,
    query: Mapping[str, object],
    *,
    method: str = "GET",
    body: Mapping[str, Any] | None = None,
    seconds_max: float,
) -> dict[str, Any]:
    """Return the JSON of a page. Otherwise end the command, with exit code 3 if no broker or no master answers there.

    Entries of ``query`` that are None are left out. The request carries a login if it is not a GET, if it goes to the
    API, or if the server refused it without one. The login is the user in ``admin`` or of --login, the token in
    TANDEMMQ_ADMIN_TOKEN, or the token in the file that the broker names, if this process may read it.
    """
    asked = urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
    place, authorization = authority(admin)
    request = urllib.request.Request(
        f"{place}/{page}{'?' if asked else ''}{asked}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Accept": "application/json", "Content-Type": "application/json"},
        method=method,
    )
    if (request.method != "GET" or page.startswith(API)) and authorization is not None:
        request.add_header("Authorization", authorization)
    try:
        try:
            answer = answer_to(request, seconds_max)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.UNAUTHORIZED or request.has_header("Authorization"):
                raise _refusal(place, page, error) from error
            request.add_header("Authorization", authorization or f"Bearer {token_of(place, error)}")
            answer = answer_to(request, seconds_max)
    except urllib.error.HTTPError as error:
        raise _refusal(place, page, error) from error
    except (OSError, ValueError) as error:
        raise NoMaster(f"no broker answers at {place}: {reason_of(error)}") from error
    if answer is None:
        raise click.ClickException(f"{place} answers, but not like a broker")
    return answer


@contextmanager
def answer_understood(admin: str) -> Iterator[None]:
    """End the command if the answer lacks a key that the command reads."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise click.ClickException(f"{admin} answers in the format of another version: {error}") from error


def _refusal(admin: str, page: str, error: urllib.error.HTTPError) -> click.ClickException:
    answer = answer_of(error)
    if "error" not in answer:
        return click.ClickException(f"{admin} answers {error.code} {error.reason} for /{page}: is that a broker?")
    if answer.get("stores"):
        return click.UsageError(
            f"that broker has several stores; choose one with --store: {', '.join(answer['stores'])}"
        )
    if error.code != 409:
        return click.ClickException(str(answer["error"]))
    holder = answer.get("holder") or {}
    at = f"; the master is {holder['name']}" if holder.get("name") else ""
    at += f" at {holder['admin']}" if holder.get("admin") else ""
    return NoMaster(f"{answer['error']}{at}")
