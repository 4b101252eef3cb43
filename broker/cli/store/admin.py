"""A question to a running broker's admin server about its store."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import click

from broker.cli.status import ANSWER_BYTES_MAX, EXIT_NO_BROKER


class NoMaster(click.ClickException):
    """No broker answers at that address, or one that is not master."""

    exit_code = EXIT_NO_BROKER


def call(
    admin: str, page: str, query: Mapping[str, str | None], *, is_post: bool = False, seconds_max: float
) -> dict[str, Any]:
    """The JSON of a page; otherwise ends the command, with 3 when there is no broker or no master there.

    What is None in ``query`` is left out.
    """
    asked = urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
    request = urllib.request.Request(
        f"{admin.rstrip('/')}/{page}{'?' if asked else ''}{asked}",
        headers={"Accept": "application/json", "Content-Type": "application/json"},
        method="POST" if is_post else "GET",
    )
    # The admin server is near: no proxy of the environment is asked.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=seconds_max) as response:
            return _decode(admin, response.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise _refusal(admin, page, error) from error
    except (OSError, ValueError) as error:
        raise NoMaster(f"no broker answers at {admin}: {getattr(error, 'reason', None) or error}") from error


def _decode(admin: str, body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise click.ClickException(f"{admin} answers, but not as a broker does") from error
    if not isinstance(answer, dict):
        raise click.ClickException(f"{admin} answers, but not as a broker does")
    return answer


def _refusal(admin: str, page: str, error: urllib.error.HTTPError) -> click.ClickException:
    try:
        said = json.loads(error.read(ANSWER_BYTES_MAX))
    except (OSError, ValueError):
        said = None
    if not isinstance(said, dict) or "error" not in said:
        return click.ClickException(f"{admin} answers {error.code} {error.reason} for /{page}: is that a broker?")
    if said.get("stores"):
        return click.UsageError(f"that broker has several stores; --store says which: {', '.join(said['stores'])}")
    if error.code != 409:
        return click.ClickException(str(said["error"]))
    holder = said.get("holder") or {}
    at = f"; the master is {holder['name']}" if holder.get("name") else ""
    at += f" at {holder['admin']}" if holder.get("admin") else ""
    return NoMaster(f"{said['error']}{at}")
