"""``tandemmq replication status``: the status of each member of a set, and why there is no master."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from tandemmq.cli.admin import DEFAULT_ADMIN, NoBroker, NotABroker, admins_option, ask
from tandemmq.cli.failures import EXIT_FAILED, Unreachable
from tandemmq.cli.output import Column, json_option, print_table, say_each
from tandemmq.cli.replication.reasons import SILENT_SECONDS, Seen, master_of, why_no_master

Answer = dict[str, Any]
COLUMNS = ("node", "was", "role", "epoch", "position", "final", "behind", "vote", "whole", "weight", "store", "admin")


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
    """Return the answers at ``admins`` and of members that those heard nothing of, and complaints about the others."""
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
