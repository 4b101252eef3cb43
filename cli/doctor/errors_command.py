"""``tandemmq doctor errors``: which failure is known by what, what it leads to, how long anything is waited for by one
who holds the lock, and what an operator does then.

Everything but the advice is printed from the tables that the broker lives by (broker.ha.states, broker.ha.waits);
docs/failures.md holds what ``--markdown`` prints.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import click

from tandemmq.broker.ha import states
from tandemmq.broker.ha.waits import BOUNDS, Wait
from tandemmq.cli.answers import json_option
from tandemmq.locker.sql import states as sql_states


class Advice(NamedTuple):
    """``seen``: what the operator meets first. ``do``: what he does."""

    seen: str
    do: str


ADVICE: Final[Mapping[states.Trouble, Advice]] = {
    states.Trouble.DEPOSED: Advice(
        "The log names the file and epoch of the other broker; `tandemmq status` of both shows who is master.",
        "Nothing: what it wrote too late counts for nobody. If it comes again and again, two brokers get one lock: "
        "`tandemmq doctor storage DIR`.",
    ),
    states.Trouble.LOCK_LOST: Advice(
        "`tandemmq lock status` names another holder, or a lock file or row that somebody changed.",
        "Nothing, when it was meant. Else find what deletes the lock file or writes into the lock's table.",
    ),
    states.Trouble.PROOF_EXPIRED: Advice(
        "The log has warned before that the lock cannot be asked; `tandemmq_lock_proof_age_seconds` has grown.",
        "See to the lock's server, or the volume of the lock file. A short proof and a slow server do not go together: "
        "a longer lease, or a longer `lock_keep_alive_period`.",
    ),
    states.Trouble.LOOP_HUNG: Advice(
        "`stalled` and `cut` in `tandemmq failover explain`; clients were cut off.",
        "The process was stopped, the machine suspended or starved of processor time. If not, report it with the log.",
    ),
    states.Trouble.STORAGE_HUNG: Advice(
        "`/health` said before that the storage thread shows no life.",
        "The volume hangs: `dmesg`, the mount, the file server. The broker stands by again when the call "
        "that hung has come back, or when its supervisor has started it anew.",
    ),
    states.Trouble.SERVICE_HUNG: Advice(
        "The log names what was not done in time.",
        "A name server that does not answer for a connector's host, most likely: give the connector an address.",
    ),
    states.Trouble.LOCK_HELD: Advice(
        "The broker ends with 1 and names the holder.",
        "Start it without `fail_if_locked`, so that it stands by; or stop the holder.",
    ),
    states.Trouble.LOCK_REFUSED: Advice(
        "The message has the server's own words and its SQLSTATE.",
        "Mend password, rights, database or table; give each broker of a pair a name of its own.",
    ),
    states.Trouble.LOCK_SILENT: Advice(
        "A warning in the log, once for each new reason; the age of the proof grows.",
        "See to the lock's server. The master goes on as long as its last proof holds, and demotes itself then.",
    ),
    states.Trouble.NO_SPACE: Advice(
        "Producers have been refused before, with the reason; `tandemmq status` shows it as a warning.",
        "Make room, or let consumers drain: `tandemmq store why`. Is `disk_reserve` 0, or does somebody else fill it?",
    ),
    states.Trouble.READ_ONLY: Advice(
        "errno EROFS, EACCES or EPERM, and the path.",
        "A file system that turned read-only has had an error: `dmesg`. Else mend owner and mode of the directory.",
    ),
    states.Trouble.GONE: Advice(
        "errno ESTALE, ENOENT or their kin, and the path.",
        "The volume was unmounted or exported anew, or somebody moved files. Mount it; never delete journal files.",
    ),
    states.Trouble.EXHAUSTED: Advice(
        "errno EMFILE, ENFILE or ENOMEM.",
        "Raise LimitNOFILE of the unit, or give the process more memory; count connections in `tandemmq status`.",
    ),
    states.Trouble.PORT_TAKEN: Advice(
        "The message names connector, host and port.",
        "Find who listens there (`ss -ltnp`), or give the connector another port.",
    ),
    states.Trouble.DISK_FAILED: Advice(
        "errno EIO or another, and the path; the store takes nothing more from that moment.",
        "A failed sync is final: what the kernel dropped is gone, and whoever takes over reads what is really there. "
        "See to the disk before this broker is to be master again.",
    ),
    states.Trouble.DAMAGED: Advice(
        "The message names file, offset and the ids of the messages concerned.",
        "`tandemmq store check`, a backup, or `ignore_missing_journalfiles`, which loses what it names. "
        "If no journal file is left and none can be restored: `tandemmq store afresh`.",
    ),
    states.Trouble.INDEX: Advice(
        "The message names the directory of the index.",
        "An index is made anew from the journal: `tandemmq store rebuild-index`. If it comes again, see to that disk.",
    ),
    states.Trouble.BUG: Advice(
        "A trace in the log, and exit code 1.",
        "Report it with the log. The supervisor starts the broker again; the other one is master meanwhile.",
    ),
}


class Database(NamedTuple):
    """What a database's errors mean for a lock (locker.sql.states), to be printed."""

    name: str
    known_by: str
    refused: list[str]
    busy: list[str]


DATABASES: Final = (
    Database(
        "PostgreSQL",
        "SQLSTATE",
        [f"class {each}" for each in sorted(sql_states.REFUSED_CLASSES)],
        sorted(sql_states.BUSY_STATES),
    ),
    Database(
        "MariaDB, MySQL",
        "error number (SQLSTATE)",
        [f"{number} ({state})" for number, state in sorted(sql_states.MYSQL_REFUSED.items())],
        [str(number) for number in sorted(sql_states.MYSQL_BUSY)],
    ),
    Database(
        "SQLite",
        "result code",
        [str(code) for code in sorted(sql_states.SQLITE_REFUSED)],
        [str(code) for code in sorted(sql_states.SQLITE_BUSY)],
    ),
)


@click.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@json_option
def errors(as_markdown: bool, as_json: bool) -> None:
    """Print all classes of failure, how each is recognised, and its effect in each phase."""
    if as_json:
        click.echo(json.dumps(tables(), indent=2))
    elif as_markdown:
        click.echo(markdown(), nl=False)
    else:
        for trouble in states.Trouble:
            click.echo("\n".join(_paragraph(trouble)))
            click.echo()


# ---- the tables


def signs(trouble: states.Trouble) -> list[str]:
    """By what a trouble is known, in words: types, and the errnos where they decide."""
    found = [_sign(sign) for sign in states.RECOGNISED if sign.trouble is trouble]
    return found or ["anything else"]


def _sign(sign: states.Sign) -> str:
    names = ", ".join(kind.__name__ for kind in sign.types)
    errnos = ", ".join(errno.errorcode[number] for number in sorted(sign.errnos))
    return f"{names} with {errnos}" if errnos else names


def tables() -> dict[str, Any]:
    """Everything, as JSON-able values."""
    return {
        "transitions": [
            {"from": before.value, "event": event.value, "to": after.value}
            for (before, event), after in states.TRANSITIONS.items()
        ],
        "troubles": [
            {
                "trouble": trouble.name,
                "meaning": trouble.value,
                "signs": signs(trouble),
                "answers": {moment.value: states.ANSWERS[trouble][moment].name for moment in states.Moment},
                "leaves_the_lock": trouble in states.LEAVES_THE_LOCK,
                **ADVICE[trouble]._asdict(),
            }
            for trouble in states.Trouble
        ],
        "databases": [database._asdict() for database in DATABASES],
        "waits": [
            {
                "phases": [phase.value for phase in BOUNDS[wait].phases],
                "awaited": wait.value,
                "bound": str(BOUNDS[wait]),
                "at_bound": BOUNDS[wait].at_bound,
                "noticed_by": BOUNDS[wait].notices.value,
            }
            for wait in Wait
        ],
    }


def _paragraph(trouble: states.Trouble) -> Iterator[str]:
    yield f"{trouble.name}: {trouble.value}"
    yield f"  known by  {'; '.join(signs(trouble))}"
    for moment in states.Moment:
        yield f"  {moment.value:<21} {states.ANSWERS[trouble][moment].value}"
    yield f"  seen      {ADVICE[trouble].seen}"
    yield f"  do        {ADVICE[trouble].do}"


# ---- for the documentation


def markdown() -> str:
    """The tables of docs/failures.md."""
    return "\n".join([*_phases(), "", *_answers(), "", *_waits(), "", *_known_by(), "", *_advice()]) + "\n"


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    head = list(columns)
    for cells in (head, ["---"] * len(head), *rows):
        yield "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _named(trouble: states.Trouble) -> str:
    return f"`{trouble.name}`"


def _phases() -> Iterator[str]:
    yield "## Phases"
    yield ""
    rows: list[tuple[str, ...]] = []
    for phase in states.Phase:
        steps = [(event.value, f"`{after.value}`") for (at, event), after in states.TRANSITIONS.items() if at is phase]
        first, *others = steps or [("–", "–")]
        rows += [(f"`{phase.value}`", phase.role.value, *first), *(("", "", *step) for step in others)]
    yield from _table(("phase", "role in `status`", "what happens", "the next phase"), rows)


def _answers() -> Iterator[str]:
    yield "## What each failure leads to"
    yield ""
    rows = (
        (f"{_named(trouble)}: {trouble.value}", *(_WORDS[states.ANSWERS[trouble][moment]] for moment in states.Moment))
        for trouble in states.Trouble
    )
    yield from _table(("failure", *(moment.value for moment in states.Moment)), rows)
    yield ""
    for answer, word in _WORDS.items():
        yield f"- *{word}*: {answer.value}."
    yield ""
    leaving = ", ".join(_named(trouble) for trouble in states.Trouble if trouble in states.LEAVES_THE_LOCK)
    yield f"After {leaving} the lock is left to the other broker for a while, as after a handover: it may fare better."


def _waits() -> Iterator[str]:
    yield '## Waits between "lock granted" and "lock released"'
    yield ""
    yield (
        "A broker that makes no progress does not keep the lock. A thread that computes shows life, one that waits for "
        "a volume does not."
    )
    yield ""
    rows = (
        (
            ", ".join(f"`{phase.value}`" for phase in bound.phases) or "any",
            *(wait.value, bound, bound.at_bound, bound.notices.value),
        )
        for wait in Wait
        for bound in (BOUNDS[wait],)
    )
    columns = ("phase", "what is waited for", "bound", "what happens at the bound", "who notices")
    yield from _table(columns, rows)


_WORDS: Final = {states.Answer.GO_ON: "goes on", states.Answer.DEMOTE: "demotes", states.Answer.END: "ends"}


def _known_by() -> Iterator[str]:
    yield "## By what a failure is known"
    yield ""
    yield "By its type, its errno or its SQLSTATE, never by the text of a message. The first row that fits decides."
    yield ""
    rows = []
    for sign in states.RECOGNISED:
        types = ", ".join(f"`{kind.__name__}`" for kind in sign.types)
        errnos = ", ".join(f"`{errno.errorcode[number]}`" for number in sorted(sign.errnos))
        rows.append((_named(sign.trouble), types, errnos or "any"))
    yield from _table(("failure", "type", "and errno"), [*rows, (_named(states.Trouble.BUG), "anything else", "")])
    yield ""
    yield "What a lock's database says is sorted first, by SQLSTATE or number:"
    yield ""
    yield from _table(
        ("database", "known by", _named(states.Trouble.LOCK_REFUSED), "somebody else has the lock"),
        ((name, known_by, ", ".join(refused), ", ".join(busy)) for name, known_by, refused, busy in DATABASES),
    )
    yield ""
    yield f"All else that a database says is `{states.Trouble.LOCK_SILENT.name}`: the lock could not be asked."


def _advice() -> Iterator[str]:
    yield "## What an operator sees, and does"
    yield ""
    rows = ((_named(trouble), *ADVICE[trouble]) for trouble in states.Trouble)
    yield from _table(("failure", "seen", "what to do"), rows)
