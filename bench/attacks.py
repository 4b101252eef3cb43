"""``python -m tandemmq.bench --scenario attacks``: time to the receipts of a client, 100 a second, beside an attacker.

Each round of a case has a broker and a seed of its own (bench.attackers). ``--seconds 60`` is the full run. On a quiet
machine the longest receipt must take less than 50 ms, and 95 % of them less than 10 ms; the master stays master. The
time of a receipt counts from the moment at which its message was due.

Memory is the growth of the process since the attack began, and the growth of ``memory_used_bytes``: the maximum of each
(``VmHWM``, and samples of the status), and both at the end, while the attack goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tandemmq.bench.attackers import ATTACKS
from tandemmq.bench.driver.load import percentile
from tandemmq.bench.driver.process import peak_bytes
from tandemmq.bench.driver.stomp import BenchError, command_frame, connect, request
from tandemmq.bench.floods import FLOODS
from tandemmq.bench.growth import resident
from tandemmq.bench.peers.ports import free_port
from tandemmq.bench.peers.server import HOST, TREE, TandemMQ
from tandemmq.bench.report import aligned, commit, machine
from tandemmq.bench.witness import Stream

CASES: Final = ("nothing", *ATTACKS, *FLOODS)
ROUNDS: Final = 5
RECEIPTS_PER_SECOND: Final = 100
LONGEST_MS: Final = 50.0
MOST_MS: Final = 10.0  # for 95 %
BODY: Final = b"x" * 1024
PATIENCE_SECONDS: Final = 30.0
# The attack is under way before it is measured.
BEGINS_SECONDS: Final = 1.0
SAMPLE_SECONDS: Final = 0.2

Say = Callable[[str], None]


def attacks(cases: Sequence[str], seconds: float, rounds: int, tree: Path | None, say: Say) -> dict[str, Any]:
    """Return the figures of all rounds of all cases, which take turns. Raises BenchError."""
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
        server = TandemMQ(data=data, tree=tree)
        ports = {"stomp": server.stomp_port, "openwire": free_port(), "mqtt": server.listen_to_mqtt()}
        server.openwire = f"{HOST}:{ports['openwire']}"
        with server:
            assert server.admin_url is not None, "ours has an admin server"
            ports["admin"] = int(server.admin_url.rpartition(":")[2])
            # In production it has other machines: the broker and the good client come first.
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
            token = data / "index" / "bench.admin-token"
            environment = {**os.environ, "PYTHONPATH": str(TREE)}
            attacker = None
            memory = _Memory(server)
            if name != "nothing":
                attacker = subprocess.Popen([*command, json.dumps(ports), str(token)], env=environment)
            try:
                time.sleep(BEGINS_SECONDS)
                waited = sorted(_receipts(server, seconds))
                grown = memory.end()
            finally:
                if attacker is not None:
                    attacker.terminate()
                    attacker.wait()
            epoch = server.status()["epoch"]
    return {
        "receipts": len(waited),
        "receipt_p50_ms": round((percentile(waited, 0.5) or 0.0) * 1000, 2),
        "receipt_p95_ms": round((percentile(waited, 0.95) or 0.0) * 1000, 2),
        "receipt_max_ms": round(waited[-1] * 1000, 2),
        "epoch": epoch,
        **grown,
    }


class _Memory:
    """Growth of the memory of a broker, from now on."""

    def __init__(self, server: TandemMQ) -> None:
        self._server = server
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # resets VmHWM
        self._used, self._counted = resident(server.pid), self._sample()
        self._counted_max = self._counted
        self._is_over = threading.Event()
        self._sampling = threading.Thread(target=self._watch)
        self._sampling.start()

    def _sample(self) -> int:
        counted: int = self._server.status()["counts"]["memory_used_bytes"]
        return counted

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            with contextlib.suppress(OSError):  # the admin port is attacked, too
                self._counted_max = max(self._counted_max, self._sample())

    def end(self) -> Mapping[str, float]:
        """Stop, and return the growth in MiB."""
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


def _receipts(server: TandemMQ, seconds: float) -> list[float]:
    """Return the time of each receipt of the client, in seconds."""
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


_COLUMNS: Final = (
    "receipt_p50_ms", "receipt_p95_ms", "receipt_max_ms", "epoch",
    "used_max_mib", "counted_max_mib", "used_mib", "counted_mib",
)  # fmt: skip


def table(figures: Mapping[str, Any]) -> list[str]:
    """Return the runs as aligned columns."""
    rows = [["case", "seed", *_COLUMNS]]
    rows += [[run["case"], str(run["seed"]), *(str(run[name]) for name in _COLUMNS)] for run in figures["runs"]]
    return aligned(rows)
