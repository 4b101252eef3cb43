"""The replicated set: `tandemmq replication status`, `add` and `remove`, and the reasons why there is no master.

`leave` and `forget`, on the directory of a stopped node, are in `cli.replication_leave`.
"""

from __future__ import annotations

import json
import sys
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from tandemmq.cli import Commands, LazyGroup
from tandemmq.cli.admin import DEFAULT_ADMIN, NoBroker, NoMaster, NotABroker, admin_option, admins_option, ask, call
from tandemmq.cli.failures import EXIT_FAILED, Unreachable
from tandemmq.cli.output import Column, json_option, print_table, say_each

Answer = dict[str, Any]
COLUMNS: Final = (
    "node",
    "was",
    "role",
    "epoch",
    "position",
    "final",
    "behind",
    "vote",
    "whole",
    "weight",
    "store",
    "admin",
)
#: The broker itself gives up a change of voters after 30 s.
CHANGE_SECONDS_MAX: Final = 35.0
#: A member that was silent for this long counts as away.
SILENT_SECONDS: Final = 3.0

COMMANDS: Final[Commands] = {
    "status": ("tandemmq.cli.replication", "Show each member, its position, and why there is no master."),
    "add": ("tandemmq.cli.replication", "Give a vote to a learner."),
    "remove": ("tandemmq.cli.replication", "Take the vote of a node away."),
    "leave": ("tandemmq.cli.replication_leave", "End the membership of a directory."),
    "forget": ("tandemmq.cli.replication_leave", "End the membership after the quorum is lost for ever."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def replication() -> None:
    """Show and change a replicated set of brokers."""


@click.command()
@admins_option(f"Admin address of a member; repeatable. Default: {DEFAULT_ADMIN}.")
@json_option
def status(admins: tuple[str, ...], as_json: bool) -> None:
    """Show each member of a set: role, epoch, position, lag, and whether its vote counts.

    One member is enough: it knows the others, or their admin addresses. Ends with 0 if there is a master with a quorum,
    with 1 and the reason if not, with 3 if no member answers.
    """
    answers, complaints = ask_members(admins or (DEFAULT_ADMIN,))
    if not answers:
        raise Unreachable("\n".join(complaints))
    say_each("", complaints, is_error=True)
    members = seen(answers)
    master = master_of(members)
    why = why_no_master(members)
    if as_json:
        click.echo(json.dumps(_as_json(answers, members, master, why), indent=2))
    else:
        _print(answers, members, master, why)
    sys.exit(EXIT_FAILED if why else 0)


def ask_members(admins: Sequence[str]) -> tuple[list[Answer], list[str]]:
    """Return the answers of the members at ``admins``, and of those from which these members received nothing; and an
    error text for each member that does not answer."""
    answers: list[Answer] = []
    complaints: list[str] = []
    asked: set[str] = set()
    waiting = list(admins)
    while waiting:
        admin = waiting.pop(0)
        if admin in asked:
            continue
        asked.add(admin)
        try:
            answers.append(ask(admin, "replication"))
        except (NoBroker, NotABroker) as error:
            is_single = isinstance(error, NotABroker) and "answers 404" in str(error)
            complaints.append(
                f"the broker at {admin} belongs to no set: it has no [replication]" if is_single else str(error)
            )
        if not waiting and answers:
            heard = {each.store for each in seen(answers) if each.said is not None}
            further = [each for answer in answers for each in answer["members"] if each["store"] not in heard]
            waiting = [each["admin"] for each in further if each["admin"] and each["admin"] not in asked]
    return answers, complaints


def seen(answers: Sequence[Answer]) -> list[Seen]:
    """Return each member once, by its latest status. The answer of the member itself counts most."""
    direct = {answer["store"]: answer for answer in answers}
    # Of two voter lists the one of the later epoch counts.
    newest = max(answers, key=lambda answer: (answer["epoch"], answer["position"]))
    found: dict[str, Seen] = {}
    for answer in answers:
        for each in answer["members"]:
            store = str(each["store"])
            said, ago = (direct[store], 0.0) if store in direct else (each["said"], each["said_seconds_ago"])
            if ago is not None and ago > SILENT_SECONDS:
                said = None
            former = found.get(store)
            if former is not None and (former.said is not None or said is None):
                continue
            found[store] = Seen(store, str(each["node"]), store in newest["voters"], said, ago)
    return sorted(found.values(), key=lambda each: each.node)


def _behind(member: Seen, master: Seen | None) -> str:
    """Return by how many bytes the member is behind, as the master reports."""
    if master is None or member is master:
        return ""
    follower = ((master.said or {}).get("followers") or {}).get(member.store)
    if follower is None:
        return "does not follow"
    lag = follower.get("lag_bytes")
    return "?" if lag is None else f"{lag:,} bytes"


def _row(member: Seen, master: Seen | None, admins: dict[str, str]) -> list[str]:
    said = member.said
    vote = "yes" if member.is_voter else "learner"
    admin = admins.get(member.store, "")
    if said is None:
        ago = member.said_seconds_ago
        role = "away" if ago is None else f"away for {ago:.0f} s"
        return [member.node, "", role, "", "", "", "", vote, "", "", member.store, admin]
    file, end = said["final"]
    epoch, at, to = said["position"]
    return [
        member.node,
        str(said.get("was") or ""),
        str(said["role"]),
        str(said["epoch"] or epoch),
        f"db-{at}.log {to:,}" if at else "nothing",
        f"db-{file}.log {end:,}" if file else "",
        _behind(member, master),
        vote,
        "yes" if said["is_whole"] else "NO",
        str(said.get("weight", "")),
        member.store,
        admin,
    ]


def _admins(answers: Sequence[Answer]) -> dict[str, str]:
    return {each["store"]: each["admin"] for answer in answers for each in answer["members"] if each["admin"]}


def _print(answers: Sequence[Answer], members: Sequence[Seen], master: Seen | None, why: Sequence[str]) -> None:
    sets = sorted({answer["set"] for answer in answers if answer["set"]})
    click.echo(f"set {answers[0]['broker']} {', '.join(sets) or '(not founded yet)'}")
    click.echo(f"master: {'none' if master is None else master.node}")
    for reason in why:
        click.echo(f"  {reason}")
    rows = [_row(member, master, _admins(answers)) for member in members]
    shown = [number for number in range(len(COLUMNS)) if any(row[number] for row in rows)]
    click.echo()
    print_table([Column(COLUMNS[number]) for number in shown], ([row[number] for number in shown] for row in rows))
    for member in members:
        said = member.said or {}
        for key in ("problem", "twins", "zookeeper"):
            if said.get(key):
                click.echo(f"{member.node}: {said[key]}")


def _as_json(answers: Sequence[Answer], members: Sequence[Seen], master: Seen | None, why: Sequence[str]) -> Answer:
    followers = {} if master is None else (master.said or {}).get("followers") or {}
    admins = _admins(answers)
    return {
        "broker": answers[0]["broker"],
        "set": next((answer["set"] for answer in answers if answer["set"]), None),
        "master": None if master is None else master.node,
        "why_no_master": list(why),
        "members": [
            {
                "node": member.node,
                "store": member.store,
                "admin": admins.get(member.store),
                "is_voter": member.is_voter,
                "is_there": member.said is not None,
                "said_seconds_ago": member.said_seconds_ago,
                "lag_bytes": (followers.get(member.store) or {}).get("lag_bytes"),
                "said": None
                if member.said is None
                else {key: value for key, value in member.said.items() if key not in ("members", "followers")},
            }
            for member in members
        ],
    }


# ---- reasons, from the status of the members: pure


@dataclass(frozen=True, slots=True)
class Seen:
    """State of one member. ``said``: its status; None: nothing was received from it, or not within SILENT_SECONDS."""

    store: str
    node: str
    is_voter: bool
    said: dict[str, Any] | None
    said_seconds_ago: float | None = None

    @property
    def is_master(self) -> bool:
        return self.said is not None and self.said.get("role") == "master"


def master_of(members: Sequence[Seen]) -> Seen | None:
    """Return the master: of two that claim to be, the one of the later epoch."""
    masters = [each for each in members if each.is_master]
    return max(masters, key=lambda each: (each.said or {}).get("epoch", 0), default=None)


def why_no_master(members: Sequence[Seen]) -> list[str]:
    """Return the reasons, or an empty list if a master has its quorum."""
    master = master_of(members)
    if master is not None:
        assert master.said is not None, "a master has a status"
        if master.said.get("has_quorum", True):
            return []
        return [f"{master.node} was master, and no quorum answers it any more", *_lacking(members)]
    voters = [each for each in members if each.is_voter]
    if not voters or all(each.said is not None and not each.said.get("set") for each in members):
        return ["the set is not founded yet", *_problems(members)]
    return _lacking(members)


def _lacking(members: Sequence[Seen]) -> list[str]:
    voters = [each for each in members if each.is_voter]
    quorum = len(voters) // 2 + 1
    whole = [each for each in voters if each.said is not None and each.said.get("is_whole") and not _is_out(each.said)]
    reasons = [f"{each.node} is not there{_last_heard(each)}" for each in voters if each.said is None]
    reasons += [
        f"{each.node} lacks files of the journal and does not count until it has them"
        for each in voters
        if each.said is not None and not each.said.get("is_whole")
    ]
    reasons += _problems(voters)
    if len(whole) < quorum:
        return [f"{quorum} of {len(voters)} voters must be connected and whole; {len(whole)} are", *reasons]
    first = max((_position(each) for each in whole), default=(0, 0, 0))
    behind = [each.node for each in whole if _position(each) < first]
    if behind:
        ahead = next(each.node for each in whole if _position(each) == first)
        reasons.append(f"{', '.join(behind)} {'is' if len(behind) == 1 else 'are'} behind {ahead}, which must lead")
    return [f"{len(whole)} of {len(voters)} voters are connected and whole: an election should end soon", *reasons]


def _problems(members: Sequence[Seen]) -> list[str]:
    said = [(each.node, str((each.said or {}).get("problem") or "")) for each in members]
    return list(dict.fromkeys(f"{node}: {problem}" for node, problem in said if problem))


def _is_out(said: dict[str, Any]) -> bool:
    """Return whether the node has a problem that keeps it from taking part."""
    return str(said.get("problem") or "").startswith(("FORK", "BUG", "the copy of the journal is damaged"))


def _position(member: Seen) -> tuple[int, ...]:
    return tuple((member.said or {}).get("position") or (0, 0, 0))


def _last_heard(member: Seen) -> str:
    ago = member.said_seconds_ago
    return "" if ago is None else f": last contact {ago:.0f} s ago"


# ---- voters


_admin = admin_option("Admin address of any member; it names the master.")


@click.command()
@click.argument("who", metavar="NODE|STORE")
@_admin
@json_option
def add(who: str, admin: str, as_json: bool) -> None:
    """Give a vote to the node NODE, or the store STORE.

    It must be a learner that has caught up. Returns when the change is on the disks of a quorum.
    """
    _change("add", who, admin, as_json)


@click.command()
@click.argument("who", metavar="NODE|STORE")
@_admin
@json_option
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
        raise NoMaster(f"{answer['node']} knows no master; tandemmq replication status shows why")
    for member in answer["members"]:
        if member["node"] == answer["master"] and member["admin"]:
            return _as_same_user(admin, str(member["admin"]))
    raise NoMaster(f"the master is {answer['master']}, and has no admin address: run the command there")


def _as_same_user(admin: str, other: str) -> str:
    """Return the address of another member, with the user and password that were given for the first."""
    user, at, _ = urllib.parse.urlsplit(admin).netloc.rpartition("@")
    parts = urllib.parse.urlsplit(other)
    return urllib.parse.urlunsplit(parts._replace(netloc=f"{user}{at}{parts.netloc}"))
