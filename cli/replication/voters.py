"""``tandemmq replication add`` and ``remove``: change the voters by one, at the master."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any, Final

import click

from tandemmq.cli.admin import NoBroker, NoMaster, NotABroker, admin_option, ask, call
from tandemmq.cli.output import json_option

#: The broker itself gives up after 30 s.
CHANGE_SECONDS_MAX: Final = 35.0

_admin = admin_option("Admin address of any member; it leads to the master.")
_json = json_option


@click.command()
@click.argument("who", metavar="NODE|STORE")
@_admin
@_json
def add(who: str, admin: str, as_json: bool) -> None:
    """Give a vote to the node NODE, or the store STORE.

    It must be a learner that has caught up. Returns when the change is on the disks of a quorum.
    """
    _change("add", who, admin, as_json)


@click.command()
@click.argument("who", metavar="NODE|STORE")
@_admin
@_json
def remove(who: str, admin: str, as_json: bool) -> None:
    """Take the vote of the node NODE, or the store STORE, away. If two stores have one node name, use the store.

    The member need not be connected. The master does not remove itself: hand over first. Returns when the change is on
    the disks of a quorum.
    """
    _change("remove", who, admin, as_json)


def _change(verb: str, who: str, admin: str, as_json: bool) -> None:
    answer = call(
        master_at(admin), "replication/voters", {}, method="POST", body={verb: who}, seconds_max=CHANGE_SECONDS_MAX
    )
    voters: dict[str, Any] = answer["voters"]
    if as_json:
        click.echo(json.dumps(answer))
        return
    count = len(voters)
    click.echo(f"{count} {'voter' if count == 1 else 'voters'}: {', '.join(map(str, voters.values()))}")


def master_at(admin: str) -> str:
    """Return the admin address of the master, as the member at ``admin`` knows it. Raises NoMaster."""
    try:
        answer = ask(admin, "replication")
    except NoBroker as error:
        raise NoMaster(str(error)) from error
    except NotABroker as error:
        raise click.ClickException(f"{error}: is that a broker with [replication]?") from error
    if answer["role"] == "master":
        return admin
    if answer["master"] is None:
        raise NoMaster(f"{answer['node']} knows no master; tandemmq replication status says why")
    for member in answer["members"]:
        if member["node"] == answer["master"] and member["admin"]:
            return _as_same_user(admin, str(member["admin"]))
    raise NoMaster(f"the master is {answer['master']}, and has no admin address: run the command there")


def _as_same_user(admin: str, other: str) -> str:
    """Return the address of another member, with the user and password that were given for the first."""
    user, at, _ = urllib.parse.urlsplit(admin).netloc.rpartition("@")
    parts = urllib.parse.urlsplit(other)
    return urllib.parse.urlunsplit(parts._replace(netloc=f"{user}{at}{parts.netloc}"))
