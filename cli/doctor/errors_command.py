"""``tandemmq doctor errors``: how the broker recognises each failure, what the failure leads to, how long a broker that
holds the lock waits for anything, and what an operator does.

Everything but the advice is printed from the tables that the broker uses (broker.ha.states, broker.ha.waits);
docs/troubleshooting.md holds the table of ``failure_table``.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import click

from tandemmq.broker.ha import states
from tandemmq.broker.ha.waits import BOUNDS, Wait
from tandemmq.cli.output import json_option
from tandemmq.locker.sql import errors as sql_errors


class Advice(NamedTuple):
    """``seen``: what the operator sees first. ``do``: what the operator does."""

    seen: str
    do: str


ADVICE: Final[Mapping[states.Trouble, Advice]] = {
    states.Trouble.DEPOSED: Advice(
        "The log names the file and the epoch of the other broker.",
        "Nothing: late writes of the old master do not count. If it happens again and again, both brokers get one "
        "lock at the same time: run `tandemmq doctor storage DIR`.",
    ),
    states.Trouble.LOCK_LOST: Advice(
        "`tandemmq lock status` shows another holder, or a changed file or row.",
        "Find the program that deletes the lock file or writes to the lock table.",
    ),
    states.Trouble.PROOF_EXPIRED: Advice(
        "Earlier log lines warn that the lock does not answer. `tandemmq_lock_proof_age_seconds` grows.",
        "Check the lock server, or the volume of the lock file. For a slow server, set a longer lease or "
        "`lock_keep_alive_period`.",
    ),
    states.Trouble.LOOP_HUNG: Advice(
        "`tandemmq failover explain` shows `stalled` and `cut`.",
        "Check whether the process was frozen, the machine suspended, or short of processor time. If not, report "
        "it with the log.",
    ),
    states.Trouble.STORAGE_HUNG: Advice(
        "`tandemmq status` shows that the storage thread shows no life.",
        "Check `dmesg`, the mount and the file server. The broker becomes a standby again when the hanging call "
        "returns, or after a restart.",
    ),
    states.Trouble.SERVICE_HUNG: Advice(
        "The log names the step that did not finish.",
        "If a name server does not answer for the host of a connector, set an IP address there.",
    ),
    states.Trouble.LOCK_HELD: Advice(
        "The broker exits with 1 and names the holder.",
        "Start it without `fail_if_locked`, or stop the holder.",
    ),
    states.Trouble.LOCK_REFUSED: Advice(
        "The log has the message of the server and its SQLSTATE.",
        "Correct the password, the rights, the database or the table. Give each broker of a pair its own name.",
    ),
    states.Trouble.LOCK_SILENT: Advice(
        "One warning in the log for each new reason.",
        "Check the lock server. A master demotes itself when its last proof expires.",
    ),
    states.Trouble.NO_SPACE: Advice(
        "Producers were refused before. `tandemmq status` shows a warning.",
        "Free space, or drain queues (`tandemmq store why`). Check whether `disk_reserve` is 0, or another "
        "program fills the volume.",
    ),
    states.Trouble.READ_ONLY: Advice(
        "errno EROFS, EACCES or EPERM, and the path.",
        "A file system that turned read-only had an error: check `dmesg`. Otherwise correct the owner and mode of "
        "the directory.",
    ),
    states.Trouble.GONE: Advice(
        "errno ESTALE, ENOENT or a similar one, and the path.",
        "The volume was unmounted or exported again, or files were moved. Mount it. Never delete journal files.",
    ),
    states.Trouble.EXHAUSTED: Advice(
        "errno EMFILE, ENFILE or ENOMEM.",
        "Raise `LimitNOFILE`, or give the process more memory.",
    ),
    states.Trouble.PORT_TAKEN: Advice(
        "The log names the connector, the host and the port.",
        "Stop the program that uses the port (`ss -ltnp`), or set another port.",
    ),
    states.Trouble.DISK_FAILED: Advice(
        "errno EIO or another one, and the path.",
        "Check the disk before this broker becomes master again.",
    ),
    states.Trouble.DAMAGED: Advice(
        "The log names the file, the offset and the ids of the affected messages.",
        "Restore a backup, or lose the affected messages with `ignore_missing_journalfiles`. If all files are lost: "
        "`tandemmq store afresh`.",
    ),
    states.Trouble.INDEX: Advice(
        "The log names the directory of the index.",
        "The broker rebuilds the index from the journal. If it happens again, check the disk of the index.",
    ),
    states.Trouble.BUG: Advice(
        "A stack trace in the log; exit code 1.",
        "Report it with the log. The other broker is master; the supervisor restarts this one.",
    ),
}


class Database(NamedTuple):
    """The meaning of a database's errors for a lock (locker.sql.errors), to be printed."""

    name: str
    known_by: str
    refused: list[str]
    busy: list[str]


DATABASES: Final = (
    Database(
        "PostgreSQL",
        "SQLSTATE",
        [f"class {each}" for each in sorted(sql_errors.REFUSED_CLASSES)],
        sorted(sql_errors.BUSY_STATES),
    ),
    Database(
        "MariaDB, MySQL",
        "error number (SQLSTATE)",
        [f"{number} ({state})" for number, state in sorted(sql_errors.MYSQL_REFUSED.items())],
        [str(number) for number in sorted(sql_errors.MYSQL_BUSY)],
    ),
    Database(
        "SQLite",
        "result code",
        [str(code) for code in sorted(sql_errors.SQLITE_REFUSED)],
        [str(code) for code in sorted(sql_errors.SQLITE_BUSY)],
    ),
)


@click.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print all tables as Markdown.")
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
    """Return how a trouble is recognised, in words: types, and the errnos where they decide."""
    found = [_sign(sign) for sign in states.RECOGNISED if sign.trouble is trouble]
    return found or ["anything else"]


def _sign(sign: states.Sign) -> str:
    names = ", ".join(kind.__name__ for kind in sign.types)
    errnos = ", ".join(errno.errorcode[number] for number in sorted(sign.errnos))
    return f"{names} with {errnos}" if errnos else names


def tables() -> dict[str, Any]:
    """Return everything as JSON-able values."""
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


# ---- as Markdown


def markdown() -> str:
    """Return all tables."""
    parts = [*_phases(), "", *_answers(), "", *_waits(), "", *_known_by(), "", "## What to do", ""]
    return "\n".join(parts) + f"\n{failure_table()}"


def failure_table() -> str:
    """Return the table of docs/troubleshooting.md: each failure, and what to do."""
    rows = (
        (
            f"{_named(trouble)}: {trouble.value}",
            *(_WORDS[states.ANSWERS[trouble][moment]] for moment in (states.Moment.START, states.Moment.MASTER)),
            *ADVICE[trouble],
        )
        for trouble in states.Trouble
    )
    columns = ("failure", states.Moment.START.value, states.Moment.MASTER.value, "what you see", "what to do")
    return "\n".join(_table(columns, rows)) + "\n"


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
    yield from _table(("phase", "role in `status`", "event", "next phase"), rows)


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
    yield f"After {leaving} the broker leaves the lock to the other broker for a while, as after a handover."


def _waits() -> Iterator[str]:
    yield '## Waits between "lock granted" and "lock released"'
    yield ""
    yield (
        "A broker that makes no progress does not keep the lock. A thread that computes shows life; a thread that "
        "waits for a volume does not."
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
    columns = ("phase", "wait for", "bound", "what happens at the bound", "noticed by")
    yield from _table(columns, rows)


_WORDS: Final = {states.Answer.CONTINUE: "continues", states.Answer.DEMOTE: "demotes", states.Answer.END: "ends"}


def _known_by() -> Iterator[str]:
    yield "## How a failure is recognised"
    yield ""
    yield "By its type, its errno or its SQLSTATE, never by the text of a message. The first row that matches decides."
    yield ""
    rows = []
    for sign in states.RECOGNISED:
        types = ", ".join(f"`{kind.__name__}`" for kind in sign.types)
        errnos = ", ".join(f"`{errno.errorcode[number]}`" for number in sorted(sign.errnos))
        rows.append((_named(sign.trouble), types, errnos or "any"))
    yield from _table(("failure", "type", "and errno"), [*rows, (_named(states.Trouble.BUG), "anything else", "")])
    yield ""
    yield "Errors of a lock's database are sorted first, by SQLSTATE or number:"
    yield ""
    yield from _table(
        ("database", "known by", _named(states.Trouble.LOCK_REFUSED), "another broker has the lock"),
        ((name, known_by, ", ".join(refused), ", ".join(busy)) for name, known_by, refused, busy in DATABASES),
    )
    yield ""
    yield f"Any other error of a database is `{states.Trouble.LOCK_SILENT.name}`."
