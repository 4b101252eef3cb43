"""``python -m tandemmq.bench --scenario attacks``: what a client with 100 receipts a second waits beside an attacker.

Each round of a case has a broker and a seed of its own (bench.attackers). ``--seconds 60`` is the full run. On a quiet
machine the longest receipt is to take less than 50 ms, and 95 % of them less than 10 ms; the master stays master. A
receipt counts from the moment at which its message was due.
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

from tandemmq.bench.attackers import ATTACKS
from tandemmq.bench.connection import BenchError, connect, request
from tandemmq.bench.frames import command_frame
from tandemmq.bench.peers.tandemmq import TREE, TandemMQ
from tandemmq.bench.report import aligned, commit, machine
from tandemmq.bench.statistics import percentile
from tandemmq.bench.witness import Stream

CASES: Final = ("nothing", *ATTACKS)
ROUNDS: Final = 5
RECEIPTS_PER_SECOND: Final = 100
LONGEST_MS: Final = 50.0
MOST_MS: Final = 10.0  # of 95 %
BODY: Final = b"x" * 1024
PATIENCE_SECONDS: Final = 30.0
# The attack is under way before it is measured.
BEGINS_SECONDS: Final = 1.0

Say = Callable[[str], None]


def attacks(cases: Sequence[str], seconds: float, rounds: int, tree: Path | None, say: Say) -> dict[str, Any]:
    """All rounds of all cases, by turns. Raises BenchError."""
    runs = []
    for seed in range(1, rounds + 1):
        for name in cases:
            runs.append(found := {"case": name, "seed": seed, **_run(name, seed, seconds, tree or TREE)})
            most, longest = found["receipt_p95_ms"], found["receipt_max_ms"]
            say(f"seed {seed}  {name:<12} 95 % {most:7.2f} ms  longest {longest:7.2f} ms")
    return {
        "scenario": "attacks",
        "machine": machine(),
        "commit": commit(),
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
        with TandemMQ(data=data, tree=tree) as server:
            assert server.admin_url is not None, "ours has an admin server"
            # It has other machines in real life: the broker and the good client come first.
            command = [
                "nice",
                "-n",
                "19",
                sys.executable,
                "-m",
                "tandemmq.bench.attackers",
                name,
                f"{seed}",
                f"{seconds + BEGINS_SECONDS}",
            ]
            ports = [f"{server.stomp_port}", server.admin_url.rpartition(":")[2]]
            token = data / "index" / "bench.admin-token"
            environment = {**os.environ, "PYTHONPATH": str(TREE)}
            attacker = None
            if name in ATTACKS:
                attacker = subprocess.Popen([*command, *ports, str(token)], env=environment)
            try:
                time.sleep(BEGINS_SECONDS)
                waited = sorted(_receipts(server, seconds))
            finally:
                if attacker is not None:
                    attacker.terminate()
                    attacker.wait()
            with urllib.request.urlopen(f"{server.admin_url}/status", timeout=30) as answer:
                status = json.loads(answer.read())
    return {
        "receipts": len(waited),
        "receipt_p50_ms": round((percentile(waited, 0.5) or 0.0) * 1000, 2),
        "receipt_p95_ms": round((percentile(waited, 0.95) or 0.0) * 1000, 2),
        "receipt_max_ms": round(waited[-1] * 1000, 2),
        "epoch": status["epoch"],
    }


def _receipts(server: TandemMQ, seconds: float) -> list[float]:
    """How long each receipt of the client took, in seconds."""
    peer = connect(server.endpoint)
    request(peer, "SEND", [("destination", "/queue/good"), ("persistent", "true")], "first")
    count = round(seconds * RECEIPTS_PER_SECOND)
    waited: list[float] = []
    began = time.perf_counter()

    def read() -> None:
        stream = Stream(peer)
        while len(waited) < count and (frame := stream.next(PATIENCE_SECONDS)) is not None:
            if frame.startswith(b"RECEIPT"):
                waited.append(time.perf_counter() - began - len(waited) / RECEIPTS_PER_SECOND)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(count):
        time.sleep(max(0.0, began + number / RECEIPTS_PER_SECOND - time.perf_counter()))
        headers = [("destination", "/queue/good"), ("persistent", "true"), ("receipt", f"{number}")]
        peer.sendall(command_frame("SEND", headers)[:-1] + BODY + b"\0")
    reader.join()
    peer.close()
    if len(waited) < count:
        raise BenchError(f"{count - len(waited)} receipts did not come in {PATIENCE_SECONDS:g} s")
    return waited


_COLUMNS: Final = ("receipt_p50_ms", "receipt_p95_ms", "receipt_max_ms", "epoch")


def table(figures: Mapping[str, Any]) -> list[str]:
    """The runs as aligned columns."""
    rows = [["case", "seed", *_COLUMNS]]
    rows += [[run["case"], str(run["seed"]), *(str(run[name]) for name in _COLUMNS)] for run in figures["runs"]]
    return aligned(rows)
