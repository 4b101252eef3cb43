"""``python -m tandemmq.bench --scenario failover``: how long clients wait when a master is killed, or hands over.

A case is a lock, the number of stored messages, and the way in which the master ends. One pair runs through all its
rounds: the master is killed under load, the standby takes over, and the killed broker is started again as the standby
of the next round. Each round counts the messages that were lost, undone or stored twice (bench.witness). Stores are
built once, and used by all cases of their size.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tandemmq.bench.driver.load import run_load
from tandemmq.bench.driver.outage import OutageResult
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.journals import write_journal
from tandemmq.bench.peers.brokers import ActiveMQ
from tandemmq.bench.peers.server import HOST, PeerMissing, Server, TandemMQ, running_pair
from tandemmq.bench.report import Say, head
from tandemmq.bench.witness import Losses, hand_over, strike_and_count

BODY_BYTES = 1024
SIZES: Mapping[str, int] = {"empty": 0, "1m": 1_000_000, "10gb": 7_750_000}  # messages of BODY_BYTES
LOCKS: Mapping[str, tuple[str, ...]] = {
    "shared-file": (),
    "lease-database": ("locker.type=lease-database", "locker.lock_acquire_sleep_interval=2s"),
    "database": ("locker.type=database",),
}
HANDOVER = "handover"
ACTIVEMQ = ActiveMQ.name
CASES = (*LOCKS, HANDOVER, ACTIVEMQ)
ROUND_SECONDS = 1.0  # time for which the measured client sends before the end of the master
# Messages that are sent and received before the end of the master, so that it writes its second file, which has the
# full length. (A take-over scans the space after the end of the last file, and the first file of an epoch is short.)
LOAD_MESSAGES = 30_000
ACKNOWLEDGED_MAX = 2_000  # messages in a round for the acknowledging client
BUILD_SECONDS_MAX = 3_600.0
EVENTS = 60  # number of events requested from the survivor: more than a take-over has
# The steps of a take-over, by the event that ends each (broker.admin.events).
STEPS = {
    "lock-taken": "lock",
    "fenced": "fence",
    "replayed": "replay",
    "header": "header",
    "store-open": "store",
    "listening": "listen",
}
CLIENT = "client"  # the rest of an outage: detection, connecting, sending again


@dataclass(frozen=True, slots=True)
class Round:
    """Result of the end of one master. ``steps``: seconds of the outage by step. ``predicted_seconds``: the maximum
    that the standby predicted before. Both only if the broker reports them."""

    outage: OutageResult
    losses: Losses
    steps: Mapping[str, float] = field(default_factory=dict)
    predicted_seconds: float | None = None

    def figures(self) -> dict[str, object]:
        return {
            **self.outage.figures(),
            "predicted_seconds": self.predicted_seconds,
            **asdict(self.losses),
            "steps_ms": {name: round(seconds * 1000, 1) for name, seconds in self.steps.items()},
        }


@dataclass(slots=True)
class Case:
    """All rounds of one case. ``name``: lock, other broker, or way in which a set's master ends. ``size``: stored
    messages. ``problem``: why there are no more rounds."""

    name: str
    size: str | int
    rounds: list[Round] = field(default_factory=list)
    problem: str | None = None

    def figures(self) -> dict[str, object]:
        outages = [each.outage.outage_seconds for each in self.rounds]
        predicted = [each.predicted_seconds for each in self.rounds if each.predicted_seconds is not None]
        names = {name for each in self.rounds for name in each.steps}
        return {
            "case": self.name,
            "stored": self.size,
            "rounds": len(self.rounds),
            "p50_seconds": round(statistics.median(outages), 4) if outages else None,
            "max_seconds": round(max(outages), 4) if outages else None,
            "predicted_p50_seconds": round(statistics.median(predicted), 4) if predicted else None,
            **asdict(sum((each.losses for each in self.rounds), Losses())),
            "steps_p50_ms": {
                name: round(statistics.median(each.steps.get(name, 0.0) for each in self.rounds) * 1000, 1)
                for name in (*STEPS.values(), CLIENT)
                if name in names
            },
            "problem": self.problem,
            "each": [each.figures() for each in self.rounds],
        }

    def line(self) -> str:
        figures = self.figures()
        if not self.rounds:
            return f"{self.name:<15} {self.size:<6} – {self.problem}"
        steps = " ".join(f"{name} {ms}" for name, ms in figures["steps_p50_ms"].items())  # type: ignore[attr-defined]
        return (
            f"{self.name:<15} {self.size:<6} p50 {figures['p50_seconds']:.3f} s  max {figures['max_seconds']:.3f} s  "
            f"rounds {len(self.rounds)}  lost {figures['lost']}  undone {figures['undone']}  twice {figures['twice']}"
            f"{'  ms: ' + steps if steps else ''}{'  – ' + self.problem if self.problem else ''}"
        )


def failover(
    cases: Sequence[str], sizes: Sequence[str], rounds: int, work: Path | None, say: Say, load: int = LOAD_MESSAGES
) -> dict[str, Any]:
    """Run all cases, and return the figures. If a case fails, its ``problem`` states why, and the other cases continue.

    ``load``: number of messages that are sent and received in each round before the end of the master. ``work``:
    directory of the stores, which are kept for the next run; None: they are removed.
    """
    done: list[Case] = []
    # The run is in the queue's name, so that messages of an interrupted run in a kept store do not count.
    run = uuid.uuid4().hex[:8]
    with ExitStack() as running:
        root = work or Path(running.enter_context(tempfile.TemporaryDirectory(prefix="bench-failover-")))
        postgres: Postgres | None = None
        for size in sizes:
            for name in cases:
                case = Case(name, size)
                try:
                    if name.endswith("database") and postgres is None:
                        postgres = running.enter_context(Postgres())
                    with _pair(name, _store(root, name, size, say), postgres) as pair:
                        for number in range(rounds):
                            destination = f"/queue/bench.{run}.{size}.{name}.{number}"
                            case.rounds.append(_round(pair, name == HANDOVER, destination, load))
                            say(f"{name} {size} {number + 1}: {case.rounds[-1].outage.outage_seconds:.3f} s")
                            pair.reverse()
                except (BenchError, PeerMissing, OSError) as problem:
                    case.problem = str(problem)
                say(case.line())
                done.append(case)
    return {**head("failover"), "cases": [case.figures() for case in done]}


def _store(root: Path, name: str, size: str, say: Say) -> Path:
    """Return the data directory for a case. The first case that needs it builds it."""
    data = root / ("activemq" if name == ACTIVEMQ else "tandemmq") / size
    built = data.with_suffix(".built")
    if SIZES[size] and not built.exists():
        shutil.rmtree(data, ignore_errors=True)
        say(f"building {data}")
        write_journal(data / "kahadb" if name == ACTIVEMQ else data, SIZES[size], BODY_BYTES)
        with _server(name, data, "a", ()):  # to build an index
            pass
        built.touch()
    data.mkdir(parents=True, exist_ok=True)
    return data


def _server(name: str, data: Path, broker: str, settings: Sequence[str]) -> Server:
    server: Server
    server = ActiveMQ(data=data) if name == ACTIVEMQ else TandemMQ(data=data, broker=broker, settings=settings)
    server.start_timeout_seconds = BUILD_SECONDS_MAX
    return server


def _pair(name: str, data: Path, postgres: Postgres | None) -> AbstractContextManager[list[Server]]:
    """Start master and standby, and yield both when they are ready."""
    settings = list(LOCKS.get(name, ()))
    if name.endswith("database"):
        assert postgres is not None, "it was started for this case"
        settings.append(f"locker.data_source={postgres.url}")
    return running_pair(*(_server(name, data, broker, settings) for broker in "ab"), has_caught_up=True)


def _round(pair: list[Server], is_handover: bool, destination: str, load: int) -> Round:
    """End the master, then complete the pair again with exchanged roles."""
    master, standby = pair
    if load:
        run_load(LoadPlan(master.endpoint, count=load, body_bytes=BODY_BYTES, destination=f"{destination}.load"))
    predicted = None
    if standby.admin_url is not None:
        predicted = standby.status()["standby"]["takeover"]["total_seconds"]
    outage, losses = strike_and_count(
        [master.endpoint, standby.endpoint],
        master.pid,
        destination,
        ACKNOWLEDGED_MAX,
        ROUND_SECONDS,
        (lambda: hand_over(master)) if is_handover else None,
        lambda: standby.endpoint,
    )
    steps = _steps(standby, outage)
    if not is_handover:
        master.kill()  # the process has ended; this updates the object
        master.start()
    master.await_standby(has_caught_up=True)
    return Round(outage, losses, steps, predicted)


def _steps(survivor: Server, outage: OutageResult) -> Mapping[str, float]:
    """Return the seconds of each step, from one event of the new master to the next."""
    if survivor.admin_url is None:
        return {}
    with urllib.request.urlopen(f"{survivor.admin_url}/events?last={EVENTS}", timeout=10.0) as answer:
        events = json.load(answer)["events"]
    steps: dict[str, float] = {}
    before = struck_at = outage.struck_at
    for event in events:
        name = STEPS.get(event["kind"])
        if name is not None and event["boot_seconds"] >= struck_at and name not in steps:
            steps[name] = event["boot_seconds"] - before
            before = event["boot_seconds"]
    steps[CLIENT] = max(0.0, outage.outage_seconds - sum(steps.values()))
    return steps


# ---- the database of locks

USER = "bench"
ANSWER_SECONDS_MAX = 60.0


class Postgres(Server):
    """PostgreSQL of Debian's package, in its own directory, on a loopback port. It syncs its commits as in production,
    so that writing a lease has the same cost."""

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": it closes all connections

    @property
    def url(self) -> str:
        """Value for ``locker.data_source``."""
        return f"postgresql+psycopg://{USER}@{HOST}:{self.port}/postgres"

    def start(self) -> None:
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not programs:
            raise PeerMissing("PostgreSQL is not installed (/usr/lib/postgresql/*/bin/postgres)")
        user = None if os.geteuid() else pwd.getpwnam("postgres").pw_name  # PostgreSQL refuses to run as root
        if user is not None:
            shutil.chown(self.directory, user)
        data = str(self.directory / "data")
        made = subprocess.run(
            [str(programs[-1].parent / "initdb"), "-D", data, "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C"],
            user=user,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise BenchError(f"initdb: {made.stderr.strip()}")
        settings = (f"port={self.port}", f"listen_addresses={HOST}", "unix_socket_directories=")
        options = [word for each in settings for word in ("-c", each)]
        self.spawn([str(programs[-1]), "-D", data, *options], user=user)

    def ask(self) -> None:
        if "ready to accept connections" not in self.output():
            raise BenchError("it is not ready")
        socket.create_connection((HOST, self.port), ANSWER_SECONDS_MAX).close()
