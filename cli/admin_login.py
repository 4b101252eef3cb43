"""Login of a command at an admin server: a user, or the broker's admin token. Sent only if the broker requires it."""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.parse
from typing import Any, Final

import click

from tandemmq.broker.admin.token import SUFFIX, read_token
from tandemmq.cli.connect import credentials

ANSWER_BYTES_MAX: Final = 64 << 20
#: A token that no broker has. The refusal names the file that has the token.
NO_TOKEN: Final = "Bearer none"


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
    """Return the token in the file that the broker names. Nothing but a token is sent, whatever server answers."""
    path = str(answer_of(error).get("token_file") or "")
    try:
        token = read_token(path) if path.endswith(SUFFIX) else None
        reason = "there is no token in it"
    except (OSError, ValueError) as problem:
        token, reason = None, getattr(problem, "strerror", None) or str(problem)
    if token is None:
        where = f"in {path}: {reason}" if path else "which only commands on its machine can find"
        raise click.ClickException(
            f"{admin} wants its admin token, {where}. Run this as the broker's user, set TANDEMMQ_ADMIN_TOKEN, or name "
            "a user with the role that this needs: --login NAME"
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
    """Return the address of an admin server without user and password, which only its login may show."""
    parts = urllib.parse.urlsplit(admin.rstrip("/"))
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
