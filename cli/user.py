"""``tandemmq user``: edit the file of users. The broker reloads it automatically."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Final

import click

from tandemmq.broker.security import users
from tandemmq.broker.security.users import User, Users, UsersError
from tandemmq.cli.failures import Failed
from tandemmq.cli.output import Column, json_option, print_table, tell

PASSWORD_LINE_BYTES_MAX: Final = 4096

_file = click.option(
    "--file", "path", metavar="FILE", required=True, envvar="TANDEMMQ_SECURITY__USERS_FILE", help="The file of users."
)
_groups = click.option("--groups", metavar="GROUP,GROUP", help="Groups of the user, to which rights are given.")
_certificate = click.option(
    "--certificate", metavar="SUBJECT", help="Subject of the user's certificate: CN=orders,O=Example."
)
_stdin = click.option("--stdin", "is_read", is_flag=True, help="Read the password from the first line of stdin.")


@click.group()
def user() -> None:
    """Edit the users of the broker, in the file security.users_file."""


@user.command()
@click.argument("name")
@_file
@_groups
@_certificate
@_stdin
@click.option("--no-password", is_flag=True, help="The user has a certificate and no password.")
@json_option
def add(
    name: str, path: str, groups: str | None, certificate: str | None, is_read: bool, no_password: bool, as_json: bool
) -> None:
    """Add a user. The file is created if it is missing."""
    there = os.path.exists(path)
    text, known = _read(path) if there else ("", Users({}))
    if name in known.by_name:
        raise Failed(f"{path}: {name} exists already; `tandemmq user passwd` changes its password")
    if no_password and not certificate:
        raise click.UsageError("--no-password needs --certificate: otherwise this user cannot log in")
    new_user = User(name, None, _groups_of(groups or ""), certificate)
    _write(path, text, _checked(new_user if no_password else _with_password(new_user, is_read)))
    tell(as_json, {"added": name, "file": path}, f"{name} added to {path}")


@user.command()
@click.argument("name")
@_file
@_stdin
@json_option
def passwd(name: str, path: str, is_read: bool, as_json: bool) -> None:
    """Change the password of a user."""
    text, known = _read(path)
    _write(path, text, _with_password(_one(known, name, path), is_read))
    tell(as_json, {"changed": name, "file": path}, f"{name} has a new password")


@user.command(name="set")
@click.argument("name")
@_file
@_groups
@_certificate
@json_option
def set_command(name: str, path: str, groups: str | None, certificate: str | None, as_json: bool) -> None:
    """Change groups or certificate of a user."""
    text, known = _read(path)
    changed = _one(known, name, path)
    if groups is not None:
        changed = replace(changed, groups=_groups_of(groups))
    if certificate is not None:
        changed = replace(changed, certificate=certificate or None)
    _write(path, text, _checked(changed))
    tell(as_json, {"changed": name, "file": path}, f"{name} is changed")


@user.command()
@click.argument("name")
@_file
@json_option
def remove(name: str, path: str, as_json: bool) -> None:
    """Remove a user. A running broker closes the user's connections."""
    text, known = _read(path)
    _one(known, name, path)
    _save(path, users.without_user(text, name))
    tell(as_json, {"removed": name, "file": path}, f"{name} removed from {path}")


@user.command(name="list")
@_file
@json_option
def list_command(path: str, as_json: bool) -> None:
    """List users with groups and certificates."""
    _, known = _read(path)
    found = list(known.by_name.values())
    if as_json:
        facts = [
            {
                "name": one.name,
                "groups": sorted(one.groups),
                "certificate": one.certificate,
                "has_password": one.hash is not None,
            }
            for one in found
        ]
        click.echo(json.dumps(facts, indent=2))
        return
    rows = ([one.name, ",".join(sorted(one.groups)) or "none", one.hash is not None, one.certificate] for one in found)
    print_table([Column("user"), Column("groups"), Column("password"), Column("certificate")], rows)


def _with_password(one: User, is_read: bool) -> User:
    if is_read:
        password = sys.stdin.readline(PASSWORD_LINE_BYTES_MAX).rstrip("\r\n")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    try:
        return users.with_password(one, password)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _checked(one: User) -> User:
    try:
        users.checked_name(one.name)
    except ValueError as error:
        raise click.UsageError(f"{one.name!r}: expected {error}") from error
    if one.certificate and any(ord(each) < 32 for each in one.certificate):
        raise click.UsageError("a certificate's subject is one line")
    return one


def _groups_of(text: str) -> frozenset[str]:
    try:
        return users.groups(text)
    except ValueError as error:
        raise click.UsageError(f"--groups {text!r}: expected {error}") from error


def _one(known: Users, name: str, path: str) -> User:
    found = known.by_name.get(name)
    if found is None:
        raise Failed(f"{path}: there is no {name}")
    return found


def _read(path: str) -> tuple[str, Users]:
    try:
        text = users.read_text(path)
        return text, users.parse(text, path)
    except UsersError as error:
        raise Failed(str(error)) from error


def _write(path: str, text: str, one: User) -> None:
    _save(path, users.with_user(text, one))


def _save(path: str, text: str) -> None:
    try:
        users.write(path, text)
    except UsersError as error:
        raise Failed(str(error)) from error
    except OSError as error:
        raise Failed(f"{path}: cannot be written: {error.strerror}") from error
