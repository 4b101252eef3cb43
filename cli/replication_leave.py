"""``tandemmq replication leave`` and ``forget``: a directory of a set becomes that of a single broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

import click

from tandemmq.broker.replication.member import Leaver, NotMember, Standing, leaver
from tandemmq.broker.replication.promise import PromiseFileInUse, PromiseUnknown
from tandemmq.cli.failures import Failed
from tandemmq.cli.output import json_option, say_each, tell
from tandemmq.journal.errors import JournalError

DIRECTORY = click.Path(exists=True, file_okay=False)


@click.command()
@click.argument("directory", type=DIRECTORY)
@json_option
def leave(directory: str, as_json: bool) -> None:
    """End the membership of DIRECTORY, whose node is stopped. A broker without [replication] can then use it.

    Shows records that were not known to be final: they count from now on, though the set may not have confirmed them.
    Refused if this node lacks files, or if it knows that another node had more: then use the directory of that node.
    `forget` ignores this.
    """
    with _stopped(directory) as stopped:
        standing = stopped.standing()
        ahead = standing.ahead()
        if standing.damage is not None or ahead:
            _tell(_missing(standing), as_json)
            raise Failed(f"the node did not leave; to force it: tandemmq replication forget {directory} --yes")
        said = [*_contents(standing), *_not_final(standing)]
        _tell(said, as_json)
        kept = stopped.leave()
        tell(as_json, {"left": directory, "promise": kept, "said": said}, f"left: the promise is in {kept}")


@click.command()
@click.argument("directory", type=DIRECTORY)
@click.option("--yes", "is_sure", is_flag=True, help="Accept the reported losses.")
@json_option
def forget(directory: str, is_sure: bool, as_json: bool) -> None:
    """Continue with the content of DIRECTORY after the quorum of its set is lost forever.

    Updates that only the other nodes have are lost. The command lists the nodes that had more, as far as this node
    knew. Without --yes it changes nothing and ends with 1. Do not start the directories of the other nodes again.
    """
    with _stopped(directory) as stopped:
        standing = stopped.standing()
        said = [*_contents(standing), *_not_final(standing), *_missing(standing), *_unknown(standing)]
        _tell(said, as_json)
        if not is_sure:
            raise Failed("nothing was done; to accept this, use --yes")
        kept = stopped.leave()
        tell(as_json, {"forgotten": directory, "promise": kept, "said": said}, f"forgotten: the promise is in {kept}")


@contextmanager
def _stopped(directory: str) -> Iterator[Leaver]:
    """Yield the `leaver` of the directory. If it refuses, the command ends with 1."""
    try:
        with leaver(directory) as stopped:
            yield stopped
    except (NotMember, PromiseFileInUse, PromiseUnknown, JournalError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _tell(sentences: Iterable[str], as_json: bool) -> None:
    """Print the sentences for people; the JSON at the end contains them for programs."""
    say_each("", sentences, is_error=as_json)


def _contents(standing: Standing) -> Iterator[str]:
    promise, header = standing.promise, standing.set
    node = "this node, whose promise cannot be read," if promise is None else f"{promise.node} (store {promise.store})"
    if header is None:
        yield f"{node} belongs to no set yet: its journal names none"
    else:
        voters = ", ".join(header.names.get(each, each[:8]) for each in header.voters)
        yield f"{node} belongs to the set {header.id}; its voters by this journal: {voters}"
    yield f"the journal ends in epoch {standing.position.epoch} at {_at(*standing.position[1:])}"


def _not_final(standing: Standing) -> Iterator[str]:
    if standing.set is None or standing.position[1:] == (0, 0):
        return
    if standing.has_all_final:
        yield "all of it was final: on the disks of a quorum"
    elif standing.final is None:
        yield "how much of it was final is unknown; the rest counts from now on, too"
    else:
        yield f"up to {_at(*standing.final)} it was known to be final; the rest counts from now on, too"


def _missing(standing: Standing) -> list[str]:
    sentences = [] if standing.damage is None else [f"it is not whole: {standing.damage}"]
    for each in standing.ahead():
        at = _at(*each.position[1:])
        sentences.append(f"{each.node} had more: it was in epoch {each.position.epoch} at {at}{_when(standing)}")
    return sentences


def _unknown(standing: Standing) -> Iterator[str]:
    if standing.set is None:
        return
    for each in standing.others.values():
        if each.position <= standing.position and each.is_voter:
            yield f"{each.node} had no more{_when(standing)}; updates that it received later are unknown here"
    unheard = standing.unheard()
    if unheard:
        yield f"the position of {', '.join(unheard)} is unknown here: anything beyond this journal is lost"


def _at(file: int, end: int) -> str:
    return f"db-{file}.log {end}" if file else "nothing"


def _when(standing: Standing) -> str:
    if standing.known_at is None:
        return ""
    return datetime.fromtimestamp(standing.known_at).astimezone().strftime(", known on %Y-%m-%d at %H:%M:%S")
