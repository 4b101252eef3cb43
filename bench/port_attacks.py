"""``python -m tandemmq.bench --scenario admin-port``: clients and health checks beside an attack on the admin port.

A client sends 100 persistent messages a second; a receipt counts from the moment at which its message was due.
Meanwhile ``/health/live`` is requested five times a second, with a timeout of 2 s. Each round of a case
(bench.port_attackers) has its own broker. ``--compiled TREE`` runs the broker of that tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tandemmq.bench import port_attackers
from tandemmq.bench.driver.load import percentile
from tandemmq.bench.driver.stomp import BenchError, command_frame, connect
from tandemmq.bench.peers.server import TREE, TandemMQ
from tandemmq.bench.report import aligned, commit, machine
from tandemmq.bench.witness import Stream

CASES: Final = ("nothing", *port_attackers.CASES)
RECEIPTS_PER_SECOND: Final = 100
PATIENCE_SECONDS: Final = 60.0
CHECK_SECONDS: Final = 0.2
CHECK_SECONDS_MAX: Final = 2.0
#: The attack is under way before it is measured.
BEGINS_SECONDS: Final = 5.0

_GOOD: Final = (("destination", "/queue/good"), ("persistent", "true"))

Say = Callable[[str], None]


def admin_port(cases: Sequence[str], seconds: float, rounds: int, tree: Path | None, say: Say) -> dict[str, Any]:
    """Run all rounds of all cases, in turn. Raises BenchError."""
    runs = []
    for number in range(1, rounds + 1):
        for name in cases:
            runs.append(found := {"case": name, "round": number, **_run(name, seconds, tree or TREE)})
            say(f"round {number}  {name:<8} {found}")
    return {"scenario": "admin-port", "machine": machine(), "commit": commit(), "seconds": seconds, "runs": runs}


def _run(name: str, seconds: float, tree: Path) -> Mapping[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-admin-", ignore_cleanup_errors=True) as directory,
        TandemMQ(data=Path(directory, "data"), tree=tree) as server,
    ):
        attacker = None
        if name in port_attackers.CASES:
            assert server.admin_url is not None, "ours has an admin server"
            ports = [f"{server.stomp_port}", server.admin_url.rpartition(":")[2]]
            token = str(Path(directory, "data", "index", "bench.admin-token"))
            words = [name, f"{seconds + BEGINS_SECONDS}", *ports, token]
            attacker = subprocess.Popen(
                # A real attacker has other machines: the broker and the good client come first.
                ["nice", "-n", "19", sys.executable, "-m", "tandemmq.bench.port_attackers", *words],
                env={**os.environ, "PYTHONPATH": str(TREE)},
                stdout=subprocess.PIPE,
            )
            time.sleep(BEGINS_SECONDS)
        checks: list[float | None] = []
        checking = threading.Thread(target=_check, args=(server.admin_url or "", time.monotonic() + seconds, checks))
        checking.start()
        waited = sorted(_receipts(server, seconds))
        checking.join()
        said = b"" if attacker is None else attacker.communicate(timeout=120)[0]
        status = _get(f"{server.admin_url}/status", 60.0)
    answered = [each for each in checks if each is not None]
    return {
        "receipts": len(waited),
        "receipt_p95_ms": round((percentile(waited, 0.95) or 0.0) * 1000, 2),
        "receipt_max_ms": round(waited[-1] * 1000, 2),
        "checks": f"{len(answered)} of {len(checks)}",
        "check_max_ms": round(max(answered, default=0.0) * 1000, 2),
        "loop_pause_max_ms": status["counts"]["loop_pause_max_ms"],
        "epoch": status["epoch"],
        **json.loads(said or b"{}"),
    }


def _receipts(server: TandemMQ, seconds: float) -> list[float]:
    """Return the seconds that each receipt took."""
    peer = connect(server.endpoint)
    count = round(seconds * RECEIPTS_PER_SECOND)
    waited: list[float] = []
    began = time.perf_counter()

    def read() -> None:
        stream = Stream(peer)
        while len(waited) < count and stream.next(PATIENCE_SECONDS) is not None:
            waited.append(time.perf_counter() - began - len(waited) / RECEIPTS_PER_SECOND)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(count):
        time.sleep(max(0.0, began + number / RECEIPTS_PER_SECOND - time.perf_counter()))
        peer.sendall(command_frame("SEND", [*_GOOD, ("receipt", f"{number}")]))
    reader.join()
    peer.close()
    if len(waited) < count:
        raise BenchError(f"{count - len(waited)} receipts did not come in {PATIENCE_SECONDS:g} s")
    return waited


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


_COLUMNS: Final = ("receipt_p95_ms", "receipt_max_ms", "checks", "check_max_ms", "loop_pause_max_ms", "epoch")


def table(figures: Mapping[str, Any]) -> list[str]:
    """Return the runs as aligned columns."""
    rows = [["case", *_COLUMNS]]
    return aligned(rows + [[run["case"], *(str(run[name]) for name in _COLUMNS)] for run in figures["runs"]])
