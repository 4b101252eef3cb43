"""Requests to the admin server of a running broker."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import click

from tandemmq.cli.admin_login import answer_of, authority, token_of
from tandemmq.cli.failures import Unreachable
from tandemmq.cli.status import answer_to, reason_of

#: Path of the API for operators.
API = "api/v1/"


class NoMaster(Unreachable):
    """No broker answers at that address, or one that is not master."""


def call(
    admin: str,
    page: str,
    query: Mapping[str, str | None],
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
        raise click.ClickException(f"{place} answers, but not as a broker does")
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
