"""``python -m tandemmq.bench --scenario logins``: how long a valid login takes while others guess passwords.

Twenty users log in, each from its own address of 127.0.0.0/8. Then guessers at 1,600 other addresses try passwords,
each as fast as it gets answers, half of them for the names of these users. Meanwhile the users log in again: at a
restarted master, which remembers no password, and at the next master right after that one was killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, Final

from tandemmq.bench.driver.stomp import command_frame
from tandemmq.bench.peers.server import HOST, TREE, TandemMQ
from tandemmq.bench.report import aligned, commit, machine
from tandemmq.broker.security import passwords
from tandemmq.broker.security.known_logins import LOOK_SECONDS

USERS: Final = 20
GUESSERS: Final = 1_600
#: Time of guessing before the users come.
BEFORE_SECONDS: Final = 5.0
LOGIN_SECONDS_MAX: Final = 2.0
_PASSWORD: Final = "right"

Say = Callable[[str], None]


def logins(rounds: int, tree: Path | None, say: Say) -> dict[str, Any]:
    """Run all rounds. Raises BenchError."""
    runs = []
    for number in range(1, rounds + 1):
        for case, seconds in _run(tree or TREE):
            late = sum(each is None or each > LOGIN_SECONDS_MAX for each in seconds)
            slowest = max((each for each in seconds if each is not None), default=0.0)
            runs.append({"round": number, "case": case, "logins": len(seconds), "late": late, "slowest_s": slowest})
            say(f"round {number}  {case:<12} {len(seconds) - late} of {len(seconds)} in time, slowest {slowest:.2f} s")
    has_failed = any(run["late"] for run in runs)
    return {"scenario": "logins", "machine": machine(), "commit": commit(), "runs": runs, "has_failed": has_failed}


def table(figures: Mapping[str, Any]) -> Sequence[str]:
    rows = [[run["case"], str(run["logins"]), str(run["late"]), f"{run['slowest_s']:.2f}"] for run in figures["runs"]]
    return aligned([["case", "logins", "late or refused", "slowest, s"], *rows])


def _run(tree: Path) -> list[tuple[str, list[float | None]]]:
    with tempfile.TemporaryDirectory(prefix="bench-logins-", ignore_cleanup_errors=True) as directory:
        users, data = Path(directory, "users"), Path(directory, "data")
        names = {"guest": "guest", **{f"user{n}": _PASSWORD for n in range(USERS)}}  # the bench itself is guest
        users.write_text("".join(f"{name}:{passwords.make(word)}:\n" for name, word in names.items()))
        settings = [f"security.users_file={users}"]
        first, second, third = (TandemMQ(data=data, broker=name, tree=tree, settings=settings) for name in "abc")
        with first:
            _ = asyncio.run(_log_in_all(first.stomp_port))
            time.sleep(2 * LOOK_SECONDS)  # until it is written
        with second:
            third.start()
            try:
                third.await_standby()
                time.sleep(2 * LOOK_SECONDS)  # until it is read
                ports = f"{second.stomp_port},{third.stomp_port}"
                with Popen([sys.executable, "-m", "tandemmq.bench.logins", ports], stdout=DEVNULL) as guessers:
                    try:
                        time.sleep(BEFORE_SECONDS)
                        found = [("master", asyncio.run(_log_in_all(second.stomp_port)))]
                        second.kill()
                        found.append(("next master", asyncio.run(_log_in_all(third.stomp_port))))
                    finally:
                        guessers.kill()
            finally:
                third.discard()
        return found


async def _log_in_all(port: int) -> list[float | None]:
    """Return the seconds of each login from its established connection; None: it was refused."""
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
            answer = await _answer(reader, writer, f"user{number}", _PASSWORD)
        except (OSError, asyncio.IncompleteReadError):
            continue  # a standby closed the connection
        finally:
            writer.close()
        return time.perf_counter() - began if answer.startswith(b"CONNECTED") else None


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, login: str, passcode: str) -> bytes:
    headers = [("accept-version", "1.2"), ("host", "/"), ("login", login), ("passcode", passcode)]
    writer.write(command_frame("CONNECT", headers))
    return await reader.readuntil(b"\0")


async def _guess(ports: Sequence[int]) -> None:
    async def guesser(number: int) -> None:
        chance = random.Random(number)
        address = (f"127.2.{number >> 8}.{number & 255}", 0)
        while True:
            login = f"user{chance.randrange(USERS)}" if number % 2 else f"unknown{chance.randrange(1_000)}"
            for port in ports:
                with suppress(OSError, asyncio.IncompleteReadError):
                    reader, writer = await asyncio.open_connection(HOST, port, local_addr=address)
                    try:
                        await _answer(reader, writer, login, f"guess {chance.random()}")
                    finally:
                        writer.close()
            await asyncio.sleep(0.05)

    await asyncio.gather(*(guesser(number) for number in range(GUESSERS)))


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    asyncio.run(_guess([int(port) for port in sys.argv[1].split(",")]))
