"""Clients beside attackers (bench.attackers): ``python -m tandemmq.bench --scenario attacks``, ``admin-port`` and
``logins``.

attacks      the time to the receipts of a client. ``--seconds 60`` is the full run. On a quiet machine the longest
             receipt must take less than 50 ms, and 95 % of them less than 10 ms; the master stays master. Memory is the
             growth of the process since the attack began, and the growth of ``memory_used_bytes``: the maximum of each
             (``VmHWM``, and samples of the status), and both at the end, while the attack continues.
admin-port   the same client beside an attack on the admin port. Meanwhile ``/health/live`` is requested five times a
             second, with a timeout of 2 s.
logins       the time of a valid login while others guess passwords. Twenty users log in, each from its own address of
             127.0.0.0/8. Then guessers begin. Meanwhile the users log in again: at a restarted master, which remembers
             no password, and at the next master right after that one was killed.

The client sends 100 persistent messages a second; the time of a receipt counts from the moment at which its message was
due. Each round of a case has its own broker. ``--compiled TREE`` runs the broker of that tree.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tandemmq.bench.attackers import ATTACKS, GUESSES, PORT_ATTACKS, USERS, answer
from tandemmq.bench.driver.load import percentile, run_load
from tandemmq.bench.driver.plan import LoadPlan
from tandemmq.bench.driver.process import peak_bytes
from tandemmq.bench.floods import FLOODS
from tandemmq.bench.growth import resident
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, TREE, TandemMQ
from tandemmq.bench.report import Say, head
from tandemmq.broker.security.known_logins import READ_SECONDS
from tandemmq.broker.security.users import make

NOTHING: Final = "nothing"
CASES: Final = (NOTHING, *ATTACKS, *FLOODS)
PORT_CASES: Final = (NOTHING, *PORT_ATTACKS)
ROUNDS: Final = 5
RECEIPTS_PER_SECOND: Final = 100
LONGEST_MS: Final = 50.0
MOST_MS: Final = 10.0  # limit for 95 % of the receipts
PATIENCE_SECONDS: Final = 60.0
# Time between the beginning of the attack and the measurement.
BEGINS_SECONDS: Final = 1.0
PORT_BEGINS_SECONDS: Final = 5.0
SAMPLE_SECONDS: Final = 0.2
# A broker imports its admin server and its parsers after its start; that is no growth.
REST_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 0.2
CHECK_SECONDS_MAX: Final = 2.0
END_SECONDS_MAX: Final = 120.0
LOGIN_SECONDS_MAX: Final = 2.0
# Time of guessing before the users log in.
GUESSED_SECONDS: Final = 5.0
_PASSWORD: Final = "right"

ATTACKS_COLUMNS: Final = (
    "case", "seed", "receipt_p50_ms", "receipt_p95_ms", "receipt_max_ms", "epoch",
    "loop_pause_max_ms", "sync_max_ms", "used_max_mib", "counted_max_mib", "used_mib", "counted_mib",
)  # fmt: skip
PORT_COLUMNS: Final = (
    "case", "round", "receipt_p95_ms", "receipt_max_ms", "checks", "check_max_ms", "loop_pause_max_ms", "epoch",
)  # fmt: skip
LOGINS_COLUMNS: Final = ("case", "round", "logins", "late", "slowest_s")


def attacks(cases: Sequence[str], seconds: float, rounds: int, tree: Path | None, say: Say) -> dict[str, Any]:
    """Run all rounds of all cases, alternating between the cases, and return the figures. Raises BenchError."""
    runs = []
    for seed in range(1, rounds + 1):
        for name in cases:
            runs.append(found := {"case": name, "seed": seed, **_run(name, seed, seconds, tree or TREE)})
            most, longest = found["receipt_p95_ms"], found["receipt_max_ms"]
            say(f"seed {seed}  {name:<12} 95 % {most:7.2f} ms  longest {longest:7.2f} ms")
    return {
        **head("attacks"),
        "compiled": tree is not None,
        "seconds": seconds,
        "runs": runs,
        "has_failed": any(
            each["receipt_max_ms"] > LONGEST_MS or each["receipt_p95_ms"] > MOST_MS or each["epoch"] != 1
            for each in runs
        ),
    }


def _run(name: str, seed: int, seconds: float, tree: Path) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-attacks-", ignore_cleanup_errors=True) as directory:
        data = Path(directory, "data")
        server = TandemMQ(data=data, tree=tree)
        ports = {"openwire": free_port(), "mqtt": server.listen_to("mqtt")}
        server.openwire = f"{HOST}:{ports['openwire']}"
        if name in FLOODS and FLOODS[name].port == "tls":
            ports["tls"] = server.listen_to_tls()
        with server:
            memory = _Memory(server)
            with _attacker(name, seed, seconds + BEGINS_SECONDS, ports | _ports(server), _token(data)):
                time.sleep(BEGINS_SECONDS)
                waited = _receipts(server, seconds)
                grown = memory.end()
            status = server.status()
    pauses = {"loop_pause_max_ms": status["counts"]["loop_pause_max_ms"], "sync_max_ms": _longest_sync(status)}
    return {**_figures(waited), "epoch": status["epoch"], **pauses, **grown}


def _longest_sync(status: Mapping[str, Any]) -> float:
    """Return an upper bound in milliseconds of the longest sync of the journal."""
    buckets = status["measured"]["journal_sync_duration_seconds"]["buckets"]
    return next(float(bound) for bound, count in buckets if count == buckets[-1][1]) * 1000


def _figures(waited: Sequence[float]) -> dict[str, float]:
    return {
        "receipts": len(waited),
        "receipt_p50_ms": round((percentile(waited, 0.5) or 0.0) * 1000, 2),
        "receipt_p95_ms": round((percentile(waited, 0.95) or 0.0) * 1000, 2),
        "receipt_max_ms": round(waited[-1] * 1000, 2),
    }


def _ports(server: TandemMQ) -> dict[str, int]:
    assert server.admin_url is not None, "ours has an admin server"
    return {"stomp": server.stomp_port, "admin": int(server.admin_url.rpartition(":")[2])}


def _token(data: Path) -> Path:
    return data / "index" / "bench.admin-token"


@contextmanager
def _attacker(
    name: str, seed: int, seconds: float, ports: Mapping[str, int], token: Path
) -> Iterator[subprocess.Popen[bytes] | None]:
    """Run an attacker within this context; None: the case NOTHING has no attacker."""
    if name == NOTHING:
        yield None
        return
    words = [name, f"{seed}", f"{seconds}", json.dumps(ports), str(token)]
    # The attacker has a low priority, because a real attacker has other machines. Guesses need little CPU of the
    # attacker.
    nice = [] if name == GUESSES else ["nice", "-n", "19"]
    attacker = subprocess.Popen(
        [*nice, sys.executable, "-m", "tandemmq.bench.attackers", *words],
        env={**os.environ, "PYTHONPATH": str(TREE)},
        stdout=subprocess.PIPE,
    )
    with attacker:
        try:
            yield attacker
        finally:
            attacker.terminate()


class _Memory:
    """Growth of a broker's memory since this object was made."""

    def __init__(self, server: TandemMQ) -> None:
        self._server = server
        _ = self._sample()
        time.sleep(REST_SECONDS)
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # resets VmHWM
        self._used, self._counted = resident(server.pid), self._sample()
        self._counted_max = self._counted
        self._is_over = threading.Event()
        self._sampling = threading.Thread(target=self._watch, daemon=True)
        self._sampling.start()

    def _sample(self) -> int:
        counted: int = self._server.status()["counts"]["memory_used_bytes"]
        return counted

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            with contextlib.suppress(OSError):  # the admin port may be under attack
                self._counted_max = max(self._counted_max, self._sample())

    def end(self) -> Mapping[str, float]:
        """Stop sampling, and return the growth in MiB."""
        used, used_max, counted = resident(self._server.pid), peak_bytes(self._server.pid), self._sample()
        self._is_over.set()
        self._sampling.join()
        grown = {
            "used_max_mib": used_max - self._used,
            "counted_max_mib": max(self._counted_max, counted) - self._counted,
            "used_mib": used - self._used,
            "counted_mib": counted - self._counted,
        }
        return {name: round(count / (1 << 20), 1) for name, count in grown.items()}


def _receipts(server: TandemMQ, seconds: float) -> Sequence[float]:
    """Return the time of each receipt of the client in seconds, in ascending order."""
    plan = LoadPlan(
        server.endpoint,
        producers=1,
        consumers=0,
        count=round(seconds * RECEIPTS_PER_SECOND),
        rate=RECEIPTS_PER_SECOND,
        destination="/queue/good",
        stall_seconds=PATIENCE_SECONDS,
    )
    return run_load(plan).receipt_seconds


# ---- the admin port


def admin_port(cases: Sequence[str], seconds: float, rounds: int, tree: Path | None, say: Say) -> dict[str, Any]:
    """Run all rounds of all cases, alternating between the cases. Raises BenchError."""
    runs = []
    for number in range(1, rounds + 1):
        for name in cases:
            runs.append(found := {"case": name, "round": number, **_run_port(name, seconds, tree or TREE)})
            say(f"round {number}  {name:<8} {found}")
    return {**head("admin-port"), "seconds": seconds, "runs": runs}


def _run_port(name: str, seconds: float, tree: Path) -> Mapping[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-admin-", ignore_cleanup_errors=True) as directory,
        TandemMQ(data=Path(directory, "data"), tree=tree) as server,
        _attacker(name, 1, seconds + PORT_BEGINS_SECONDS, _ports(server), _token(Path(directory, "data"))) as attacker,
    ):
        if attacker is not None:
            time.sleep(PORT_BEGINS_SECONDS)
        checks: list[float | None] = []
        checking = threading.Thread(target=_check, args=(server.admin_url or "", time.monotonic() + seconds, checks))
        checking.start()
        waited = _receipts(server, seconds)
        checking.join()
        output = b"" if attacker is None else attacker.communicate(timeout=END_SECONDS_MAX)[0]
        status = _get(f"{server.admin_url}/status", 60.0)
    answered = [each for each in checks if each is not None]
    return {
        **_figures(waited),
        "checks": f"{len(answered)} of {len(checks)}",
        "check_max_ms": round(max(answered, default=0.0) * 1000, 2),
        "loop_pause_max_ms": status["counts"]["loop_pause_max_ms"],
        "epoch": status["epoch"],
        **json.loads(output or b"{}"),
    }


def _check(admin_url: str, ends: float, found: list[float | None]) -> None:
    while time.monotonic() < ends:
        began = time.monotonic()
        try:
            _get(f"{admin_url}/health/live", CHECK_SECONDS_MAX)
            found.append(time.monotonic() - began)
        except OSError:
            found.append(None)
        time.sleep(CHECK_SECONDS)


def _get(url: str, seconds_max: float) -> Any:
    with urllib.request.urlopen(url, timeout=seconds_max) as answer:
        return json.loads(answer.read())


# ---- logins


def logins(rounds: int, tree: Path | None, say: Say) -> dict[str, Any]:
    """Run all rounds. Raises BenchError."""
    runs = []
    for number in range(1, rounds + 1):
        for case, seconds in _run_logins(tree or TREE):
            late = sum(each is None or each > LOGIN_SECONDS_MAX for each in seconds)
            slowest = max((each for each in seconds if each is not None), default=0.0)
            runs.append({"round": number, "case": case, "logins": len(seconds), "late": late, "slowest_s": slowest})
            say(f"round {number}  {case:<12} {len(seconds) - late} of {len(seconds)} in time, slowest {slowest:.2f} s")
    has_failed = any(run["late"] for run in runs)
    return {**head("logins"), "runs": runs, "has_failed": has_failed}


def _run_logins(tree: Path) -> list[tuple[str, list[float | None]]]:
    with tempfile.TemporaryDirectory(prefix="bench-logins-", ignore_cleanup_errors=True) as directory:
        users, data = Path(directory, "users"), Path(directory, "data")
        names = {"guest": "guest", **{f"user{n}": _PASSWORD for n in range(USERS)}}  # the benchmark itself uses guest
        users.write_text("".join(f"{name}:{make(word)}:\n" for name, word in names.items()))
        settings = [f"security.users_file={users}"]
        first, second, third = (TandemMQ(data=data, broker=name, tree=tree, settings=settings) for name in "abc")
        with first:
            _ = asyncio.run(_log_in_all(first.stomp_port))
            time.sleep(2 * READ_SECONDS)  # until the file is written
        with second:
            third.start()
            try:
                third.await_standby()
                time.sleep(2 * READ_SECONDS)  # until the file is read
                ports = {"stomp": second.stomp_port, "next": third.stomp_port}
                with _attacker(GUESSES, 1, 0.0, ports, Path(os.devnull)):
                    time.sleep(GUESSED_SECONDS)
                    found = [("master", asyncio.run(_log_in_all(second.stomp_port)))]
                    second.kill()
                    found.append(("next master", asyncio.run(_log_in_all(third.stomp_port))))
            finally:
                third.discard()
        return found


async def _log_in_all(port: int) -> list[float | None]:
    """Return the seconds of each login, from the established connection to the answer; None: it was refused."""
    return list(await asyncio.gather(*(_log_in(port, n) for n in range(USERS))))


async def _log_in(port: int, number: int) -> float | None:
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, port, local_addr=(f"127.1.0.{number + 1}", 0))
        except OSError:
            await asyncio.sleep(0.01)  # no master yet
            continue
        began = time.perf_counter()
        try:
            answered = await answer(reader, writer, f"user{number}", _PASSWORD)
        except (OSError, asyncio.IncompleteReadError):
            continue  # a standby closed the connection
        finally:
            writer.close()
        return time.perf_counter() - began if answered.startswith(b"CONNECTED") else None
