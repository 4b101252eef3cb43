"""``tandemmq status`` and ``tandemmq top``: the state of a running broker, once or live."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from tandemmq.cli.admin import admin_option, ask, is_short
from tandemmq.cli.api import rows
from tandemmq.cli.output import Column, json_option, lines, print_facts, print_table, terminal_width

# The columns of the queue table. A column that no queue fills is left out.
QUEUE_COLUMNS: Final = ("messages", "unacknowledged", "consumers", "enqueued", "dequeued")
# The columns of `top`, with the keys of their figures.
TOP_COLUMNS: Final = {
    "queue": "name",
    "messages": "messages",
    "in/s": "in_per_second",
    "out/s": "out_per_second",
    "unacknowledged": "unacknowledged",
    "consumers": "consumers",
}
_CLEAR: Final = "\x1b[H\x1b[J"


@click.command()
@admin_option("Admin address of the broker.")
@json_option
def status(admin: str, as_json: bool) -> None:
    """Show role, epoch, store and queues of a running broker.

    Ends with 0 if a broker answers, master or standby, and with 3 if none does.
    """
    answer = ask(admin)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        _print(answer)


def _print(answer: dict[str, Any]) -> None:
    print_facts(_facts(answer))
    if is_short(answer):
        click.echo("for more than this, name a user with the role viewer (--login NAME), or set TANDEMMQ_ADMIN_TOKEN")
    queues = answer.get("queues") or []
    if not queues:
        return
    columns = [key for key in QUEUE_COLUMNS if any(key in queue for queue in queues)]
    click.echo()
    print_table(
        [Column("queue"), *(Column(key, is_number=True) for key in columns)],
        ([str(queue.get("name", "?")), *(queue.get(key) for key in columns)] for queue in queues),
    )
    left_out = _object(_object(answer, "left_out") or {}, "queues")
    if left_out:
        click.echo(f"and {left_out.get('rows')} more: tandemmq queues list")


def _facts(answer: dict[str, Any]) -> list[tuple[str, str]]:
    role, holder, standby = answer["role"], answer.get("holder"), _object(answer, "standby")
    is_standby = role == "standby"
    facts = [
        ("name", None if is_short(answer) else answer.get("name", "?")),
        ("role", role),
        ("epoch", answer.get("epoch", "?")),
        ("phase", None if answer.get("phase") == role else answer.get("phase")),
        *_lock(answer),
        ("master", (holder_in_words(holder) or "none known") if is_standby else None),
        *(_lag(standby) if standby is not None else ()),
        *_part_in_set(_object(answer, "replication") or {}),
        ("store", None if is_short(answer) else answer.get("store", "?")),
        ("serves" if role == "master" else "will serve", ", ".join(map(str, answer.get("connectors") or ()))),
        *(("bridge", _bridge(each)) for each in answer.get("bridges") or ()),
        ("code", answer.get("code")),
        ("because", None if is_standby else answer.get("reason")),
        # Zeros are left out for people; --json has them.
        *(
            (name.replace("_", " "), _figure(value) if value else None)
            for name, value in (answer.get("counts") or {}).items()
        ),
        *(("problem", problem) for problem in answer.get("problems") or ()),
        *(("warning", warning) for warning in answer.get("warnings") or ()),
    ]
    return [(heading, str(text)) for heading, text in facts if text not in (None, "")]


def _bridge(said: dict[str, Any]) -> str:
    """Describe one bridge: whether it is connected, what it carried, and its last error."""
    where = f"connected to {said.get('address')}" if said.get("connected") else "NOT connected"
    figures = ", ".join(f"{_figure(said[key])} {key}" for key in ("received", "sent", "refused") if said.get(key))
    error = "" if said.get("connected") or not said.get("last_error") else f": {said['last_error']}"
    return f"{said.get('name', '?')} {where}{error}{'; ' if figures else ''}{figures}"


def _object(answer: dict[str, Any], key: str) -> dict[str, Any] | None:
    found = answer.get(key)
    return found if isinstance(found, dict) else None


def _part_in_set(said: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the role of a member in its replicated set; `tandemmq replication status` shows the whole set."""
    if said:
        vote = f"one of {len(said.get('voters') or ())} voters" if said.get("is_voter") else "a learner"
        yield "in its set", f"{said.get('role', '?')}, {vote}, {'whole' if said.get('is_whole') else 'NOT whole'}"
    for follower in (said.get("followers") or {}).values():
        if follower.get("lag_bytes"):
            yield "behind", f"{follower.get('node')} by {_figure(follower['lag_bytes'])} bytes"


def _lock(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lock, the master's proof of ownership, and the demotions so far."""
    if (lock := _object(answer, "lock")) is not None:
        age, holds = lock.get("proof_age_seconds"), lock.get("proof_holds_seconds")
        proof = "" if age is None else f"; proved {age:.1f} s ago"
        proof += "" if holds is None else f", holds for {holds:.1f} s"
        yield "lock", f"{lock.get('type', '?')}{proof}"
    demotions = _object(answer, "demotions") or {}
    yield "demotions", ", ".join(f"{trouble} {_figure(times)}" for trouble, times in demotions.items())
    takeover = answer.get("last_takeover_seconds")
    if isinstance(takeover, int | float):
        yield "took over in", f"{takeover:.3f} s"


def _lag(standby: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how far a standby is behind and how long a take-over would take, if the broker reports it."""
    caught_up = "yes" if standby.get("has_caught_up") else "not yet"
    yield "caught up", f"{caught_up}, {_figure(standby.get('messages'))} messages"
    if (lag := _object(standby, "lag")) is not None:
        yield "behind by", f"{_figure(lag.get('bytes'))} bytes, {_figure(lag.get('records'))} records"
    if (takeover := _object(standby, "takeover")) is not None:
        parts = ", ".join(f"{part} {takeover.get(f'{part}_seconds', 0):.3f}" for part in ("lock", "replay", "load"))
        over = "" if takeover.get("is_within_budget", True) else "; more than failover_budget"
        yield "takes over in", f"{takeover.get('total_seconds', 0):.3f} s ({parts}){over}"


def holder_in_words(holder: Any, facts: Sequence[str] = ("epoch", "host", "pid", "admin")) -> str:
    """Describe the broker that holds the lock, in one line; empty without one. ActiveMQ leaves no name in the lock."""
    if not isinstance(holder, dict):
        return str(holder) if holder else ""
    name = str(holder.get("name") or holder.get("holder") or "an unnamed broker")
    details = [f"{key} {holder[key]}" for key in facts if holder.get(key) is not None]
    return f"{name} ({', '.join(details)})" if details else name


def _figure(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


# ---- top


@click.command()
@admin_option("Admin address of the master.")
@click.option("--interval", type=click.FloatRange(0.2), default=2.0, show_default=True, metavar="SECONDS")
@click.option(
    "--count", type=click.IntRange(1), metavar="COUNT", help="End after this number of updates. Default: at Ctrl-C."
)
@click.option("--rows", "height", type=click.IntRange(1), default=20, show_default=True, metavar="COUNT")
@json_option
def top(admin: str, interval: float, count: int | None, height: int, as_json: bool) -> None:
    """Show the busiest queues with their rates. With --json one object in each line."""
    former: dict[str, dict[str, Any]] = {}
    at = time.monotonic()
    looked = 0
    try:
        while True:
            now = time.monotonic()
            found = {row["name"]: row for row in rows(admin, "destinations/queue", None)}
            rates = [_rates(row, former.get(name), now - at) for name, row in found.items()] if looked else []
            if looked:
                _show(admin, rates, height, as_json)
                if looked == count:
                    return
            former, at = found, now
            looked += 1
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def _rates(row: dict[str, Any], former: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    def rate(name: str) -> float:
        # The counters of a purged queue restart.
        more: int = row[name] - (former or row)[name]
        return round(max(0, more) / seconds, 1)

    return row | {"in_per_second": rate("enqueued"), "out_per_second": rate("dequeued")}


def _show(admin: str, rates: list[dict[str, Any]], height: int, as_json: bool) -> None:
    busiest = sorted(rates, key=lambda row: (-row["in_per_second"] - row["out_per_second"], -row["messages"]))[:height]
    if as_json:
        click.echo(json.dumps({"queues": busiest}))
        return
    status = ask(admin)
    width = terminal_width()
    head = f"{status.get('name', admin)}: {status['role']} of epoch {status['epoch']}, {len(rates)} queues"
    columns = [Column(name, is_number=name != "queue") for name in TOP_COLUMNS]
    table = lines(columns, ([row[key] for key in TOP_COLUMNS.values()] for row in busiest), width)
    text = "\n".join([head, "", *table])
    click.echo(f"{_CLEAR}{text}" if width is not None else f"{text}\n")
