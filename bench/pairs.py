"""``python -m tandemmq.bench --scenario pairs``: memory of pairs of objects, compared with the broker's own count.

Each case is an attack on a broker of its own: a few clients make the broker store data for each pair of two objects, or
for each character of a name. The growth of the process (``VmRSS``) may differ from the growth of ``memory_used_bytes``
by a fifth, or by 8 MiB.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tandemmq.bench.driver.stomp import command_frame, connect
from tandemmq.bench.growth import SETTLE_SECONDS, Field, resident, send_frames
from tandemmq.bench.peers.server import TandemMQ
from tandemmq.bench.report import Say, aligned, head

APART_BYTES: Final = 8 << 20
APART_PART: Final = 0.2
# A connection has 1,000 subscriptions at most.
OF_A_CONNECTION: Final = 500
# Maximum number of words in a name, which has at most 512 bytes.
WORDS: Final = 256

Attack = Callable[[Field], None]


def pairs(cases: Sequence[str], say: Say) -> dict[str, Any]:
    """Return the used memory and the counted memory of each case."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    runs = []
    for name in cases:
        runs.append(found := {"case": name, **_run(ATTACKS[name])})
        say(f"{name:<18} used {_mib(found['used_bytes'])} MiB  counted {_mib(found['counted_bytes'])} MiB")
    return {
        **head("pairs"),
        "runs": runs,
        "has_failed": not all(each["is_counted"] for each in runs),
    }


def _run(attack: Attack) -> Mapping[str, Any]:
    with TandemMQ() as server:
        field = Field(server, [])
        # After this, all objects exist that are made only once.
        _subscribe(field, (("warm", "/topic/warm.>"), ("up", "/queue/warm.>")))
        _send(connect(server.endpoint), ["/topic/warm.up", "/queue/warm.up"])
        before = _figures(server)
        attack(field)
        time.sleep(SETTLE_SECONDS)
        used, counted = (now - then for now, then in zip(_figures(server), before, strict=True))
        field.close()
    return {"used_bytes": used, "counted_bytes": counted, "is_counted": is_counted(used, counted)}


def is_counted(used: int, counted: int) -> bool:
    """Return whether the two figures are close enough."""
    return abs(used - counted) <= max(APART_BYTES, APART_PART * used)


def _figures(server: TandemMQ) -> tuple[int, int]:
    """Return used and counted memory, in bytes."""
    with urllib.request.urlopen(f"{server.admin_url}/status", timeout=60) as answer:
        counts = json.loads(answer.read())["counts"]
        return resident(server.pid), counts["memory_used_bytes"]


# ---- requests of attackers


def _subscribe(field: Field, subscriptions: Iterable[tuple[str, str]], *more: tuple[str, str]) -> None:
    """Make ``subscriptions``: id and destination of each."""
    rest = list(subscriptions)
    while rest:
        some, rest = rest[:OF_A_CONNECTION], rest[OF_A_CONNECTION:]
        frames = (command_frame("SUBSCRIBE", [("id", id), ("destination", where), *more]) for id, where in some)
        send_frames(field.connect(), frames, len(some))


def _send(peer: socket.socket, destinations: Sequence[str]) -> None:
    """Send one non-persistent message to each destination. Those to queues are not consumed."""
    send_frames(peer, (command_frame("SEND", [("destination", each)]) for each in destinations), len(destinations))


def _make(field: Field, queues: Sequence[str]) -> None:
    """Create empty queues."""
    frames = (
        command_frame("SUBSCRIBE", [("id", f"{number}"), ("destination", queue)])
        + command_frame("UNSUBSCRIBE", [("id", f"{number}")])
        for number, queue in enumerate(queues)
    )
    send_frames(connect(field.server.endpoint), frames, len(queues))


def _long(number: int) -> str:
    """Return a name with the maximum number of words."""
    return f"{number:06d}." + ".".join("a" * (WORDS - 4))


# ---- the attacks


def _topics(field: Field) -> None:
    """Subscribe to 600 patterns, and send to 6,000 topics that match all of them."""
    _subscribe(field, ((f"w{number}", "/topic/pairs.>") for number in range(600)))
    _send(field.connect(), [f"/topic/pairs.{number}" for number in range(6_000)])


def _unlike_topics(field: Field) -> None:
    """Subscribe to 600 patterns, and send to 4,096 topics, each of which matches a different set of at least 300."""
    bits = range(12)

    def pattern(number: int) -> str:
        first, second = number % 12, number // 12 % 12
        return ".".join("b" if bit in (first, second) else "*" for bit in bits)

    _subscribe(field, ((f"w{number}", f"/topic/{pattern(number)}") for number in range(600)))
    names = [".".join("ab"[number >> bit & 1] for bit in bits) for number in range(4_096)]
    _send(field.connect(), [f"/topic/{name}" for name in names])


def _named_topics(field: Field) -> None:
    """Make 1,000 subscriptions, each to the same list of 100 topics."""
    where = ",".join(f"/topic/pairs.{number}" for number in range(100))
    _subscribe(field, ((f"n{number}", where) for number in range(1_000)))


def _queues(field: Field) -> None:
    """Subscribe to 300 patterns, with 3,000 matching queues, half of which existed before."""
    _make(field, [f"/queue/pairs.{number}" for number in range(1_500)])
    _subscribe(field, ((f"w{number}", "/queue/pairs.>") for number in range(300)))
    _make(field, [f"/queue/pairs.{number}" for number in range(1_500, 3_000)])


def _choosy_queues(field: Field) -> None:
    """Subscribe to 200 patterns, each with another selector, and make 1,000 matching queues."""
    for number in range(200):
        _subscribe(field, [(f"w{number}", "/queue/pairs.>")], ("selector", f"a = {number}"))
    _make(field, [f"/queue/pairs.{number}" for number in range(1_000)])


def _named_queues(field: Field) -> None:
    """Make 1,000 subscriptions, each to the same list of 100 queues."""
    where = ",".join(f"/queue/pairs.{number}" for number in range(100))
    _subscribe(field, ((f"n{number}", where) for number in range(1_000)))


def _durables(field: Field) -> None:
    """Make 40 durable subscriptions to a pattern, and send to 500 matching topics."""
    peer = connect(field.server.endpoint, client_id="pairs")
    field.sockets.append(peer)
    frames = (
        command_frame(
            "SUBSCRIBE",
            [("id", f"d{number}"), ("destination", "/topic/pairs.>"), ("activemq.subscriptionName", f"d{number}")],
        )
        for number in range(40)
    )
    send_frames(peer, frames, 40)
    _send(field.connect(), [f"/topic/pairs.{number}" for number in range(500)])


def _patterns(field: Field) -> None:
    """Subscribe to 20,000 patterns of 256 words."""
    firsts = range(0, 20_000, 10)
    lists = ((f"p{first}", ",".join(f"/topic/{_long(first + part)}.>" for part in range(10))) for first in firsts)
    _subscribe(field, lists)


def _long_names(field: Field) -> None:
    """Make 5,000 queues with names of 256 words."""
    _make(field, [f"/queue/{_long(number)}" for number in range(5_000)])


def _selectors(field: Field) -> None:
    """Make 100 subscriptions with selectors of 500 conditions."""
    for number in range(100):
        text = " OR ".join(f"a{place} = {number}" for place in range(500))
        _subscribe(field, [(f"s{number}", "/queue/pairs")], ("selector", text))


def _ids(field: Field) -> None:
    """Make 3,000 subscriptions with ids of 8,000 characters."""
    _subscribe(field, ((f"{number}".rjust(8_000, "x"), "/queue/pairs") for number in range(3_000)))


def _senders(field: Field) -> None:
    """Connect 300 clients, each of which sends to the same 900 topics."""
    topics = [f"/topic/{'x' * 100}{number}" for number in range(900)]
    for _ in range(300):
        _send(field.connect(), topics)


def _groups(field: Field) -> None:
    """Make 200,000 message groups in two queues; all messages are consumed."""
    for queue in ("one", "two"):
        where = ("destination", f"/queue/pairs.{queue}")
        _subscribe(field, [(queue, where[1])])
        threading.Thread(target=_read, args=(field.sockets[-1],), daemon=True).start()
        for first in range(0, 100_000, 20_000):
            numbers = range(first, first + 20_000)
            frames = (command_frame("SEND", [where, ("JMSXGroupID", f"group{number}")]) for number in numbers)
            send_frames(field.connect(), frames, len(numbers))


def _read(peer: socket.socket) -> None:
    """Read and drop all bytes until the connection ends."""
    with contextlib.suppress(OSError):
        while peer.recv(1 << 16):
            pass


def _browsers(field: Field) -> None:
    """Begin 100 browsers that do not read, of a queue with 10,000 non-persistent messages."""
    _send(connect(field.server.endpoint), ["/queue/pairs"] * 10_000)
    _subscribe(
        field,
        ((f"b{number}", "/queue/pairs") for number in range(100)),
        ("browser", "true"), ("ack", "client"), ("activemq.prefetchSize", "1"),
    )  # fmt: skip


def _transactions(field: Field) -> None:
    """Connect 300 clients, each with 98 empty transactions with names of 4,000 characters."""
    for _ in range(300):
        names = (f"{number}".rjust(4_000, "x") for number in range(98))
        send_frames(field.connect(), (command_frame("BEGIN", [("transaction", name)]) for name in names), 98)


ATTACKS: Final[Mapping[str, Attack]] = {
    "topics": _topics,
    "unlike-topics": _unlike_topics,
    "named-topics": _named_topics,
    "queues": _queues,
    "choosy-queues": _choosy_queues,
    "named-queues": _named_queues,
    "durables": _durables,
    "patterns": _patterns,
    "long-names": _long_names,
    "selectors": _selectors,
    "ids": _ids,
    "senders": _senders,
    "groups": _groups,
    "browsers": _browsers,
    "transactions": _transactions,
}


# ---- the table


def _mib(count: int) -> str:
    return f"{count / (1 << 20):7.1f}"


def table(figures: Mapping[str, Any]) -> list[str]:
    """Return the runs as aligned columns."""
    rows = [["case", "used MiB", "counted MiB", "counted"]]
    rows += [
        [run["case"], _mib(run["used_bytes"]), _mib(run["counted_bytes"]), "yes" if run["is_counted"] else "NO"]
        for run in figures["runs"]
    ]
    return aligned(rows)
