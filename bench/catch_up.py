"""Speed at which a node with an empty directory gets the data of a set, while clients send.

The reference is a plain copy of the same files over loopback: read, sent, received, written, and each file synced. Both
run under the same load, which sends at a fixed pace, so that its receipts show the cost of the catch-up. A second plain
copy is limited to the speed that the catch-up had: its effect on the load is the cost of the bytes alone. Each round
measures all of them, one after the other, since the speed of a machine changes from minute to minute.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from tandemmq.bench.driver.load import percentile
from tandemmq.bench.driver.process import cost
from tandemmq.bench.driver.stomp import BenchError, Endpoint, SendStream, connect, disconnect, read_frame, read_receipts
from tandemmq.bench.journals import write_journal
from tandemmq.bench.peers.replicated import ReplicatedSet
from tandemmq.bench.peers.server import HOST, PeerMissing, TandemMQ
from tandemmq.bench.report import Say

GIGABYTE: Final = 10**9
# Size of the stored messages. It hardly matters: a catch-up copies bytes; only the founding of the set before it reads
# each message.
STORED_BODY_BYTES: Final = 16 << 10
STORED_BYTES: Final = STORED_BODY_BYTES + 300  # approximate bytes of a message in the journal
BODY_BYTES: Final = 1024
CONNECTIONS: Final = 8
PACE_PER_SECOND: Final = 400.0
CHUNK_BYTES: Final = 1 << 20
RECEIVED_BYTES_MAX: Final = 256 << 10
SECONDS_MAX: Final = 1_800.0
REST_SECONDS: Final = 10.0
# Pause after files were removed: the disk is busy if the file system discards their blocks.
SETTLE_SECONDS: Final = 3.0
# Interval of status requests, each of which needs CPU of the master.
ASK_SECONDS: Final = 0.5
FIRST_FILE_SECONDS: Final = 0.01
PATIENCE_SECONDS: Final = 30.0


def catch_up(
    gigabytes: float,
    rounds: int,
    say: Say,
    pace: float = PACE_PER_SECOND,
    directory: Path | None = None,
) -> dict[str, Any]:
    """Return the figures of each round, and the medians. ``problem`` in the result: why there are none. ``directory``:
    where the new node's directory and the plain copies are made; None: beside the directories of the other nodes."""
    try:
        whole = ReplicatedSet(ready_seconds_max=SECONDS_MAX, last=directory)
        say(f"writing {gigabytes:g} GB")
        written = write_journal(
            whole.data(whole.nodes[0]), max(1, int(gigabytes * GIGABYTE / STORED_BYTES)), STORED_BODY_BYTES
        )
        for node in whole.nodes:
            node.start_timeout_seconds = SECONDS_MAX
        with whole:
            found = [_measure(whole, pace, say) for _ in range(rounds)]
    except (BenchError, PeerMissing, OSError, StopIteration) as problem:
        return {"gigabytes": gigabytes, "problem": str(problem)}
    return {
        "gigabytes": gigabytes,
        "journal_bytes": written,
        "problem": None,
        "medians": {
            "of_the_copy": statistics.median(each["of_the_copy"] for each in found),
            **{name: statistics.median(each["load"][name] for each in found) for name in RATIOS},
        },
        "rounds": found,
    }


RATIOS: Final = ("p99_to_rest", "copys_p99_to_rest", "p99_to_the_paced_copys")


def _measure(whole: ReplicatedSet, pace: float, say: Say) -> dict[str, Any]:
    master, node = whole.master, whole.nodes[-1]
    started_with_load = os.getloadavg()[0]
    with _paced(whole.endpoint, pace) as at_rest:
        time.sleep(REST_SECONDS)
    say(f"load at rest: p99 {at_rest.p99_ms:.1f} ms")
    copy_rate, beside_copy = _copy(whole, node, pace)
    say(f"plain copy under load: {copy_rate / 1e6:.0f} MB/s, load's p99 {beside_copy.p99_ms:.1f} ms")
    node.stop()
    shutil.rmtree(whole.data(node))
    _settle()
    master_cpu, started = cost(master.pid).cpu_seconds, time.monotonic()
    with _paced(whole.endpoint, pace) as beside:
        node.start()
        begun, seconds = _await_live(whole, master, node)
    starting, during = beside.between(started, begun), beside.between(begun, begun + seconds)
    has = sum(path.stat().st_size for path in _journal(whole.data(node)))
    master_cpu = cost(master.pid).cpu_seconds - master_cpu
    follower_cpu = cost(node.pid).cpu_seconds
    whole.await_whole(SECONDS_MAX)
    whole_after = time.monotonic() - started
    rate = has / seconds
    say(f"catch-up: {rate / 1e6:.0f} MB/s, {rate / copy_rate:.0%} of the copy, load's p99 {during.p99_ms:.1f} ms")
    paced_rate, beside_paced = _copy(whole, node, pace, rate)
    say(f"plain copy at that rate: {paced_rate / 1e6:.0f} MB/s, load's p99 {beside_paced.p99_ms:.1f} ms")
    return {
        "load_of_the_machine": round(started_with_load, 1),
        "bytes": has,
        "seconds_from_start_to_first_file": round(begun - started, 2),
        "seconds": round(seconds, 2),
        "seconds_until_it_stands_by": round(whole_after, 2),
        "megabytes_per_second": round(rate / 1e6, 1),
        "copy_megabytes_per_second": round(copy_rate / 1e6, 1),
        "of_the_copy": round(rate / copy_rate, 3),
        "paced_copy_megabytes_per_second": round(paced_rate / 1e6, 1),
        "master_cpu_seconds": round(master_cpu, 2),
        "follower_cpu_seconds": round(follower_cpu, 2),
        "load": {
            "messages_per_second": pace,
            "at_rest": at_rest.figures(),
            "beside_the_copy": beside_copy.figures(),
            "while_the_node_starts": starting.figures(),
            "during": during.figures(),
            "beside_the_paced_copy": beside_paced.figures(),
            "p99_to_rest": round(during.p99_ms / at_rest.p99_ms, 2),
            "copys_p99_to_rest": round(beside_copy.p99_ms / at_rest.p99_ms, 2),
            "p99_to_the_paced_copys": round(during.p99_ms / beside_paced.p99_ms, 2),
        },
    }


def _copy(whole: ReplicatedSet, node: TandemMQ, pace: float, rate: float = 0.0) -> tuple[float, Paced]:
    """Copy the master's files to the disk of ``node``. Return the bytes per second, and the results of the load."""
    with _paced(whole.endpoint, pace) as beside:
        copied, seconds = plain_copy(_journal(whole.data(whole.master)), node.directory.parent, rate)
    _settle()
    return copied / seconds, beside


def _settle() -> None:
    os.sync()
    time.sleep(SETTLE_SECONDS)


def _journal(data: Path) -> list[Path]:
    return sorted(data.glob("db-*.log"))


def _await_live(whole: ReplicatedSet, master: TandemMQ, node: TandemMQ) -> tuple[float, float]:
    """Return when the node's first file existed, and the seconds from then until it has received all data."""
    name, until, begun = node.directory.name, time.monotonic() + SECONDS_MAX, 0.0
    while time.monotonic() < until:
        begun = begun or (time.monotonic() if _journal(whole.data(node)) else 0.0)
        followers = whole.replication(master).get("followers", {}).values() if begun else ()
        if any(each["node"] == name and each["is_live"] and tuple(each["have"]) > (0, 0) for each in followers):
            return begun, time.monotonic() - begun
        time.sleep(ASK_SECONDS if begun else FIRST_FILE_SECONDS)
    raise BenchError(f"{name} does not catch up within {SECONDS_MAX:g} s: {node.output()}")


# ---- the plain copy


def plain_copy(files: Sequence[Path], below: Path, rate: float = 0.0) -> tuple[int, float]:
    """Copy files over loopback into a temporary directory ``below``, at most ``rate`` bytes a second if not 0. Return
    bytes and seconds."""
    context = multiprocessing.get_context("fork")
    lengths = [path.stat().st_size for path in files]  # the last file may grow meanwhile
    with (
        tempfile.TemporaryDirectory(prefix="bench-copy-", dir=below) as target,
        socket.create_server((HOST, 0)) as server,
    ):
        receiver = context.Process(target=_receive, args=(server, target, lengths))
        receiver.start()
        started, copied = time.monotonic(), 0
        with socket.create_connection(server.getsockname()) as peer:
            for path, length in zip(files, lengths, strict=True):
                until = copied + length
                with path.open("rb", buffering=0) as source:
                    while chunk := source.read(min(CHUNK_BYTES, until - copied)):
                        peer.sendall(chunk)
                        copied += len(chunk)
                        if rate:
                            time.sleep(max(0.0, started + copied / rate - time.monotonic()))
            peer.shutdown(socket.SHUT_WR)
            receiver.join(SECONDS_MAX)
        if receiver.exitcode:
            raise BenchError("the plain copy fails")
        return copied, time.monotonic() - started


def _receive(server: socket.socket, directory: str, lengths: Sequence[int]) -> None:
    peer, _ = server.accept()
    for number, length in enumerate(lengths):
        fd = os.open(os.path.join(directory, str(number)), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        while length:
            data = peer.recv(min(RECEIVED_BYTES_MAX, length))
            if not data:
                os._exit(1)
            os.write(fd, data)
            length -= len(data)
        os.fdatasync(fd)
        os.close(fd)
    os._exit(0)


# ---- the load


class Paced:
    """Results of a load at a fixed pace. ``receipts``: for each message, when it was due, and the seconds from then to
    its receipt."""

    def __init__(self, receipts: Sequence[tuple[float, float]] = ()) -> None:
        self.receipts = receipts

    def between(self, begin: float, end: float) -> Paced:
        """Return the messages that were due in this period."""
        return Paced([each for each in self.receipts if begin <= each[0] < end])

    @property
    def p99_ms(self) -> float:
        return (percentile(sorted(seconds for _, seconds in self.receipts), 0.99) or 0.0) * 1000

    def figures(self) -> dict[str, Any]:
        found = sorted(seconds for _, seconds in self.receipts)
        return {
            "receipts": len(found),
            "p50_ms": round((percentile(found, 0.5) or 0.0) * 1000, 2),
            "p99_ms": round(self.p99_ms, 2),
            "max_ms": round(found[-1] * 1000, 2) if found else None,
        }


@contextmanager
def _paced(endpoint: Endpoint, per_second: float) -> Iterator[Paced]:
    """Run the load within this context; its results are available afterwards."""
    context = multiprocessing.get_context("fork")
    over, (ours, theirs) = context.Event(), context.Pipe(duplex=False)
    sender = context.Process(target=_send, args=(endpoint, per_second, over, theirs), daemon=True)
    sender.start()
    paced = Paced()
    try:
        yield paced
        over.set()
        if not ours.poll(PATIENCE_SECONDS):
            raise BenchError("the load does not end")
        found = ours.recv()
        if isinstance(found, str):
            raise BenchError(f"the load beside the catch-up ended: {found}")
        paced.receipts = found
    finally:
        over.set()
        sender.join(PATIENCE_SECONDS)
        if sender.is_alive():
            sender.kill()
            sender.join()


def _send(endpoint: Endpoint, per_second: float, over: Event, results: Pipe) -> None:
    found: list[tuple[float, float]] = []
    problems: list[str] = []

    def work(number: int) -> None:
        try:
            peer = connect(endpoint)
            stream = SendStream(f"/queue/bench.pace.{number}", 0, BODY_BYTES, is_persistent=True)
            pause = CONNECTIONS / per_second
            due = time.monotonic() + pause * number / CONNECTIONS
            sent = 0
            while not over.is_set():
                time.sleep(max(0.0, due - time.monotonic()))
                peer.sendall(stream.frames(sent, 1, 0))
                if read_receipts(read_frame(peer)) != [sent]:
                    raise BenchError("no receipt")
                # The time counts from when the message was due, so that messages which wait behind a slow one count,
                # too.
                found.append((due, time.monotonic() - due))
                sent += 1
                due += pause
            disconnect(peer, PATIENCE_SECONDS)
        except (OSError, BenchError) as problem:
            problems.append(str(problem))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.send(problems[0] if problems else found)
    os._exit(0)
